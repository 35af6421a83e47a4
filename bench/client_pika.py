"""pika's side of `bench.client`: its `BlockingConnection`, which publishes with confirms one at a time only.

Consuming: a callback that acks, or the generator `channel.consume`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from bench.client_job import Job, Way

PERSISTENT = BasicProperties(delivery_mode=2)


@contextmanager
def channel(job: Job) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(job.url))
    yield connection.channel()
    connection.close()


def publish(job: Job) -> None:
    """`basic_publish` comes back when the message is confirmed, and raises when it is not."""
    count = 0
    with channel(job) as opened:
        opened.confirm_delivery()
        with job.measured():
            for body in job.bodies():
                opened.basic_publish("", job.queue, body, PERSISTENT, mandatory=True)
                count += 1
    job.check(count)


def by_callback(job: Job, opened: BlockingChannel) -> int:
    count = 0

    def handle(of: BlockingChannel, method: Basic.Deliver, _: BasicProperties, __: bytes) -> None:
        nonlocal count
        of.basic_ack(method.delivery_tag)
        count += 1
        if count == job.messages:
            of.stop_consuming()

    opened.basic_consume(job.queue, handle)
    opened.start_consuming()
    return count


def by_generator(job: Job, opened: BlockingChannel) -> int:
    count = 0
    for method, _, _ in opened.consume(job.queue):
        opened.basic_ack(method.delivery_tag)
        count += 1
        if count == job.messages:
            break
    return count


def consuming(how: Callable[[Job, BlockingChannel], int], prefetch: int) -> Way:
    """Ends when the broker has answered the close of the channel: it has the acks then."""

    def consume(job: Job) -> None:
        with channel(job) as opened:
            opened.basic_qos(prefetch_count=prefetch)
            with job.measured():
                count = how(job, opened)
                opened.close()
        job.check(count)

    return consume


WAYS = {
    "publish": {"one at a time": publish},
    "consume": {
        "generator, prefetch 1,000": consuming(by_generator, 1_000),
        "callback, prefetch 100": consuming(by_callback, 100),
        "callback, prefetch 1,000": consuming(by_callback, 1_000),
        "callback, prefetch 10,000": consuming(by_callback, 10_000),
        "generator, prefetch 100": consuming(by_generator, 100),
    },
}
