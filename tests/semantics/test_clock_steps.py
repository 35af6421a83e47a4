"""The system's clock is set while the broker runs: everything that takes time takes as long as it should.

The broker runs on a `SteadyClock` over the two clocks of a machine that the test owns: the time of day, which
`step` sets, and the time that passes, which `advance` moves together with the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pamqp import commands

from leveret.flight import actions
from leveret.server.clock import SteadyClock
from leveret.testing.broker import Broker
from leveret.testing.clock import START_US, VirtualClock
from tests.fronts.flight.bulk_requests import HOUR_S, Asked
from tests.semantics.client import Channel, Client

DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Machine(VirtualClock):
    """A broker's clock over a machine's clocks."""

    def __init__(self) -> None:
        super().__init__()
        self._of_day_ns, self._passed_ns = 1000 * START_US, 5_000_000_000
        self._clock = SteadyClock(
            time_of_day_ns=lambda: self._of_day_ns, time_passed_ns=lambda: self._passed_ns
        )

    def __call__(self) -> int:
        return self._clock()

    def advance(self, seconds: float) -> None:
        self._of_day_ns += round(seconds * 1e9)
        self._passed_ns += round(seconds * 1e9)
        super().advance(seconds)

    def sleep(self, seconds: float) -> None:
        """The machine is suspended: time passes, and nothing wakes the broker's loop for it."""
        self._of_day_ns += round(seconds * 1e9)
        self._passed_ns += round(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Somebody sets the clock: no time has passed."""
        self._of_day_ns += round(seconds * 1e9)
        super().advance(0)


@pytest.fixture
def leveret_clock() -> Machine:
    return Machine()


@pytest.fixture(params=[-5 * HOUR_S, 5 * HOUR_S], ids=["back", "forward"])
def step(clock: Machine, request: pytest.FixtureRequest) -> Callable[[], None]:
    return lambda: clock.step(request.param)


def declare(channel: Channel, **arguments: object) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={**DEAD_LETTERS, **arguments})


@pytest.mark.parametrize("options", [{"x-message-ttl": 60_000}, {}], ids=["of its queue", "of its own"])
def test_a_message_lives_as_long_as_it_should(channel, clock, broker, step, options):
    declare(channel, **options)
    channel.publish("q", "1", **({} if options else {"expiration": "60000"}))
    channel.quiet()
    clock.advance(30)
    step()
    clock.advance(29.5)
    assert broker.depth("q") == 1
    clock.advance(0.5)
    assert (broker.depth("q"), broker.depth("dead")) == (0, 1)


def test_a_message_that_comes_after_the_step_lives_as_long_as_one_before(channel, clock, broker, step):
    declare(channel, **{"x-message-ttl": 60_000})
    step()
    channel.publish("q", "1")
    channel.quiet()
    clock.advance(59.5)
    assert broker.depth("q") == 1
    clock.advance(0.5)
    assert broker.depth("q") == 0


def test_a_queue_that_nobody_uses_is_deleted_when_its_time_is_over(channel, clock, broker, step):
    channel.declare("q", arguments={"x-expires": 60_000})
    step()
    clock.advance(59.5)
    assert broker.depth("q") == 0
    clock.advance(0.5)
    channel.send(commands.Queue.Declare(queue="q", passive=True))
    assert channel.error().code == 404


def test_a_message_comes_back_after_its_delay(channel, clock, broker, step):
    declare(channel, **{"x-retry-delay-ms": 60_000})
    channel.publish("q", "1")
    got = channel.get("q")
    channel.nack(got.tag)
    channel.quiet()
    step()
    clock.advance(59.5)
    assert broker.depth("q") == 0
    clock.advance(0.5)
    assert broker.depth("q") == 1


def test_a_consumer_has_the_time_that_it_should(channel, clock, step):
    declare(channel, **{"x-consumer-timeout": 60_000})
    channel.consume("q")
    channel.publish("q", "1")
    channel.delivery()
    step()
    clock.advance(59.5)
    assert channel.quiet() == []
    clock.advance(0.5)
    assert [got.method.name for got in channel.quiet()] == ["Basic.Cancel"]


def test_a_lease_of_a_query_ends_when_it_should(channel, clock, broker, step):
    channel.declare("q")
    channel.confirm_select().publish_confirmed("q", "1")
    asked = Asked(broker)
    opened = asked(actions.Open("/", "q", "nightly", 60.0))
    assert asked.lease(opened, 0, max_messages=10).messages == 1
    step()
    clock.advance(58)
    assert broker.depth("q") == 0
    clock.advance(4)
    assert broker.depth("q") == 1


def test_what_was_due_while_the_machine_slept_happens_soon_after_it_wakes(channel, clock, broker):
    declare(channel, **{"x-message-ttl": 3_600_000})
    channel.publish("q", "1")
    channel.quiet()
    clock.sleep(2 * HOUR_S)
    broker.wait_until_depth("dead", 1)


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_a_real_broker_is_steady(monkeypatch, hours):
    real = time.time_ns
    with Broker() as broker:
        channel = Client(broker.port).channel().confirm_select()
        channel.declare("soon", arguments={"x-message-ttl": 1000})
        channel.declare("late", arguments={"x-message-ttl": 3_600_000})
        channel.publish_confirmed("soon", "1")
        channel.publish_confirmed("late", "1")
        monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600_000_000_000)
        broker.wait_until_depth("soon", 0)
        assert broker.depth("late") == 1
