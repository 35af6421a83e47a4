"""Clients that work against a broker which is going to be killed, and the ledger of what it promised them.

Each worker is a thread with a connection of its own and ends when that breaks. What a worker is about to ask
for is noted before, what was promised is noted after the answer. An ack has no answer: it counts as promised
when a publish that was sent after it is confirmed, because what is synced is synced in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

WORK, DEAD, DONE, LEFT, RIGHT, TRIED = "work", "dead", "done", "left", "right", "tried"
PERSISTENT = pika.BasicProperties(delivery_mode=2)
BATCH = 5


@dataclass
class Ledger:
    """Over all lives of the broker; each set has one writer."""

    numbers: Iterator[int] = field(default_factory=count)
    published: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    """Asked for; those in `settled` were promised."""
    settled: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)
    buried: set[str] = field(default_factory=set)
    """Rejected, and promised."""
    begun: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    tries: dict[str, int] = field(default_factory=dict)
    """How often messages were returned, where that was promised."""
    queues: set[str] = field(default_factory=set)
    unexpected: list[BaseException] = field(default_factory=list)

    def promises(self) -> list[int]:
        """How many each kind of client has had."""
        kept = (self.confirmed, self.settled, self.buried, self.committed)
        return [*map(len, kept), self.tries.get("again", 0)]


def declare(channel: BlockingChannel, ledger: Ledger) -> None:
    """The queues, and one more each time: all of them must outlive the broker."""
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    for queue in (WORK, DEAD, DONE, LEFT, RIGHT, TRIED, f"extra-{len(ledger.queues)}"):
        channel.queue_declare(queue, durable=True, arguments=to_dead if queue == WORK else {})
        ledger.queues.add(queue)


def publisher(channel: BlockingChannel, ledger: Ledger) -> None:
    channel.confirm_delivery()
    for number in ledger.numbers:
        id_ = f"m{number}"
        ledger.published.add(id_)
        channel.basic_publish("", WORK, id_.encode(), PERSISTENT)
        ledger.confirmed.add(id_)


def worker(channel: BlockingChannel, ledger: Ledger) -> None:
    """Acks most, rejects some, leaves some; then publishes what it has done, which makes it certain."""
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=20)
    deliveries = channel.consume(WORK)
    while batch := list(islice(deliveries, BATCH)):
        acked, rejected = set(), set()
        for method, _, body in batch:
            id_ = body.decode()
            ledger.delivered.add(id_)
            if int(id_[1:]) % 5 == 0:
                rejected.add(id_)
                ledger.rejected.add(id_)
                channel.basic_reject(method.delivery_tag, requeue=False)
            elif int(id_[1:]) % 7:
                acked.add(id_)
                ledger.acked.add(id_)
                channel.basic_ack(method.delivery_tag)
            elif not method.redelivered:
                channel.basic_nack(method.delivery_tag, requeue=True)
        channel.basic_publish("", DONE, b"done", PERSISTENT)
        ledger.settled |= acked
        ledger.buried |= rejected


def committer(channel: BlockingChannel, ledger: Ledger) -> None:
    """Each message goes to two queues, in one transaction."""
    channel.tx_select()
    for number in ledger.numbers:
        id_ = f"t{number}"
        ledger.begun.add(id_)
        for queue in (LEFT, RIGHT):
            channel.basic_publish("", queue, id_.encode(), PERSISTENT)
        channel.tx_commit()
        ledger.committed.add(id_)


def trier(channel: BlockingChannel, ledger: Ledger) -> None:
    """Takes one message over and over and gives it back."""
    channel.confirm_delivery()
    if not channel.queue_declare(TRIED, passive=True).method.message_count:  # it may be there, unconfirmed
        channel.basic_publish("", TRIED, b"again", PERSISTENT)
    while True:
        method, properties, body = channel.basic_get(TRIED)
        if method is None:
            continue
        returned = int((properties.headers or {}).get("x-delivery-count", 0))
        assert returned >= ledger.tries.get(body.decode(), 0), "the broker has lost count"
        channel.basic_nack(method.delivery_tag, requeue=True)
        channel.basic_publish("", DONE, b"done", PERSISTENT)
        ledger.tries[body.decode()] = returned + 1


WORKERS = (publisher, worker, committer, trier)


def start(url: str, ledger: Ledger) -> list[threading.Thread]:
    """All of them at work; each ends when the broker is gone."""
    threads = [threading.Thread(target=_run, args=(each, url, ledger), daemon=True) for each in WORKERS]
    for thread in threads:
        thread.start()
    return threads


def _run(work: Callable[[BlockingChannel, Ledger], None], url: str, ledger: Ledger) -> None:
    try:
        work(pika.BlockingConnection(pika.URLParameters(url)).channel(), ledger)
    except (AMQPError, OSError):
        return
    except BaseException as error:  # noqa: BLE001  # the test looks at what was raised
        ledger.unexpected.append(error)
