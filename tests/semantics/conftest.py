"""Fixtures of the tests of SEMANTICS.md: a broker on a virtual clock, and clients of it.

`broker` stands on a clock that only `clock.advance` moves; heartbeats and handshakes run on the real one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client
from tests.semantics.grouping import Joined, Watched, join, numbered, publish, stream


@pytest.fixture
def errors_expected() -> None:
    """For tests in which the broker has a reason to log an error."""


@pytest.fixture(autouse=True)
def no_errors_logged(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, the broker has no exception to report."""
    yield
    if "errors_expected" not in request.fixturenames:
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        assert [each.getMessage() for each in records if each.levelno >= logging.ERROR] == []


@pytest.fixture
def clock(leveret_clock: VirtualClock) -> VirtualClock:
    return leveret_clock


@pytest.fixture
def broker(clock: VirtualClock, leveret_broker: Broker) -> Broker:
    return leveret_broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Client]]:
    """`connect()` is a new connection; all of them are gone when the test is over."""
    made: list[Client] = []

    def connect(**options: Any) -> Client:
        made.append(Client(broker.port, **options))
        return made[-1]

    yield connect
    for client in made:
        client.vanish()


@pytest.fixture
def channel(connect: Callable[..., Client]) -> Channel:
    """A channel of a connection of its own."""
    return connect().channel()


@pytest.fixture
def open_channel(connect: Callable[..., Client]) -> Callable[..., Channel]:
    """`open_channel()` is a channel of a new connection."""
    return lambda **options: connect(**options).channel()


@pytest.fixture
def joined(channel: Channel, open_channel: Callable[..., Channel]) -> Joined:
    """`joined(3, prefetch=1)` is a member of the group `billing` on the stream `s` with three messages."""

    def joined(count: int, **options: Any) -> Channel:
        stream(channel)
        publish(channel, *numbered(count))
        return join(open_channel(), **options)

    return joined


@pytest.fixture
def billing(broker: Broker) -> Watched:
    """The group `billing` on the stream `s`. It need not exist yet."""
    return Watched(broker)
