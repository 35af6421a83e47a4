"""pika's blocking connection, made fit for tests: what arrived is kept, every wait is bounded.

Owns how a test waits (`wait_for`) and counts (`ready`). What should arrive is left to the tests.
RabbitMQ may answer a count before it has requeued what was given back earlier: get that, do not count it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.wire import WAIT_S

Fresh = Callable[[str], str]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Delivery(NamedTuple):
    method: Any
    properties: pika.BasicProperties
    body: bytes


class Inbox(list[Delivery]):
    """A consumer's callback that keeps what it is given."""

    def __call__(self, _channel: object, method: Any, properties: Any, body: bytes) -> None:
        self.append(Delivery(method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self]

    @property
    def tags(self) -> list[int]:
        return [delivery.method.delivery_tag for delivery in self]

    @property
    def redelivered(self) -> list[bool]:
        return [delivery.method.redelivered for delivery in self]


def wait_for(
    connection: pika.BlockingConnection, happened: Callable[[], object], *, look_every_s: float = WAIT_S
) -> None:
    """Lets pika work until it happened. What pika has no event for needs a short `look_every_s`."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        remaining_s = deadline - time.monotonic()
        assert remaining_s > 0, "what the test waits for did not happen"
        connection.process_data_events(time_limit=min(remaining_s, look_every_s))


def consume(channel: BlockingChannel, queue: str, count: int, **options: Any) -> Inbox:
    inbox = Inbox()
    channel.basic_consume(queue, inbox, **options)
    wait_for(channel.connection, lambda: len(inbox) >= count)
    return inbox


def ready(channel: BlockingChannel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count


def publish(channel: BlockingChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


@contextlib.contextmanager
def connected(url: str, **options: Any) -> Iterator[pika.BlockingConnection]:
    parameters = pika.URLParameters(url)
    for name, value in options.items():
        setattr(parameters, name, value)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()
