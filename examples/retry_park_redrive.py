"""Retry, park, redrive: a failure is tried again, then looked at by a person, then brought back.

Attempts are counted in the broker, so that a crash does not start the count anew, and a message that waits
for its next one takes nobody's place. When attempts are used up the message is parked, with cause, stack
trace and origin in its headers. When the bug is mended, `redrive` brings it back to where it failed.
"""

import asyncio
from dataclasses import dataclass

from playground import WAIT_S, broker, state, wait_until

from leveret.client import App, Connection, Consumer, Park, Queue, Reject, Retry, Topology, redrive

ORDERS, PARKED = "retry_park_redrive.orders", "retry_park_redrive.orders.parked"


@dataclass
class Order:
    id: int
    region: str


RETRY = Retry(max_attempts=3, initial_s=0.1, multiplier=2)
BODIES = (
    {"id": 1, "region": "us"},
    {"id": 2, "region": "eu"},
    {"id": 3, "region": "eu"},
    {"id": "four", "region": "us"},
)


async def before_the_fix(url: str) -> None:
    app = App(url, topology=Topology(Queue(ORDERS), Queue(PARKED)))

    @app.listener(ORDERS, retry=RETRY, recoverer=Park())
    async def take(order: Order) -> None:
        if order.id == 3:
            raise Reject("order 3 was cancelled")  # decided: no retry, no recoverer
        if order.region == "eu":
            raise KeyError("no VAT rate")
        print(f"  order {order.id} is done")

    async with app:
        for body in BODIES:
            (await app.publisher.publish(body, ORDERS)).check()
        await wait_until(url, PARKED, ready=2)
        counters = app.listeners[0].counters  # complete when the application has stopped
    print(f"  {counters.failed} failures: {counters.retried} were tried again, {counters.recovered} parked,")
    print(f"  {counters.rejected} rejected because the handler said so.")


async def look(url: str, connection: Connection) -> None:
    """What a person sees; what is not settled goes back to its place."""
    async with Consumer(connection, PARKED) as consumer:
        for _ in range(2):
            delivery = await consumer.take(WAIT_S)
            assert delivery is not None
            headers = delivery.headers
            print(f"  {delivery.body.decode()} of queue {headers['x-original-queue']}")
            print(f"    {headers['x-exception-type']}, attempts: {headers['x-failed-attempts']}")
    await wait_until(url, PARKED, ready=2)


async def after_the_fix(url: str) -> None:
    app = App(url)
    done = asyncio.Event()

    @app.listener(ORDERS, retry=RETRY, recoverer=Park())
    async def take(order: Order) -> None:
        print(f"  order {order.id} is done")
        done.set()

    async with app, asyncio.timeout(WAIT_S):
        await done.wait()


async def main(url: str) -> None:
    print("With a bug in the handler:")
    await before_the_fix(url)
    async with Connection(url) as connection:
        print("Parked:")
        await look(url, connection)
        moved = await redrive(
            connection,
            PARKED,
            where=lambda message: str(message.headers["x-exception-type"]).endswith("KeyError"),
            rate_per_s=100,
        )
    print(f"Redriven: {moved.moved} of {moved.found}; the other one stays parked.")
    print("With the bug mended:")
    await after_the_fix(url)
    print(f"In the queue: {(await state(url, ORDERS)).ready}; parked: {(await state(url, PARKED)).ready}.")


with broker(ORDERS, PARKED) as url:
    asyncio.run(main(url))
