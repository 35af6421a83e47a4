"""Ours: a queue with `x-audit-window` keeps account of its messages for so long after they are settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.definitions import Change, QueueRow
from leveret.storage.journal import Kind
from leveret.storage.store import Options
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.audit.reckoning import Reckoned, copy_disk, reckon_directory
from tests.semantics.client import Channel, Client
from tests.semantics.journals import cursor_of, entries, entries_now

WINDOW_MS = 60_000
AUDITED = {"x-audit-window": WINDOW_MS}
TINY = Options(
    wal_bytes=1 << 20, segment_bytes=1 << 10, memory_bytes=1 << 20, snapshot_bytes=100, reserve_ahead=1000
)
"""So that journals are cut soon."""


@pytest.fixture
def broker(clock: VirtualClock) -> Iterator[Broker]:
    with Broker(clock=clock, options=TINY) as broker:
        yield broker


@pytest.fixture
def declared(connect: Callable[..., Client]) -> Callable[..., Channel]:
    """`declared(**arguments)` is a channel in confirm mode, with an audited queue q."""

    def declared(**arguments: Any) -> Channel:
        channel = connect().channel().confirm_select()
        channel.declare("q", arguments={**AUDITED, **arguments})
        return channel

    return declared


@pytest.fixture
def audited(broker: Broker, tmp_path: Path) -> Callable[[], Reckoned]:
    """`audited()` is the audit of what is on the broker's disk after a checkpoint."""
    taken: list[Path] = []

    def audited() -> Reckoned:
        checkpoint(broker)
        taken.append(tmp_path / f"data-{len(taken)}")
        assert broker.disk is not None
        found = reckon_directory(copy_disk(broker.disk, taken[-1]))
        assert (found.lost, found.doubled, found.damage) == ([], [], [])
        return found

    return audited


def checkpoint(broker: Broker, times: int = 1) -> None:
    for _ in range(times):
        broker.call(broker.server.broker.store.checkpoint)


def consume_all(channel: Channel, count: int) -> None:
    for _ in range(count):
        got = channel.get("q")
        assert got is not None
        channel.ack(got.tag)
    channel.quiet()


# the arguments


@pytest.mark.parametrize(
    ("argument", "value", "wrong"),
    [
        ("x-audit-window", "a day", '"expected integer, got longstr"'),
        ("x-audit-window", 0, "{value_zero,0}"),
        ("x-audit-window", -1, "{value_negative,-1}"),
        ("x-audit-bodies", "yes", "{unacceptable_type,longstr}"),
        ("x-audit-bodies", 1, "{unacceptable_type,unsignedbyte}"),
    ],
)
def test_wrong_arguments_are_refused(
    connect: Callable[..., Client], argument: str, value: Any, wrong: str
) -> None:
    assert wrong.partition(",")[0] in connect().channel().refused_argument(argument, value)


@pytest.mark.parametrize(
    "other", [{}, {"x-audit-window": WINDOW_MS + 1}, {**AUDITED, "x-audit-bodies": True}]
)
def test_another_declaration_must_be_the_same(
    declared: Callable[..., Channel], other: dict[str, Any]
) -> None:
    channel = declared()
    channel.declare("q", arguments=AUDITED)
    channel.send(commands.Queue.Declare(queue="q", durable=True, arguments=other))
    assert channel.error().code == 406


# what is written down


def test_without_a_window_nothing_more_is_written(connect: Callable[..., Client], broker: Broker) -> None:
    channel = connect().channel().confirm_select()
    channel.declare("q")
    channel.publish_confirmed("q", "one", "two")
    channel.publish("nowhere", "lost", mandatory=True)
    channel.quiet()
    assert entries(broker, Kind.SYNCED) == []
    assert broker.call(lambda: broker.server.broker.vhosts["/"].returned_messages.log) is None


def test_what_was_confirmed_is_written_down_with_time_and_exchange(
    declared: Callable[..., Channel], broker: Broker, clock: VirtualClock
) -> None:
    channel = declared()
    channel.exchange("orders")
    channel.bind("q", "orders")
    channel.publish_confirmed("q", "one", "two")
    published_us = clock()
    clock.advance(5)
    channel.publish_confirmed("", "three", exchange="orders")
    found = [
        (each.ranges, each.not_before_us - published_us, each.why) for each in entries(broker, Kind.SYNCED)
    ]
    assert found == [([(0, 2)], 0, b""), ([(2, 3)], 5_000_000, b"orders")]


def test_of_transient_messages_nothing_is_promised_and_that_is_written_down(
    declared: Callable[..., Channel], broker: Broker, audited: Callable[[], Reckoned]
) -> None:
    channel = declared()
    with channel.client.together():
        for mode in (2, 1, 1, 2):
            channel.publish("q", "m", delivery_mode=mode)
    channel.confirmed(4)
    channel.publish_confirmed("q", "last")
    assert [(each.ranges, each.outcome) for each in entries(broker, Kind.SYNCED)] == [
        ([(0, 1)], 0),
        ([(1, 3)], 1),
        ([(3, 4)], 0),
        ([(4, 5)], 0),
    ]
    rows = audited().of("q")
    assert [row["confirmed"] is not None for row in rows.values()] == [True, False, False, True, True]
    assert [row["persistent"] for row in rows.values()] == [True, False, False, True, True]


def test_an_audit_tells_what_became_of_each(
    declared: Callable[..., Channel], audited: Callable[[], Reckoned], clock: VirtualClock
) -> None:
    channel = declared(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.declare("dead", arguments=AUDITED)
    channel.publish_confirmed("q", "acked", "requeued", "dead")
    channel.publish_confirmed("q", "old", expiration="10")
    channel.publish_confirmed("q", "held", "ready")
    tags = [channel.get("q").tag for _ in range(3)]  # type: ignore[union-attr]
    channel.ack(tags[0])
    channel.nack(tags[2], requeue=False)
    clock.advance(1)
    channel.nack(tags[1])
    channel.quiet()
    assert channel.get("q").text == "requeued"  # type: ignore[union-attr]
    found = audited()
    rows = found.of("q")
    assert [(row["state"], row["outcome"], row["why"]) for row in rows.values()] == [
        ("settled", "acked", ""),
        ("in flight", None, None),
        ("settled", "dead lettered", "rejected"),
        ("settled", "dead lettered", "expired"),
        ("ready", None, None),
        ("ready", None, None),
    ]
    assert [row["deliveries"] for row in rows.values()] == [1, 2, 1, 0, 0, 0]
    assert (rows[1]["returns"], rows[0]["done"]) == (1, 1)
    assert all(row["confirmed"] for row in rows.values())
    assert [row["state"] for row in found.of("dead").values()] == ["ready", "ready"]


def test_a_delivery_that_misses_its_deadline_is_counted_as_late(
    declared: Callable[..., Channel],
    audited: Callable[[], Reckoned],
    broker: Broker,
    clock: VirtualClock,
) -> None:
    channel = declared(**{"x-consumer-timeout": 1000, "x-consumer-timeout-action": "retry"})
    channel.publish_confirmed("q", "one")
    channel.consume("q")
    channel.next(commands.Basic.Deliver)
    clock.advance(5)
    broker.wait_until(lambda: len(entries_now(broker, Kind.RETURNED)) > 0, "it came back")
    assert entries(broker, Kind.RETURNED)[0].why == b"no answer in time"
    row = audited().of("q")[0]
    assert (row["late"], row["returns"]) == (1, 1)


# the window


def test_what_is_settled_stays_in_the_audit_for_the_window_and_goes_after_it(
    declared: Callable[..., Channel],
    audited: Callable[[], Reckoned],
    broker: Broker,
    clock: VirtualClock,
) -> None:
    channel = declared()
    channel.publish_confirmed("q", *map(str, range(30)))
    consume_all(channel, 30)
    checkpoint(broker, 3)
    clock.advance(WINDOW_MS / 1000 - 1)
    rows = audited().of("q")
    assert [row["outcome"] for row in rows.values()] == ["acked"] * 30
    assert broker.call(lambda: cursor_of(broker).log.segments) == ()
    clock.advance(2)
    channel.publish_confirmed("q", *map(str, range(30)))
    consume_all(channel, 30)
    checkpoint(broker, 3)
    clock.advance(2 * WINDOW_MS / 1000)
    assert len(audited().of("q")) < 60
    assert cursor_of(broker).journal.first > 0


def test_with_bodies_what_is_settled_stays_in_the_log_as_long(
    declared: Callable[..., Channel], audited: Callable[[], Reckoned], broker: Broker, clock: VirtualClock
) -> None:
    channel = declared(**{"x-audit-bodies": True})
    channel.publish_confirmed("q", *(f"{number} {'.' * 200}" for number in range(30)))
    consume_all(channel, 30)
    checkpoint(broker, 3)
    clock.advance(WINDOW_MS / 1000 - 1)
    rows = audited().of("q")
    assert [(row["outcome"], row["copies"]) for row in rows.values()] == [("acked", 1)] * 30
    log = cursor_of(broker).log
    assert [each.body.split()[0] for each in broker.call(lambda: log.read([(0, 30)]))] == [
        b"%d" % number for number in range(30)
    ]
    clock.advance(2)
    checkpoint(broker, 2)
    assert broker.call(lambda: log.segments) == ()


def test_a_message_that_is_held_longer_than_the_window_is_still_in_flight(
    declared: Callable[..., Channel],
    audited: Callable[[], Reckoned],
    broker: Broker,
    clock: VirtualClock,
) -> None:
    channel = declared()
    channel.publish_confirmed("q", *map(str, range(61)))
    channel.get("q")
    for _ in range(3):
        consume_all(channel, 20)
        checkpoint(broker, 2)
    clock.advance(2 * WINDOW_MS / 1000)
    checkpoint(broker, 2)
    assert cursor_of(broker).journal.first > 0
    assert audited().of("q")[0]["state"] == "in flight"


# restarts


def test_what_was_safe_and_not_written_down_yet_is_written_down_after_a_crash(
    declared: Callable[..., Channel],
    broker: Broker,
    audited: Callable[[], Reckoned],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leveret.server.turns._LAZY_SYNC_S", 3600.0)
    channel = declared()
    channel.publish_confirmed("q", "noted")
    broker.call(broker.server.broker.store.sync)
    channel.publish_confirmed("q", "one", "two")
    before = len(entries(broker, Kind.SYNCED))
    broker.crash()
    broker.start()
    after = entries(broker, Kind.SYNCED)
    assert len(after) <= before
    assert max(stop for each in after for _, stop in each.ranges) == 3
    rows = audited().of("q").values()
    assert [(row["persistent"], row["confirmed"] is None) for row in rows] == [
        (True, False),
        (True, True),  # nobody knows when
        (True, True),
    ]


def test_what_came_and_went_before_a_crash_counts_as_confirmed(
    declared: Callable[..., Channel], broker: Broker, audited: Callable[[], Reckoned]
) -> None:
    channel = declared()
    channel.publish_confirmed("q", "noted")
    broker.call(broker.server.broker.store.sync)
    channel.client.channel().consume("q", no_ack=True)
    channel.publish_confirmed("q", "gone")
    checkpoint(broker)
    broker.crash()
    broker.start()
    rows = audited().of("q")
    assert [row["confirmed"] is not None for row in rows.values()] == [True, True]
    assert [row["outcome"] for row in rows.values()] == ["acked", "acked"]


def test_after_a_restart_nothing_is_written_down_again(
    declared: Callable[..., Channel], broker: Broker
) -> None:
    channel = declared()
    channel.publish_confirmed("q", "one", "two")
    before = entries(broker, Kind.SYNCED)
    broker.restart()
    assert entries(broker, Kind.SYNCED) == before


# messages that went back


def test_returned_messages_are_counted_by_exchange_while_a_queue_is_audited(
    declared: Callable[..., Channel], audited: Callable[[], Reckoned], broker: Broker
) -> None:
    channel = declared()
    channel.exchange("orders")
    for exchange, count in (("", 2), ("orders", 3)):
        for _ in range(count):
            channel.publish("nowhere", "body", exchange=exchange, mandatory=True)
        channel.publish("nowhere", "body", exchange=exchange)
    channel.quiet()
    assert audited().returned == {"": 2, "orders": 3}
    broker.restart()
    assert audited().returned == {"": 2, "orders": 3}


def test_returned_messages_are_kept_without_bodies_and_go_with_the_last_audited_queue(
    declared: Callable[..., Channel], broker: Broker
) -> None:
    channel = declared()
    channel.publish("nowhere", "secret", mandatory=True)
    channel.quiet()
    returned = broker.server.broker.vhosts["/"].returned_messages
    assert [each.body for each in broker.call(lambda: returned.log.read([(0, 1)]))] == [b""]  # type: ignore[union-attr]
    channel.delete("q")
    assert returned.log is None


def test_returned_messages_go_with_an_audited_queue_that_a_crash_has_cost(
    declared: Callable[..., Channel], broker: Broker
) -> None:
    channel = declared()
    channel.publish("nowhere", "m", mandatory=True)
    channel.quiet()
    store = broker.server.broker.store
    broker.call(lambda: store.delete_log(cursor_of(broker).log))
    broker.call(store.sync)
    broker.crash()
    broker.definitions.put(0, [Change(QueueRow("/", "q", 0), removed=True)])
    broker.start()
    assert broker.server.broker.vhosts["/"].returned_messages.log is None
    assert broker.server.broker.store.logs == {}


def test_returned_messages_go_after_the_longest_window(
    declared: Callable[..., Channel],
    audited: Callable[[], Reckoned],
    broker: Broker,
    clock: VirtualClock,
) -> None:
    channel = declared()
    channel.declare("longer", arguments={"x-audit-window": 2 * WINDOW_MS})
    channel.publish("nowhere", "m", mandatory=True)
    channel.quiet()
    clock.advance(1.5 * WINDOW_MS / 1000)
    assert audited().returned == {"": 1}
    channel.delete("longer")
    checkpoint(broker, 2)
    assert audited().returned == {}


def test_of_messages_that_were_shared_out_each_is_told_with_its_consumer(
    declared: Callable[..., Channel], connect: Callable[..., Client], audited: Callable[[], Reckoned]
) -> None:
    channel = declared()
    consumers = {tag: connect().channel() for tag in ("ann", "bob")}
    for tag, consumer in consumers.items():
        consumer.qos(10)
        consumer.consume("q", tag)
    channel.publish_confirmed("q", *map(str, range(6)))
    got = {tag: [int(each.text) for each in consumer.deliveries(3)] for tag, consumer in consumers.items()}
    rows = audited().of("q")
    told = {offset: row["delivered_to"].rpartition(" ")[2] for offset, row in rows.items()}
    assert told == {offset: tag for tag, offsets in got.items() for offset in offsets}
    assert [row["deliveries"] for row in rows.values()] == [1] * 6
