"""The broker that other people's clients talk to.

Owns which broker is under test: Leveret in this process, or with `LEVERET_INTEROP=rabbitmq` a real
RabbitMQ, or with `LEVERET_INTEROP=amqp://...` one that already runs. Every test here passes on all of
them; what is Leveret's alone is tested elsewhere. Starting RabbitMQ is left to `tests/differential`.
The fixtures `connection`, `channel` and `queue` are pika's; the tests of other clients have their own.
"""

import contextlib
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.pika_client import connected
from tests.interop.wire import Proxy

SUBJECT = os.environ.get("LEVERET_INTEROP", "leveret")


@contextlib.contextmanager
def running_subject() -> Iterator[tuple[str, Any]]:
    """Its URL, and the object that runs it."""
    if SUBJECT.startswith("amqp://"):
        yield SUBJECT, None
    elif SUBJECT == "rabbitmq":
        from tests.rabbitmq.node import running_rabbitmq

        with running_rabbitmq() as server:
            yield server.url, server
    else:
        from leveret.testing.broker import Broker

        with Broker() as broker:
            yield broker.url, broker


@pytest.fixture(scope="session")
def subject() -> Iterator[tuple[str, Any]]:
    with running_subject() as running:
        yield running


@pytest.fixture(scope="session")
def amqp_url(subject: tuple[str, Any]) -> str:
    """
    >>> pika.BlockingConnection(pika.URLParameters(amqp_url))
    """
    return subject[0]


@pytest.fixture
def low_on_memory(subject: tuple[str, Any]) -> Iterator[Callable[[bool], None]]:
    """Tells the broker to act as if memory were short, or no longer."""
    if SUBJECT != "leveret":
        pytest.skip("This broker can't be told from here to run low on memory.")
    running = subject[1]

    def alarm(on: bool) -> None:
        running.set_alarm("memory", on=on)

    yield alarm
    alarm(False)


@pytest.fixture
def proxy(amqp_url: str) -> Iterator[Proxy]:
    with Proxy(amqp_url) as running:
        yield running


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names nobody else uses: the broker lives as long as the session, so do durable queues."""
    test = re.sub(r"\W+", "-", request.node.name)[:80]
    numbers = itertools.count(1)
    return lambda what: f"interop.{test}.{what}.{next(numbers)}.{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connection(amqp_url: str) -> Iterator[pika.BlockingConnection]:
    with connected(amqp_url) as opened:
        yield opened


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """One that waits for the confirm of every publish."""
    opened = connection.channel()
    opened.confirm_delivery()
    return opened


@pytest.fixture
def queue(channel: BlockingChannel, fresh: Callable[[str], str]) -> str:
    name = fresh("queue")
    channel.queue_declare(name, durable=True)
    return name
