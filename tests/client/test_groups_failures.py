"""What a failure means in a group: when it comes again, what people see of it, where it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.client import (
    AckAnyway,
    Connection,
    Decision,
    Delivery,
    Failure,
    ImmediateRequeue,
    Park,
    Queue,
    Reject,
    Requeue,
    Retry,
    RetryLater,
    Topology,
    failures,
    redrive,
)
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.grouping import Watched, application, dead_letters, pass_time, put
from tests.client.listening import (
    QUICK,
    Notes,
    Watch,
    connection_of,
    cut,
    on_a_loop,
    taken,
    until_ready,
    until_true,
)

LEVELS_S = [10, 30, 60, 120]
"""The first four of a group that nobody has set up: RocketMQ's table from its third level on."""


def reasons(group: Watched) -> dict[int, bytes]:
    return group.partition(lambda each: dict(each.cursor.progress.reasons))


async def come_again(clock: VirtualClock, group: Watched, calls: Notes, delays_s: list[float]) -> None:
    """Each delay passes; not a millisecond earlier it comes again."""
    for delay_s in delays_s:
        await group.until_back()
        count = len(calls)
        await pass_time(clock, delay_s - 0.001)
        assert group.see(lambda state: state.in_flight) == 0
        await pass_time(clock, 0.001)
        await calls.reach(count + 1)


# coming again


@on_a_loop
async def test_a_failure_waits_by_the_groups_table_and_its_error_can_be_seen(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.attempt, delivery.redelivered))
        if delivery.attempt < 5:
            raise ValueError(f"no {delivery.attempt}")

    async with app:
        await put(app.publisher, [b"x"])
        await group.until_back()
        assert reasons(group) == {0: b"ValueError('no 1')"}
        await come_again(leveret_clock, group, calls, LEVELS_S)
        await group.until_done()
    assert [attempt for attempt, _ in calls] == [1, 2, 3, 4, 5]
    assert [redelivered for _, redelivered in calls] == [False, True, True, True, True]


@on_a_loop
async def test_what_waits_holds_up_nobody_and_is_not_in_the_way_of_progress(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", max_span=5)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.offset)
        if delivery.offset == 0 and delivery.attempt == 1:
            raise ValueError("the first")

    async with app:
        await put(app.publisher, [b"%d" % number for number in range(100)])
        await group.until(lambda state: state.lag == 1, "all others are done")
        assert group.partition(lambda partition: partition.watermark) == 100
        await pass_time(leveret_clock, 10)
        await group.until_done()
    assert sorted(calls) == sorted([0, *range(100)])


@on_a_loop
async def test_a_table_of_the_listeners_own_begins_with_its_first_delay_and_ends_with_its_last(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", delays=[0.25, 2])
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt < 4:
            raise ValueError("not yet")

    async with app:
        await put(app.publisher, [b"x"])
        await come_again(leveret_clock, group, calls, [0.25, 2, 2])
        await group.until_done()


@on_a_loop
async def test_a_retry_policy_chooses_the_delays_and_tells_the_error_too(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()
    slow = Retry(9, initial_s=100, multiplier=1, max_s=100, jitter=0)

    @app.group_listener(
        "orders", group="billing", retry=Retry(9, initial_s=1, multiplier=3, jitter=0, per={KeyError: slow})
    )
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt < 4:
            raise KeyError("k") if delivery.attempt == 3 else ValueError("v")

    async with app:
        await put(app.publisher, [b"x"])
        await group.until_back()
        assert reasons(group) == {0: b"ValueError('v')"}
        await come_again(leveret_clock, group, calls, [1, 3, 100])
        await group.until_done()
    assert calls == [1, 2, 3, 4]


@on_a_loop
async def test_a_policy_that_waits_in_the_process_waits_in_the_broker_all_the_same(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener(
        "orders", group="billing", prefetch=1, retry=Retry(9, initial_s=5, jitter=0, stateful=False)
    )
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.offset, delivery.attempt))
        if delivery.offset == 0 and delivery.attempt == 1:
            raise ValueError("once")

    async with app:
        await put(app.publisher, [b"x", b"y", b"z"])
        await calls.reach(3)
        await group.until_back()
        await pass_time(leveret_clock, 5)
        await group.until_done()
    assert calls == [(0, 1), (1, 1), (2, 1), (0, 2)]


@pytest.mark.parametrize(
    ("decision", "delay_s", "reason"),
    [
        (Requeue("not my turn"), 10, b"Requeue('not my turn')"),
        (RetryLater(7, "too early"), 7, b"RetryLater('too early')"),
        (RetryLater(0, "at once"), 0, b""),
    ],
)
@on_a_loop
async def test_a_handler_decides_that_it_comes_again(
    leveret_broker: Broker, leveret_clock: VirtualClock, decision: Exception, delay_s: float, reason: bytes
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", retry=Retry.never())
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            raise decision

    async with app:
        await put(app.publisher, [b"x"])
        if delay_s:
            await group.until_back()
            assert reasons(group) == {0: reason}
            await come_again(leveret_clock, group, calls, [delay_s])
        await group.until_done()
    assert calls == [1, 2]


@on_a_loop
async def test_a_nack_by_hand_is_sent_back_by_the_table(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", ack="manual")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        await (delivery.nack() if delivery.attempt == 1 else delivery.ack())

    async with app:
        await put(app.publisher, [b"x"])
        await group.until_back()
        assert reasons(group) == {0: b"sent back by its member"}
        await come_again(leveret_clock, group, calls, [10])
        await group.until_done()


@on_a_loop
async def test_ack_anyway_is_progress(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        raise AckAnyway("it does not matter")

    async with app:
        await put(app.publisher, [b"x"])
        await group.until_done()
    assert not reasons(group)


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ValueError("ü" * 1000), "ValueError('" + "ü" * 121),
        (ValueError("\ud800"), "ValueError('\\ud800')"),
        (Unprintable(), "<Unprintable, which can't be printed>"),
    ],
)
@on_a_loop
async def test_an_error_is_told_whatever_its_text(
    leveret_broker: Broker, leveret_clock: VirtualClock, error: Exception, wanted: str
) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        raise error

    async with app:
        await put(app.publisher, [b"x"])
        await group.until_back()
    assert reasons(group)[0].decode() == wanted


# too late


@on_a_loop
async def test_what_takes_too_long_is_sent_back_on_time_and_its_late_ack_is_harmless(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()
    go = asyncio.Event()

    @app.group_listener("orders", group="billing", concurrency=3, consume_timeout_s=2, delays="5s")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.offset, delivery.attempt))
        if delivery.offset == 0 and delivery.attempt == 1:
            await go.wait()

    async with app:
        await put(app.publisher, [b"stuck", b"x", b"y"])
        await group.until(lambda state: state.lag == 1, "the others are done")
        await pass_time(leveret_clock, 1.999)
        assert group.see(lambda state: state.in_flight) == 1
        await pass_time(leveret_clock, 0.001)
        await group.until_back()
        assert reasons(group) == {0: b"no answer within 2000 ms"}
        go.set()
        await group.until(lambda state: state.stale_acks == 1, "the late ack was seen")
        assert group.see(lambda state: state.lag) == 1
        await pass_time(leveret_clock, 5)
        await group.until_done()
        assert connection_of(app).sessions == 1
        assert app.health().ok
    assert sorted(calls) == [(0, 1), (0, 2), (1, 1), (2, 1)]


@on_a_loop
async def test_a_timeout_that_an_operator_shortens_holds_for_what_runs_already(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()
    go = asyncio.Event()

    @app.group_listener("orders", group="billing", concurrency=2, delays="1s")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            await go.wait()

    async with app:
        await put(app.publisher, [b"stuck"])
        await calls.reach(1)
        await pass_time(leveret_clock, 60)
        assert group.see(lambda state: state.in_flight) == 1
        await asyncio.to_thread(group.change, consume_timeout_ms=60_000)
        await pass_time(leveret_clock, 0.001)
        await group.until_back()
        await pass_time(leveret_clock, 1)
        await group.until_done()
        go.set()
    assert calls == [1, 2]


@on_a_loop
async def test_a_handler_that_fails_after_its_delivery_went_elsewhere_changes_nothing(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()
    go = asyncio.Event()

    @app.group_listener("orders", group="billing", concurrency=2, consume_timeout_s=1, delays="1s")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            await go.wait()
            raise Reject("too late to say so")

    async with app:
        await put(app.publisher, [b"x"])
        await calls.reach(1)
        await pass_time(leveret_clock, 1)
        await group.until_back()
        await pass_time(leveret_clock, 1)
        await group.until_done()
        go.set()
        await group.until(lambda state: state.stale_acks == 1, "the late verdict was seen")
        assert connection_of(app).sessions == 1
    assert calls == [1, 2]
    assert await dead_letters(leveret_broker.url) == []


@on_a_loop
async def test_a_handler_that_fails_after_its_connection_was_lost_is_not_sent_back_twice(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    watch = Watch()
    app, group = application(leveret_broker.url, hooks=watch), Watched(leveret_broker)
    calls, go = Notes(), asyncio.Event()

    @app.group_listener("orders", group="billing", concurrency=2)
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt == 1:
            await go.wait()
            raise ValueError("too late")

    async with app:
        await put(app.publisher, [b"x"])
        await calls.reach(1)
        cut(app)
        await group.until_done()
        go.set()
        await watch.event("stale")
    assert calls == [1, 2]


# the end of it


@on_a_loop
async def test_after_the_last_attempt_it_is_a_dead_letter_with_its_error_and_progress_goes_on(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", max_reconsume=2, delays="1s 2s")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise ValueError(f"no {delivery.attempt}")

    async with app:
        await put(app.publisher, [b"bad"], headers={"region": "eu"})
        await come_again(leveret_clock, group, calls, [1, 2])
        await group.until_done()
        assert group.partition(lambda partition: partition.watermark) == 1
    ((body, headers),) = await dead_letters(leveret_broker.url)
    assert calls == [1, 2, 3]
    assert (body, headers["region"], headers["x-first-death-reason"]) == (b"bad", "eu", "delivery_limit")
    assert (headers["x-group"], headers["x-stream"], headers["x-stream-offset"]) == ("billing", "orders-0", 0)
    assert (headers["x-attempts"], headers["x-error"]) == (3, "ValueError('no 3')")


@pytest.mark.parametrize("how", ["decision", "conversion", "policy", "by hand"])
@on_a_loop
async def test_what_is_not_worth_another_try_is_a_dead_letter_at_once_and_says_why(
    leveret_broker: Broker, how: str
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()
    options: dict[str, Any] = {"retry": Retry.never()} if how == "policy" else {}

    @app.group_listener("orders", group="billing", ack="manual" if how == "by hand" else "auto", **options)
    async def take(body: int, delivery: Delivery) -> None:
        calls.append(body)
        if how == "by hand":
            await delivery.reject()
        raise Reject("no such customer") if how == "decision" else ValueError("no")

    async with app:
        await put(app.publisher, ["seven" if how == "conversion" else 7], content_type="application/json")
        await group.until_done()
    ((_, headers),) = await dead_letters(leveret_broker.url)
    assert headers["x-first-death-reason"] == "rejected"
    assert (len(calls), headers["x-attempts"]) == (0 if how == "conversion" else 1, 1)
    wanted = {
        "decision": "Reject('no such customer')",
        "conversion": "ConversionError(",
        "policy": "ValueError('no')",
        "by hand": "rejected by its member",
    }
    assert headers["x-error"].startswith(wanted[how])


@pytest.mark.parametrize("retry", [None, Retry(50, initial_s=1, multiplier=1, jitter=0)])
@on_a_loop
async def test_a_recoverer_has_the_last_attempt_before_the_broker_gives_up(
    leveret_broker: Broker, leveret_clock: VirtualClock, retry: Retry | None
) -> None:
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener(
        "orders", group="billing", max_reconsume=2, delays="1s", retry=retry, recoverer=Park()
    )
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise ValueError("no")

    async with app:
        await put(app.publisher, [b"bad"])
        await come_again(leveret_clock, group, calls, [1, 1])
        await group.until_done()
    assert calls == [1, 2, 3]
    assert await dead_letters(leveret_broker.url) == []
    ((body, said),) = await taken(leveret_broker.url, "billing.parked")
    headers = said["headers"]
    assert (body, headers["x-failed-attempts"], headers["x-original-queue"]) == (b"bad", 3, "orders-0")
    assert (headers["x-stream"], headers["x-stream-offset"]) == ("orders-0", 0)


@on_a_loop
async def test_where_nobody_has_set_a_limit_a_recoverer_counts_on_the_groups_sixteen(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, calls = (
        application(leveret_broker.url, recoverer=Park("aside")),
        Watched(leveret_broker),
        Notes(),
    )

    @app.group_listener("orders", group="billing", delays="1s")
    async def take(delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise ValueError("no")

    async with app:
        await put(app.publisher, [b"bad"])
        await come_again(leveret_clock, group, calls, [1] * 16)
        await group.until_done()
    assert calls == list(range(1, 18))
    assert [body for body, _ in await taken(leveret_broker.url, "aside")] == [b"bad"]


class Broken:
    async def recover(self, failure: Failure) -> Decision:
        raise OSError("no room")


@pytest.mark.parametrize(("recoverer", "wanted"), [(ImmediateRequeue(), "ValueError"), (Broken(), "OSError")])
@on_a_loop
async def test_a_recoverer_that_gives_it_back_at_the_last_attempt_makes_it_a_dead_letter(
    leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch, recoverer: Any, wanted: str
) -> None:
    monkeypatch.setattr(failures, "_PAUSE_S", 0.01)
    app, group = application(leveret_broker.url), Watched(leveret_broker)

    @app.group_listener("orders", group="billing", max_reconsume=0, recoverer=recoverer)
    async def take(body: bytes) -> None:
        raise ValueError("no")

    async with app:
        await put(app.publisher, [b"bad"])
        await group.until_done()
    ((_, headers),) = await dead_letters(leveret_broker.url)
    assert headers["x-first-death-reason"] == "delivery_limit"
    assert headers["x-error"].startswith(wanted)


@on_a_loop
async def test_the_tries_of_a_dead_letter_are_not_those_of_whoever_looks_after_them(
    leveret_broker: Broker,
) -> None:
    app, calls = application(leveret_broker.url), Notes()

    @app.group_listener("orders", group="billing", max_reconsume=2, delays=[0])
    async def take(body: bytes) -> None:
        raise ValueError("no")

    async with app:
        await put(app.publisher, [b"bad"])
        await asyncio.to_thread(leveret_broker.wait_until_depth, "%DLQ%billing", 1)
    looking = application(leveret_broker.url)

    @looking.listener("%DLQ%billing", retry=Retry(2, initial_s=0.01))
    async def look(delivery: Delivery) -> None:
        calls.append((delivery.attempt, delivery.redelivered, delivery.partition, delivery.offset))
        if delivery.attempt == 1:
            raise ValueError("once more")

    async with looking:
        await until_true(lambda: looking.listeners[0].counters.acked == 1, "it is done")
    assert calls == [(1, False, "orders-0", 0), (2, True, "orders-0", 0)]


@on_a_loop
async def test_a_dead_letter_that_is_moved_to_a_queue_forgets_the_group(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url)

    @app.group_listener("orders", group="billing", max_reconsume=0)
    async def take(body: bytes) -> None:
        raise ValueError("no")

    async with app, Connection(leveret_broker.url, topology=Topology(Queue("elsewhere"))) as connection:
        await put(app.publisher, [b"bad"], headers={"region": "eu"})
        await asyncio.to_thread(leveret_broker.wait_until_depth, "%DLQ%billing", 1)
        assert (await redrive(connection, "%DLQ%billing", to="elsewhere")).moved == 1
    ((_, said),) = await taken(leveret_broker.url, "elsewhere")
    assert {name for name in said["headers"] if name not in ("x-producer", "x-seq")} == {"region"}


@on_a_loop
async def test_what_was_parked_goes_back_to_its_partition_without_the_traces_of_its_failure(
    leveret_broker: Broker,
) -> None:
    app, calls = application(leveret_broker.url, partitions=2), Notes()

    @app.group_listener("orders", group="billing", retry=Retry.never(), recoverer=Park())
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.partition, delivery.offset, dict(delivery.headers)))
        if len(calls) == 1:
            raise ValueError("once")

    async with app:
        await put(app.publisher, [b"x"], into=1, headers={"region": "eu"})
        await until_ready(leveret_broker.url, "billing.parked", 1)
        async with Connection(leveret_broker.url, backoff=QUICK) as connection:
            assert (await redrive(connection, "billing.parked")).moved == 1
        await calls.reach(2)
    assert [(where, offset) for where, offset, _ in calls] == [("orders-1", 0), ("orders-1", 1)]
    left = {
        name: value for name, value in calls[1][2].items() if not name.startswith(("x-producer", "x-seq"))
    }
    assert left == {"region": "eu", "x-stream": "orders-1", "x-stream-offset": 1}
