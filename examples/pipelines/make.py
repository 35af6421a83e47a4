"""Messages for the examples of pipelines, made up from a seed and published with confirms.

    python examples/pipelines/make.py orders|clicks|purchases [AMQP URL]

Declares the queues that the example needs. What is made is told by functions, so that the tests can tell what
must come of it.
"""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from random import Random

from leveret.client import Connection, Message, Publisher, Queue, Topology

URL = "amqp://guest:guest@localhost:5672/"
DAY = datetime(2026, 3, 1, tzinfo=UTC)
QUEUES = {
    "orders": ("orders", "orders.rejected"),
    "clicks": ("clicks", "clicks.rejected"),
    "purchases": ("purchases", "purchases.rejected", "purchases.enriched"),
}


def orders(count: int = 10_000) -> list[bytes]:
    """Three days of orders. Of a hundred, some are not JSON, cost nothing, go too far, or are nobody's."""
    random = Random(1)
    made = []
    for number in range(count):
        order = {
            "order_id": number,
            "customer": random.randrange(1, 500),
            "country": random.choice(["de", "fr", "pl"]),
            "amount": round(random.uniform(1, 300), 2),
            "at": (DAY + timedelta(seconds=number * 25)).isoformat(),
        }
        match random.randrange(100):
            case 0:
                made.append(b'{"order_id": %d, "customer"' % number)
                continue
            case 1:
                order["amount"] = 0
            case 2:
                order["country"] = "us"
            case 3:
                del order["customer"]
        made.append(json.dumps(order).encode())
    return made


def clicks(count: int = 3_000) -> list[bytes]:
    """Clicks of twenty customers as they arrive: some of them late, some too late, some twice."""
    random = Random(2)
    arrivals = []
    for number in range(count):
        at = DAY + timedelta(seconds=number * 6 + random.randrange(30))
        late_s = random.choices([0, 120, 3600], [90, 8, 2])[0] * random.random()
        click = {
            "click": f"click-{number}",
            "customer": random.randrange(20) if number % 700 < 500 else random.randrange(3),
            "page": random.choice(["start", "search", "basket", "paid"]),
            "at": at.isoformat(),
        }
        arrivals.append((at + timedelta(seconds=late_s), number, click))
        if random.random() < 0.02:
            arrivals.append((at + timedelta(seconds=late_s + 60), number, click))
    arrivals.sort(key=lambda arrival: arrival[:2])
    return [json.dumps(click).encode() for _, _, click in arrivals]


def purchases(count: int = 5_000) -> list[bytes]:
    """Of customers 1 to 8, and a few of 9, whom nobody knows."""
    random = Random(3)
    return [
        json.dumps(
            {
                "purchase": number,
                "customer": random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9 if number % 50 == 0 else 1]),
                "amount": round(random.uniform(1, 99), 2),
            }
        ).encode()
        for number in range(count)
    ]


MADE = {"orders": orders, "clicks": clicks, "purchases": purchases}


async def publish(what: str, url: str = URL) -> int:
    """Makes and publishes; returns how many messages were confirmed."""
    topology = Topology(*(Queue(name, audit_window_ms=86_400_000) for name in QUEUES[what]))
    async with Connection(url, topology=topology) as connection, Publisher(connection) as publisher:
        receipts = await publisher.publish_many(Message(body, what) for body in MADE[what]())
        for receipt in receipts:
            receipt.check()
    return len(receipts)


if __name__ == "__main__":
    chosen, *url = sys.argv[1:]
    print(f"{asyncio.run(publish(chosen, *url)):,} messages confirmed")
