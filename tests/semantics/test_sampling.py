"""Rates and samples of counters, taken by the broker's timer every 5 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker import sampling
from leveret.broker.broker import Broker as Core
from leveret.broker.history import History
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.semantics.client import Channel, Client


@pytest.fixture
def core(broker: Broker) -> Core:
    return broker.server.broker


def of_queue(core: Core, name: str = "q") -> History:
    history = core.vhosts["/"].queues[name].counters.history
    assert history is not None
    return history


def only(items: Any) -> Any:
    (item,) = items
    return item


def publish(channel: Channel, count: int, **options: Any) -> None:
    for number in range(count):
        channel.publish("q", str(number), **options)
    channel.quiet()


def test_five_seconds_after_a_publish_everything_it_went_through_has_a_rate(
    channel: Channel, clock: VirtualClock, core: Core
) -> None:
    channel.declare("q")
    publish(channel, 10)
    clock.advance(5)
    session = only(core.sessions)
    vhost = core.vhosts["/"]
    counted = (
        vhost.queues["q"].counters,
        vhost.exchanges[""].counters,
        only(session.channels).counters,
    )
    assert [each.history.rate("published") for each in counted if each.history] == [2.0, 2.0, 2.0]
    assert of_queue(core).rate("ready") == 2.0
    assert session.counters.history is not None
    assert session.counters.history.rate("octets_in") > 0


def test_broker_and_virtual_host_have_the_sum_of_open_and_closed_channels(
    connect: Callable[..., Client], clock: VirtualClock, core: Core
) -> None:
    channel = connect().channel()
    channel.declare("q")
    clock.advance(5)
    publish(channel, 4)
    channel.close()
    publish(channel.client.channel(), 6)
    gone = connect().channel()
    publish(gone, 5)
    gone.client.close()
    clock.advance(5)
    for counters in (core.counters, core.vhosts["/"].counters):
        assert counters.history is not None
        assert counters.history.rate("published") == 3.0
        assert counters.history.rate("ready") == 3.0
    assert core.sampler.totals().published == core.sampler.totals_of("/").published == 15
    assert core.sampler.standing["/"].ready == 15


def test_a_rate_ends_when_nothing_happens_any_more(channel: Channel, clock: VirtualClock, core: Core) -> None:
    channel.declare("q")
    publish(channel, 10)
    clock.advance(5)
    clock.advance(5)
    assert of_queue(core).rate("published") == 0.0
    times = of_queue(core).samples(("published",), age_s=10, incr_s=5, now_us=clock())
    assert [count for _, count in times] == [10, 10, 0]


def test_an_idle_queue_has_no_history(channel: Channel, clock: VirtualClock, core: Core) -> None:
    channel.declare("q")
    clock.advance(60)
    assert core.vhosts["/"].queues["q"].counters.history is None


def test_messages_that_a_restart_has_kept_do_not_look_like_a_burst(
    channel: Channel, clock: VirtualClock, broker: Broker, connect: Callable[..., Client]
) -> None:
    channel.declare("q")
    channel.confirm_select()
    for _ in range(20):
        channel.publish_confirmed("q", "x", delivery_mode=2)
    channel.client.vanish()
    broker.restart()
    again = connect().channel()
    publish(again, 5)
    clock.advance(5)
    assert of_queue(broker.server.broker).rate("ready") == 1.0


def test_many_queues_are_sampled_in_slices(
    channel: Channel, clock: VirtualClock, broker: Broker, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_SLICE", 10)

    def add() -> None:
        for number in range(35):
            core.vhosts["/"].add_queue(
                f"q{number}", durable=False, auto_delete=False, owner=None, table={}, declared=QueueSettings()
            )

    broker.call(add)
    publish(channel, 3)
    clock.advance(5)
    broker.wait_until(lambda: core.counters.history is not None, "the end of the sweep")
    assert core.counters.history is not None
    assert core.counters.history.newest[0] == 3


def test_with_many_active_objects_each_keeps_fewer_samples(
    channel: Channel, clock: VirtualClock, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "KEPT_MAX", 20)
    channel.declare("q")
    for _ in range(20):
        publish(channel, 1)
        clock.advance(5)
    counts = [
        count for _, count in of_queue(core).samples(("published",), age_s=100, incr_s=5, now_us=clock())
    ]
    # Queue, exchange, channel and connection have five samples each; before these, the first one is shown.
    assert counts[:6] == [20, 19, 18, 17, 16, 16]


def test_others_can_add_their_numbers(clock: VirtualClock, broker: Broker, core: Core) -> None:
    numbers = iter((100, 150))
    history = broker.call(lambda: core.sampler.add(("mem_used",), lambda: (next(numbers),)))
    clock.advance(5)
    clock.advance(5)
    assert history.rate("mem_used") == 10.0
