"""Group listeners end to end: who gets what, once; members that come, go and are lost; groups told apart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from leveret.client import (
    App,
    Batch,
    BlockingConnection,
    ClientError,
    Delivery,
    MemorySeen,
    Message,
    Topology,
    partition,
    topic,
)
from leveret.client.session import Session
from leveret.testing.broker import Broker
from leveret.testing.clock import START_US, VirtualClock
from tests.client.grouping import Watched, application, pass_time, put
from tests.client.listening import Notes, Watch, cut, on_a_loop, until_true
from tests.rabbitmq.node import RabbitMQ

Fresh = Callable[..., str]
HUNDRED = [b"%d" % number for number in range(100)]


# progress


@on_a_loop
async def test_a_return_is_progress_and_a_delivery_says_where_it_is(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url, partitions=3), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing", concurrency=20)
    async def take(body: bytes, delivery: Delivery) -> None:
        calls.append((delivery.partition, delivery.offset, delivery.attempt, body))

    async with app:
        for number in range(3):
            await put(app.publisher, HUNDRED, into=number)
        await calls.reach(300)
        await group.until_done()
    wanted = [(f"orders-{number}", offset, 1, b"%d" % offset) for number in range(3) for offset in range(100)]
    assert sorted(calls) == sorted(wanted)
    assert [group.partition(lambda partition: partition.watermark, number) for number in range(3)] == [
        100,
        100,
        100,
    ]


@on_a_loop
async def test_messages_of_one_key_are_in_one_partition_in_their_order(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url, partitions=4)
    calls = Notes()

    @app.group_listener("orders", group="billing")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.routing_key, delivery.partition, delivery.body))

    async with app:
        keys = [f"customer-{number % 10}" for number in range(100)]
        messages = [Message(body, key, "orders") for body, key in zip(HUNDRED, keys, strict=True)]
        for receipt in await app.publisher.publish_many(messages):
            receipt.check()
        await calls.reach(100)
    assert len({(key, where) for key, where, _ in calls}) == 10
    for key in set(keys):
        assert [body for at, _, body in calls if at == key] == [
            body for body, of in zip(HUNDRED, keys, strict=True) if of == key
        ]


@on_a_loop
async def test_a_stream_has_groups_as_a_topic_does(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url, partitions=2)
    calls = Notes()

    @app.group_listener(partition("orders", 1), group="billing")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.partition, delivery.body))

    async with app:
        await put(app.publisher, [b"elsewhere"])
        await put(app.publisher, [b"here"], into=1)
        await calls.reach(1)
        await Watched(leveret_broker, "orders-1").until_done()
    assert calls == [("orders-1", b"here")]


@on_a_loop
async def test_each_group_gets_everything(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url)
    calls = {"billing": Notes(), "shipping": Notes()}
    for name, notes in calls.items():

        @app.group_listener("orders", group=name, concurrency=3)
        async def take(body: bytes, notes: Notes = notes) -> None:
            notes.append(body)

    async with app:
        await put(app.publisher, HUNDRED)
        for notes in calls.values():
            await notes.reach(100)
        assert {(listener.queue, listener.group) for listener in app.health().listeners} == {
            ("orders", "billing"),
            ("orders", "shipping"),
        }
    assert [sorted(notes) for notes in calls.values()] == [sorted(HUNDRED)] * 2


# all kinds of handlers


@on_a_loop
async def test_a_plain_function_runs_in_threads(leveret_broker: Broker) -> None:
    app = application(leveret_broker.url)
    calls = Notes()

    @app.group_listener("orders", group="billing", concurrency=4)
    def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await put(app.publisher, HUNDRED)
        await calls.reach(100)
        await Watched(leveret_broker).until_done()
    assert sorted(calls) == sorted(HUNDRED)


@on_a_loop
async def test_with_manual_acks_progress_is_what_the_handler_says(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)
    deliveries = Notes()

    @app.group_listener("orders", group="billing", ack="manual")
    async def take(delivery: Delivery) -> None:
        deliveries.append(delivery)

    async with app:
        await put(app.publisher, HUNDRED[:3])
        await deliveries.reach(3)
        await deliveries[2].ack()
        await group.until(lambda state: state.lag == 2, "one is settled")
        assert group.partition(lambda partition: partition.watermark) == 0
        await deliveries[0].ack()
        await deliveries[1].ack()
        await group.until_done()
    assert group.partition(lambda partition: partition.watermark) == 3


@on_a_loop
async def test_a_batch_of_a_group_is_settled_one_by_one(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url, partitions=2), Watched(leveret_broker)
    sizes = Notes()

    @app.group_listener("orders", group="billing", batch=Batch(10, 5.0), delays="1h")
    async def take(bodies: list[bytes]) -> list[Any]:
        sizes.append(len(bodies))
        return [ValueError("seven") if body == b"7" else None for body in bodies]

    async with app:
        await put(app.publisher, HUNDRED[:10])
        await put(app.publisher, HUNDRED[10:20], into=1)
        await sizes.reach(2)
        await group.until(lambda state: state.lag == 1, "all but one are settled")
    assert sizes == [10, 10]
    assert group.partition(lambda partition: partition.cursor.progress.reasons) == {7: b"ValueError('seven')"}


@on_a_loop
async def test_what_was_processed_before_is_progress_without_a_call(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing", idempotence=MemorySeen())
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await put(app.publisher, [b"once"], message_id="m1")
        await calls.reach(1)
        await put(app.publisher, [b"again"], message_id="m1")
        await group.until(lambda state: state.partitions["orders-0"].watermark == 2, "both are settled")
        assert app.listeners[0].counters.duplicates == 1
    assert calls == [b"once"]


@on_a_loop
async def test_a_loop_that_blocks_can_be_a_member_too(leveret_broker: Broker) -> None:
    def work() -> list[bytes]:
        found = []
        with BlockingConnection(
            leveret_broker.url, topology=Topology(topic("orders", partitions=2))
        ) as connection:
            with connection.publisher() as publisher:
                publisher.publish(b"x", partition("orders", 1)).check()
            for delivery in connection.consume("orders", limit=1, arguments={"x-group": "billing"}):
                found.append((delivery.partition, delivery.offset, delivery.body))
                delivery.ack()
        return found

    assert await asyncio.to_thread(work) == [("orders-1", 0, b"x")]
    await Watched(leveret_broker).until_done()


# members


@on_a_loop
async def test_two_members_share_the_work_and_no_message_comes_twice(leveret_broker: Broker) -> None:
    apps = [application(leveret_broker.url, partitions=2) for _ in range(2)]
    group, both = Watched(leveret_broker), asyncio.Event()
    calls = Notes()
    for number, app in enumerate(apps):

        @app.group_listener("orders", group="billing", concurrency=5)
        async def take(body: bytes, member: int = number) -> None:
            calls.append((member, body))
            await both.wait()

    async with apps[0], apps[1]:
        await group.until(lambda state: len(state.members) == 2, "both are members")
        await put(apps[0].publisher, HUNDRED)
        await calls.until(lambda notes: {who for who, _ in notes} == {0, 1}, "work for both")
        both.set()
        await calls.reach(100)
        await group.until_done()
    assert sorted(body for _, body in calls) == sorted(HUNDRED)


@on_a_loop
async def test_what_a_lost_member_had_comes_to_another_at_once_and_its_late_ack_does_nothing(
    leveret_broker: Broker,
) -> None:
    watch, group, go = Watch(), Watched(leveret_broker), asyncio.Event()
    lost, other = application(leveret_broker.url, hooks=watch), application(leveret_broker.url)
    calls = Notes()

    @lost.group_listener("orders", group="billing")
    async def begin(delivery: Delivery) -> None:
        calls.append(("lost", delivery.offset, delivery.attempt))
        await go.wait()

    @other.group_listener("orders", group="billing")
    async def take(delivery: Delivery) -> None:
        calls.append(("other", delivery.offset, delivery.attempt))

    async with lost:
        await put(lost.publisher, [b"x"])
        await calls.reach(1)
        async with other:
            await group.until(lambda state: len(state.members) == 2, "both are members")
            cut(lost)
            await calls.reach(2)
            if calls[1][0] == "lost":  # it was back before the other's turn came
                go.set()
            await group.until_done()
            go.set()
            await watch.event("stale")
            await group.until(lambda state: len(state.members) == 2, "the lost one is a member again")
    assert calls[0] == ("lost", 0, 1)
    assert calls[1][1:] == (0, 2)
    assert group.partition(lambda partition: partition.watermark) == 1


@pytest.mark.parametrize("end", ["restart", "crash"])
@on_a_loop
async def test_a_member_joins_again_when_the_broker_is_back_and_nothing_settled_comes_again(
    leveret_broker: Broker, end: str
) -> None:
    app, group = application(leveret_broker.url, partitions=2), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing", concurrency=3)
    async def take(body: bytes) -> None:
        calls.append(body)

    def stored() -> bool:
        return not leveret_broker.server.broker.store.unsynced_bytes

    def go_and_come_back() -> None:
        leveret_broker.wait_until(stored, "the acks are stored")
        if end == "restart":
            leveret_broker.restart()
        else:
            leveret_broker.crash(None)
            leveret_broker.start()

    async with app:
        await put(app.publisher, HUNDRED[:50])
        await calls.reach(50)
        await group.until_done()
        await asyncio.to_thread(go_and_come_back)
        await until_true(lambda: app.health().ok, "it is back")
        await put(app.publisher, HUNDRED[50:], into=1)
        await calls.reach(100)
        await group.until_done()
    assert sorted(calls) == sorted(HUNDRED)


@on_a_loop
async def test_at_the_end_what_is_begun_is_finished_and_the_rest_is_untouched(leveret_broker: Broker) -> None:
    first, second = application(leveret_broker.url), application(leveret_broker.url)
    group, go = Watched(leveret_broker), asyncio.Event()
    begun, calls = Notes(), Notes()

    @first.group_listener("orders", group="billing", concurrency=2)
    async def begin(body: bytes) -> None:
        begun.append(body)
        await go.wait()

    @second.group_listener("orders", group="billing")
    async def take(delivery: Delivery) -> None:
        calls.append((delivery.body, delivery.attempt))

    async with first:
        await put(first.publisher, HUNDRED[:8])
        await group.until(lambda state: state.in_flight == 8, "all are delivered")
        await begun.reach(2)
        stopping = asyncio.ensure_future(first.stop())
        await group.until(lambda state: state.in_flight == 2, "what waited is given back")
        assert not group.see(lambda state: state.members)
        go.set()
        await stopping
    assert group.see(lambda state: state.lag) == 6
    async with second:
        await calls.reach(6)
        await group.until_done()
    assert begun == HUNDRED[:2]
    assert sorted(calls) == [(body, 1) for body in HUNDRED[2:8]]


# what is set, and by whom


@on_a_loop
async def test_what_a_listener_gives_holds_for_the_group_and_the_rest_is_the_operators(
    leveret_broker: Broker,
) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)

    @app.group_listener(
        "orders", group="billing", max_span=500, consume_timeout_s=1.5, max_reconsume=3, delays=(0.5, 10)
    )
    async def take(body: bytes) -> None: ...

    async with app:
        await group.until(lambda state: bool(state.members), "it has joined")
        settings = group.see(lambda state: state.settings)
        assert (settings.mode, settings.max_span, settings.consume_timeout_ms) == ("concurrent", 500, 1500)
        assert (settings.max_reconsume, settings.delays_ms, settings.first_level) == (3, (500, 10_000), 1)
        assert group.see(lambda state: [member.prefetch for member in state.members]) == [10]

    other = application(leveret_broker.url)

    @other.group_listener("orders", group="billing", concurrency=20, first_level=2)
    async def go_on(body: bytes) -> None: ...

    async with other:
        await group.until(lambda state: bool(state.members), "the other has joined")
        assert group.see(lambda state: state.settings.max_span) == 500
        assert group.see(lambda state: state.settings.first_level) == 2
        assert group.see(lambda state: [member.prefetch for member in state.members]) == [40]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("first", [b"0", b"1", b"2", b"3"]),
        ("last", [b"3"]),
        (2, [b"2", b"3"]),
        (datetime.fromtimestamp(START_US // 1_000_000 + 3600, UTC), [b"2", b"3"]),
        ("90m", [b"2", b"3"]),
    ],
)
@on_a_loop
async def test_a_new_group_begins_where_it_is_told_to(
    leveret_broker: Broker, leveret_clock: VirtualClock, start: Any, wanted: list[bytes]
) -> None:
    filling = application(leveret_broker.url)
    async with filling:
        await put(filling.publisher, [b"0", b"1"])
        await pass_time(leveret_clock, 7200)
        await put(filling.publisher, [b"2"])
    app, group, calls = application(leveret_broker.url), Watched(leveret_broker), Notes()

    @app.group_listener("orders", group="billing", start=start)
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await group.until(lambda state: bool(state.members), "it has joined")
        await put(app.publisher, [b"3"])
        await calls.reach(len(wanted))
        await group.until_done()
    assert sorted(calls) == wanted


@on_a_loop
async def test_a_paused_group_is_sent_nothing_until_it_goes_on(leveret_broker: Broker) -> None:
    app, group = application(leveret_broker.url), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await put(app.publisher, HUNDRED[:1])
        await group.until_done()
        await asyncio.to_thread(group.change, paused=True)
        await put(app.publisher, HUNDRED[1:10])
        assert app.health().ok
        assert (group.see(lambda state: state.in_flight), group.see(lambda state: state.lag)) == (0, 9)
        await asyncio.to_thread(group.change, paused=False)
        await put(app.publisher, HUNDRED[10:11])
        await calls.reach(11)
    assert sorted(calls) == sorted(HUNDRED[:11])


# what can't be


@on_a_loop
async def test_a_topic_that_is_not_there_yet_is_waited_for(leveret_broker: Broker) -> None:
    watch = Watch()
    app, calls = App(leveret_broker.url, hooks=watch), Notes()

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        fields = await watch.event("not_consuming")
        assert "no stream or topic 'orders'" in fields["error"]
        async with application(leveret_broker.url) as other:
            await put(other.publisher, [b"x"])
            await calls.reach(1)
        assert app.health().ok


@on_a_loop
async def test_another_mode_than_the_groups_is_refused_and_said(leveret_broker: Broker) -> None:
    watch = Watch()
    first, second = application(leveret_broker.url), application(leveret_broker.url, hooks=watch)

    @first.group_listener("orders", group="billing")
    async def take(body: bytes) -> None: ...

    @second.group_listener("orders", group="billing", mode="orderly")
    async def take_in_order(body: bytes) -> None: ...

    async with first:
        await Watched(leveret_broker).until(lambda state: bool(state.members), "the first has joined")
        async with second:
            assert "is concurrent" in (await watch.event("not_consuming"))["error"]
            assert not second.health().ok
            (listener,) = second.health().listeners
            assert "no members" in str(listener.error)


@pytest.mark.needs_rabbitmq
@on_a_loop
async def test_a_broker_without_groups_is_an_error_at_the_start_that_names_it(
    rabbitmq: RabbitMQ, fresh: Fresh
) -> None:
    app = App(rabbitmq.url)

    @app.group_listener(fresh(), group="billing")
    async def take(body: bytes) -> None: ...

    with pytest.raises(ClientError, match=r"^RabbitMQ 3\.\S+ at .* has no consumer groups.*need Leveret"):
        await app.start()
    assert not app.health().connected


@on_a_loop
async def test_a_member_that_is_connected_to_a_broker_without_groups_consumes_nothing_there(
    leveret_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second of two hosts may be another broker: it would take no notice of the group."""
    watch = Watch()
    app, group = application(leveret_broker.url, hooks=watch), Watched(leveret_broker)
    calls = Notes()

    @app.group_listener("orders", group="billing")
    async def take(body: bytes) -> None:
        calls.append(body)

    async with app:
        await group.until(lambda state: bool(state.members), "it has joined")
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            can = Session.has
            patched.setattr(Session, "has", lambda self, what: what != "consumer_groups" and can(self, what))
            cut(app)
            assert "has no consumer groups" in (await watch.event("not_consuming"))["error"]
            await put(app.publisher, [b"x"])
            assert not group.see(lambda state: state.members)
            assert not calls
        await calls.reach(1)
    assert calls == [b"x"]
