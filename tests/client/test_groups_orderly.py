"""Orderly mode: of a partition one message at a time, in order, whatever happens to the one before."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from leveret.client import Batch, Delivery, Reject, RetryLater
from leveret.client.membership import Mode
from leveret.client.partition_order import Lanes
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.grouping import Watched, application, pass_time, put
from tests.client.listening import WAIT_S, Notes, Watch, cut, on_a_loop, until_true

TWENTY = [b"%d" % number for number in range(20)]


@on_a_loop
async def test_a_partition_is_processed_in_order_and_several_at_once(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url, partitions=6), Watched(leveret_broker)
    calls, running, most, go = Notes(), Counter[Any](), Counter[str](), asyncio.Event()

    @app.group_listener("orders", group="billing", mode="orderly", concurrency=4)
    async def take(delivery: Delivery) -> None:
        where = delivery.partition
        running[where] += 1
        most["of one"] = max(most["of one"], running[where])
        most["at once"] = max(most["at once"], running.total())
        await go.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        running[where] -= 1
        calls.append((where, delivery.offset))

    async with app:
        for number in range(6):
            await put(app.publisher, TWENTY, into=number)
        await until_true(lambda: running.total() == 4, "four are in hand")
        go.set()
        await calls.reach(120)
        await group.until_done()
    for number in range(6):
        assert [at for where, at in calls if where == f"orders-{number}"] == list(range(20))
    assert most == {"of one": 1, "at once": 4}


@on_a_loop
async def test_a_failure_holds_up_its_own_partition_alone(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group = application(leveret_broker.url, partitions=2), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing", mode="orderly", concurrency=2, delays="30s 60s")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.partition, delivery.offset, delivery.attempt))
        if delivery.partition == "orders-0" and delivery.offset == 1 and delivery.attempt < 3:
            raise ValueError("not yet")

    async with app:
        await put(app.publisher, TWENTY[:3])
        await group.until_back()
        await put(app.publisher, TWENTY[:3], into=1)
        await calls.reach(5)
        await pass_time(leveret_clock, 29)
        assert len(calls) == 5
        await pass_time(leveret_clock, 1)
        await calls.reach(6)
        await group.until_back()
        await pass_time(leveret_clock, 60)
        await calls.reach(8)
        await group.until_done()
    assert [call[1:] for call in calls if call[0] == "orders-0"] == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]
    assert [call[1:] for call in calls if call[0] == "orders-1"] == [(0, 1), (1, 1), (2, 1)]


@on_a_loop
async def test_one_that_is_rejected_or_put_off_by_its_handler_keeps_the_order(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing", mode="orderly")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.offset, delivery.attempt))
        if delivery.offset == 0:
            raise Reject("never")
        if delivery.offset == 1 and delivery.attempt == 1:
            raise RetryLater(5)

    async with app:
        await put(app.publisher, TWENTY[:3])
        await group.until_back()
        await pass_time(leveret_clock, 5)
        await group.until_done()
        await asyncio.to_thread(leveret_broker.wait_until_depth, "%DLQ%billing", 1)
    assert calls == [(0, 1), (1, 1), (1, 2), (2, 1)]


async def has_been_orderly(broker: Broker, *, partitions: int = 1) -> None:
    """A member has made the group what it is, and has left."""
    app = application(broker.url, partitions=partitions)

    @app.group_listener("orders", group="billing", mode="orderly")
    async def take(delivery: Delivery) -> None:
        """Nothing has been published."""

    async with app:
        await Watched(broker).until(lambda state: bool(state.members), "it has joined")


by_member_or_group = pytest.mark.parametrize("mode", ["orderly", None], ids=["member says", "group says"])


@by_member_or_group
@on_a_loop
async def test_after_a_lost_connection_a_partition_waits_for_the_handler_that_still_runs(
    leveret_broker: Broker, mode: Mode | None
) -> None:
    await has_been_orderly(leveret_broker, partitions=2)
    watch, group, go = Watch(), Watched(leveret_broker), asyncio.Event()
    app = application(leveret_broker.url, partitions=2, hooks=watch)
    calls = Notes()

    @app.group_listener("orders", group="billing", mode=mode, concurrency=4)
    async def take(delivery: Delivery) -> None:
        name = (delivery.partition, delivery.offset, delivery.attempt)
        calls.append(("begins", *name))
        if delivery.attempt == 1 and delivery.partition == "orders-0" and delivery.offset == 0:
            await go.wait()
        calls.append(("ends", *name))

    async with app:
        await put(app.publisher, TWENTY[:2])
        await calls.reach(1)
        cut(app)
        await group.until(lambda state: state.in_flight == 1 and bool(state.members), "it is delivered again")
        await put(app.publisher, TWENTY[:1], into=1)
        await calls.reach(3)  # the other partition goes on
        assert [call for call in calls if call[1] == "orders-0"] == [("begins", "orders-0", 0, 1)]
        assert app.health().listeners[0].waiting == 1
        go.set()
        await calls.reach(8)
        await group.until_done()
        await watch.event("stale")
    assert [call for call in calls if call[1] == "orders-0"] == [
        ("begins", "orders-0", 0, 1),
        ("ends", "orders-0", 0, 1),
        ("begins", "orders-0", 0, 2),
        ("ends", "orders-0", 0, 2),
        ("begins", "orders-0", 1, 1),
        ("ends", "orders-0", 1, 1),
    ]


@on_a_loop
async def test_what_waited_for_a_worker_when_the_connection_was_lost_does_not_hold_up_its_partition(
    leveret_broker: Broker,
) -> None:
    app, group, go = application(leveret_broker.url, partitions=2), Watched(leveret_broker), asyncio.Event()
    calls = Notes()

    @app.group_listener("orders", group="billing", mode="orderly", concurrency=1)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.partition, delivery.attempt))
        if delivery.partition == "orders-0":
            await go.wait()

    async with app:
        await put(app.publisher, TWENTY[:1])
        await calls.reach(1)
        await put(app.publisher, TWENTY[:1], into=1)
        await group.until(lambda state: state.in_flight == 2, "both are delivered")
        await until_true(lambda: app.health().listeners[0].waiting == 1, "the second waits for the worker")
        cut(app)
        await group.until(lambda state: state.in_flight == 2 and bool(state.members), "both are back")
        go.set()
        await group.until_done()
    assert sorted(calls) == [("orders-0", 1), ("orders-0", 2), ("orders-1", 1)]


@by_member_or_group
@on_a_loop
async def test_after_a_seek_a_partition_waits_for_the_handler_that_still_runs(
    leveret_broker: Broker, mode: Mode | None
) -> None:
    await has_been_orderly(leveret_broker)
    app, group, go = application(leveret_broker.url), Watched(leveret_broker), asyncio.Event()
    calls = Notes()

    @app.group_listener("orders", group="billing", mode=mode, concurrency=4)
    async def take(delivery: Delivery) -> None:
        calls.append(("begins", delivery.offset))
        if delivery.offset == 0:
            await go.wait()
        calls.append(("ends", delivery.offset))

    async with app:
        await put(app.publisher, TWENTY[:4])
        await calls.reach(1)
        await asyncio.to_thread(
            group.act, lambda state: state.partitions["orders-0"].seek(2, who=b"test", why=b"a test")
        )
        await group.until(lambda state: state.in_flight == 1, "the next one is delivered")
        await put(app.publisher, TWENTY[:1])
        assert calls == [("begins", 0)]
        go.set()
        await calls.reach(8)
        await group.until_done()
        assert group.see(lambda state: state.stale_acks) == 1
    assert calls[1:4] == [("ends", 0), ("begins", 2), ("ends", 2)]


@on_a_loop
async def test_batches_of_an_orderly_group_wait_for_the_batch_that_still_runs(leveret_broker: Broker) -> None:
    await has_been_orderly(leveret_broker)
    app, group, go = application(leveret_broker.url), Watched(leveret_broker), asyncio.Event()
    calls = Notes()

    @app.group_listener("orders", group="billing", concurrency=4, batch=Batch(2, 0))
    async def take(deliveries: list[Delivery]) -> None:
        offsets = [(delivery.offset, delivery.attempt) for delivery in deliveries]
        calls.append(("begins", *offsets))
        if offsets == [(0, 1)]:
            await go.wait()
        calls.append(("ends", *offsets))

    async with app:
        await put(app.publisher, TWENTY[:1])
        await calls.reach(1)
        cut(app)
        await group.until(lambda state: state.in_flight == 1 and bool(state.members), "it is delivered again")
        await until_true(lambda: app.health().listeners[0].waiting == 1, "and waits")
        await put(app.publisher, TWENTY[:1])  # as long as a batch would have taken to begin, and longer
        assert calls == [("begins", (0, 1))]
        go.set()
        await calls.reach(6)
        await group.until_done()
    assert calls[1:] == [
        ("ends", (0, 1)),
        ("begins", (0, 2)),
        ("ends", (0, 2)),
        ("begins", (1, 1)),
        ("ends", (1, 1)),
    ]


@on_a_loop
async def test_a_thread_that_does_not_end_by_its_deadline_is_waited_for_before_the_next_try(
    leveret_broker: Broker, leveret_clock: VirtualClock
) -> None:
    app, group, go = application(leveret_broker.url), Watched(leveret_broker), threading.Event()
    calls = Notes()

    @app.group_listener("orders", group="billing", mode="orderly", concurrency=4, timeout_s=2, delays="1s")
    def take(delivery: Delivery) -> None:
        calls.append(("begins", delivery.attempt))
        if delivery.attempt == 1:
            assert go.wait(WAIT_S)
        calls.append(("ends", delivery.attempt))

    async with app:
        await put(app.publisher, TWENTY[:1])
        await group.until_back()
        assert b"did not finish in 2 s" in group.partition(
            lambda partition: partition.cursor.progress.reasons[0]
        )
        await pass_time(leveret_clock, 1)
        await group.until(lambda state: state.in_flight == 1, "it is delivered again")
        assert calls == [("begins", 1)]
        go.set()
        await group.until_done()
    assert calls == [("begins", 1), ("ends", 1), ("begins", 2), ("ends", 2)]


@on_a_loop
async def test_partitions_move_to_a_member_that_comes_and_back_when_it_goes(leveret_broker: Broker) -> None:
    first, second = (application(leveret_broker.url, partitions=4) for _ in range(2))
    group, calls = Watched(leveret_broker), Notes()
    for name, app in (("first", first), ("second", second)):

        @app.group_listener("orders", group="billing", mode="orderly", concurrency=4)
        async def take(delivery: Delivery, member: str = name) -> None:
            calls.append((delivery.partition, delivery.offset, member))

    def owners(count: int) -> Any:
        return lambda state: len({partition.owner for partition in state.partitions.values()}) == count

    async def put_everywhere() -> None:
        for number in range(4):
            await put(first.publisher, TWENTY[:5], into=number)

    async with first:
        await group.until(owners(1), "the first has all partitions")
        async with second:
            await group.until(owners(2), "they share them")
            await put_everywhere()
            await group.until_done()
            assert Counter(member for _, _, member in calls) == {"first": 10, "second": 10}
        await put_everywhere()
        await group.until_done()
    assert Counter(member for _, _, member in calls[20:]) == {"first": 20}
    for number in range(4):
        assert [at for where, at, _ in calls if where == f"orders-{number}"] == list(range(10))


@on_a_loop
async def test_at_the_end_what_waits_in_its_lane_is_given_back_untouched(leveret_broker: Broker) -> None:
    app, group, go = application(leveret_broker.url), Watched(leveret_broker), asyncio.Event()
    calls = Notes()

    @app.group_listener("orders", group="billing", mode="orderly", concurrency=4)
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.offset, delivery.attempt))
        await go.wait()

    async with app:
        await put(app.publisher, TWENTY[:1])
        await calls.reach(1)
        cut(app)
        await group.until(lambda state: state.in_flight == 1 and bool(state.members), "it is delivered again")
        await put(app.publisher, TWENTY[1:2])
        stopping = asyncio.ensure_future(app.stop())
        await group.until(lambda state: not state.in_flight, "it is given back")
        go.set()
        await stopping
    assert calls == [(0, 1)]
    assert group.partition(lambda partition: partition.cursor.progress.counts) == {
        0: 1
    }  # of the lost connection


# lanes by themselves


class Fake:
    """Of a delivery, what a lane looks at."""

    def __init__(self, partition: str | None, number: int) -> None:
        self.partition = partition
        self.number = number
        self.is_in_order = partition is not None


def test_of_each_partition_one_may_begin_and_the_next_when_it_is_done() -> None:
    lanes: Any = Lanes()
    a0, a1, a2, b0 = Fake("a", 0), Fake("a", 1), Fake("a", 2), Fake("b", 0)
    assert lanes.enter([a0, a1, b0, a2]) == [a0, b0]
    assert len(lanes) == 2
    assert lanes.leave(b0) == ()
    assert lanes.enter([b0]) == [b0]
    assert list(lanes.leave(a0)) == [a1]
    assert list(lanes.leave(a1)) == [a2]
    assert (lanes.leave(a2), len(lanes)) == ((), 0)
    assert lanes.enter([a0]) == [a0]


def test_what_waits_is_taken_out_at_the_end_and_nothing_follows() -> None:
    lanes: Any = Lanes()
    a0, a1, none = Fake("a", 0), Fake("a", 1), Fake(None, 0)
    assert lanes.enter([a0, a1, none]) == [a0, none]
    assert lanes.empty() == [a1]
    assert (lanes.leave(a0), len(lanes)) == ((), 0)
