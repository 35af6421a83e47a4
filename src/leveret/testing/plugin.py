"""The pytest plugin: fixtures for a broker and its clock.

    def test_orders_are_stored(leveret_broker):
        publish(leveret_broker.url)
        leveret_broker.wait_until_depth("orders", 1)

With the fixture `leveret_clock` a test moves the broker's time itself: `leveret_clock.advance(60)`. Leveret
is imported only when a test uses a fixture.
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
    """A clock that stands still until the test moves it, used by `leveret_broker`."""
    from leveret.testing.clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def leveret_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A real broker in memory on a free port, for one test."""
    from leveret.testing.broker import Broker

    clock = request.getfixturevalue("leveret_clock") if "leveret_clock" in request.fixturenames else None
    with Broker(clock=clock) as broker:
        yield broker
