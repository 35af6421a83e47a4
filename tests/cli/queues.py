"""Queues as another client sees them: tests inspect what commands did with pika, not with the toolkit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.processes import WAIT_S


class Kept(NamedTuple):
    body: bytes
    properties: pika.BasicProperties
    redelivered: bool


@contextmanager
def channel(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def declare(url: str, queue: str, bodies: Iterable[bytes] = (), **arguments: Any) -> str:
    """Declare a durable queue and publish persistent messages to it; return its name."""
    with channel(url) as opened:
        opened.queue_declare(queue, durable=True, arguments=arguments)
    put(url, queue, *bodies, delivery_mode=2)
    return queue


def put(url: str, queue: str, *bodies: bytes, **properties: Any) -> None:
    with channel(url) as opened:
        opened.confirm_delivery()
        for body in bodies:
            opened.basic_publish("", queue, body, pika.BasicProperties(**properties), mandatory=True)


def depth(url: str, queue: str) -> int:
    with channel(url) as opened:
        return int(opened.queue_declare(queue, passive=True).method.message_count)


def wait_until_depth(url: str, queue: str, count: int, *, at_least: bool = False) -> None:
    deadline = time.monotonic() + WAIT_S
    while (count_now := depth(url, queue)) != count and not (at_least and count_now > count):
        assert time.monotonic() < deadline, f"{count_now} messages are in '{queue}', not {count}"
        # RabbitMQ has no event for a changed depth.
        time.sleep(0.02)


def take_all(url: str, queue: str) -> list[Kept]:
    """Remove all messages from the queue and return them."""
    messages = []
    with channel(url) as opened:
        while True:
            method, properties, body = opened.basic_get(queue, auto_ack=True)
            if method is None:
                return messages
            messages.append(Kept(body, properties, method.redelivered))


def bodies(url: str, queue: str) -> list[bytes]:
    return [kept.body for kept in take_all(url, queue)]
