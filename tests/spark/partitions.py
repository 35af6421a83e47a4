"""Streams and topics for tests of the source: made and filled over AMQP, as any client does it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leveret.broker.groups.group import Group
from leveret.client import BlockingConnection, Message
from leveret.testing.broker import Broker
from tests.spark.tasks import channel

TYPE = "x-consistent-hash"


def make_stream(url: str, name: str, **arguments: Any) -> str:
    given = {"x-queue-type": "stream"} | {key.replace("_", "-"): value for key, value in arguments.items()}
    with channel(url) as declaring:
        declaring.queue_declare(name, durable=True, arguments=given)
    return name


def make_topic(url: str, name: str, count: int, **arguments: Any) -> str:
    """With so many partitions, or more than it had."""
    with channel(url) as declaring:
        declaring.exchange_declare(name, TYPE, durable=True)
        for number in range(count):
            make_stream(url, f"{name}-{number}", **arguments)
            declaring.queue_bind(f"{name}-{number}", name, "1")
    return name


def append(url: str, stream: str, bodies: Iterable[bytes]) -> None:
    """All are in the stream when this returns."""
    with BlockingConnection(url) as connection, connection.publisher() as publisher:
        for receipt in publisher.publish_many(Message(body, stream) for body in bodies):
            receipt.check()


def spread(url: str, topic: str, bodies: Iterable[bytes]) -> None:
    """Published to the topic, each under its own key."""
    with BlockingConnection(url) as connection, connection.publisher() as publisher:
        messages = [Message(body, body.decode(), topic) for body in bodies]
        for receipt in publisher.publish_many(messages):
            receipt.check()


def group_of(broker: Broker, subject: str, name: str) -> Group:
    return broker.call(lambda: broker.server.broker.vhosts["/"].groups.get(subject, name))


def lag(broker: Broker, subject: str, name: str) -> int:
    group = group_of(broker, subject, name)
    return broker.call(lambda: group.lag)


def groups_on(broker: Broker, subject: str) -> list[str]:
    groups = broker.server.broker.vhosts["/"].groups
    return broker.call(lambda: [group.name for group in groups if group.subject == subject])
