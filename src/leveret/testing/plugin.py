"""The pytest plugin: a broker for every test that asks for one.

    def test_orders_are_stored(leveret_broker):
        publish(leveret_broker.url)
        leveret_broker.wait_until_depth("orders", 1)

A test that also asks for `leveret_clock` moves the broker's time itself: `leveret_clock.advance(60)`.
Nothing of Leveret is imported before a test needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leveret.testing.broker import Broker
    from leveret.testing.clock import VirtualClock


@pytest.fixture
def leveret_clock() -> VirtualClock:
    """A clock that stands still until the test moves it."""
    from leveret.testing.clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def leveret_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker in memory, on a free port, for this test alone."""
    from leveret.testing.broker import Broker

    clock = request.getfixturevalue("leveret_clock") if "leveret_clock" in request.fixturenames else None
    with Broker(clock=clock) as broker:
        yield broker
