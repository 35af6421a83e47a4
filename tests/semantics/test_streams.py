"""Streams: from where they are read, what readers are owed and what they are refused, and what survives.

Declarations, groups on streams, and what retention owes those have files of their own. RabbitMQ's answers to
the same are compared in `tests/differential/scenarios/streams.py`; texts are those of its version 3.10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from leveret.testing.disk import Operation
from tests.processes import WAIT_S
from tests.semantics.client import Channel, ClosedByBroker
from tests.semantics.grouping import STREAM, numbered, offsets, publish, received, stream

OPEN = Callable[..., Channel]
OF_QUEUE = "for queue 's' in vhost '/'"
FOREIGN = f"{OF_QUEUE} of queue type rabbit_stream_queue"
NO_WAY_BACK = "basic.nack and basic.reject"


def read(channel: Channel, offset: Any = None, *, prefetch: int = 100, tag: str = "c") -> Channel:
    """The channel reads `s` from there on; without an offset, as one who does not say."""
    channel.qos(prefetch)
    channel.consume("s", tag, arguments=None if offset is None else {"x-stream-offset": offset})
    return channel


def refusal(act: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[int, str]:
    """Code and text, without the code's name, with which something is refused."""
    with pytest.raises(ClosedByBroker) as caught:
        act(*arguments, **options)
    return caught.value.code, caught.value.text.partition(" - ")[2]


def time_of(clock: VirtualClock) -> datetime:
    return datetime.fromtimestamp(clock() / 1_000_000, UTC)


@contextmanager
def syncs_held(broker: Broker) -> Iterator[threading.Event]:
    """The disk takes its time; the event says that a sync has begun."""
    begun, go = threading.Event(), threading.Event()

    def before(operation: Operation) -> None:
        if operation.kind == "sync":
            begun.set()
            assert go.wait(WAIT_S)

    assert broker.disk is not None
    broker.disk.before = before
    try:
        yield begun
    finally:
        broker.disk.before = None
        go.set()


def checkpoint(broker: Broker) -> None:
    """Two, as the server makes them when the first one shows that something can go."""
    for _ in range(2):
        broker.call(broker.server.broker.store.checkpoint)
        broker.call(broker.server.broker.checkpointed)


@pytest.fixture
def filled(channel: Channel) -> Channel:
    """A stream `s` of three messages."""
    stream(channel)
    publish(channel, *numbered(3))
    return channel


def test_a_declaration_tells_how_many_messages_there_are(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel(), "first")
    reader.ack(reader.deliveries(3)[-1].tag, multiple=True)
    reader.quiet()
    assert filled.declare("s", arguments=STREAM).message_count == 3
    assert filled.count("s") == 3


# where a reader begins


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        ("first", [0, 1, 2]),
        ("last", [2]),
        ("next", []),
        (None, []),
        (0, [0, 1, 2]),
        (1, [1, 2]),
        (2, [2]),
        (3, []),
        (-5, [0, 1, 2]),
        (2**40, []),
        ("1s", []),
        ("1m", [0, 1, 2]),
        ("7D", [0, 1, 2]),
        ("1M", [0, 1, 2]),
        ("1Y", [0, 1, 2]),
    ],
)
def test_a_reader_begins_where_it_says(
    filled: Channel, open_channel: OPEN, clock: VirtualClock, offset: Any, found: list[int]
) -> None:
    clock.advance(5)
    assert offsets(read(open_channel(), offset).quiet()) == found


def test_last_is_the_last_message_also_after_a_crash(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel)
    publish(channel, *numbered(3))
    broker.crash()
    broker.start()
    reader = open_channel()
    reader.qos(10)
    reader.consume("s", arguments={"x-stream-offset": "last"})
    assert offsets(reader.quiet()) == [2]


def test_next_and_silence_mean_what_comes_from_now_on(filled: Channel, open_channel: OPEN) -> None:
    readers = [read(open_channel(), "next"), read(open_channel()), read(open_channel(), 3)]
    publish(filled, "new")
    assert [received(reader, 1) for reader in readers] == [[3], [3], [3]]


@pytest.mark.parametrize("offset", ["first", "last", "next", 0, "1h"])
def test_who_reads_an_empty_stream_gets_the_first_that_comes(
    channel: Channel, open_channel: OPEN, offset: Any
) -> None:
    stream(channel)
    reader = read(open_channel(), offset)
    publish(channel, "a")
    assert received(reader, 1) == [0]


def test_an_offset_beyond_the_end_is_waited_for(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel(), 5)
    publish(filled, *numbered(2, 3))
    assert reader.quiet() == []
    publish(filled, *numbered(3, 5))
    assert reader.texts(3) == ["m5", "m6", "m7"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_reader_can_begin_at_a_point_in_time(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock, restarted: bool
) -> None:
    stream(channel)
    began = time_of(clock)
    for text in numbered(3):
        publish(channel, text)
        clock.advance(10)
    if restarted:
        broker.restart()
    found = {
        after_s: offsets(read(open_channel(), began + timedelta(seconds=after_s)).quiet())
        for after_s in (-3600, 0, 1, 10, 11, 20, 21, 3600)
    }
    assert found == {
        -3600: [0, 1, 2],
        0: [0, 1, 2],
        1: [1, 2],
        10: [1, 2],
        11: [2],
        20: [2],
        21: [],
        3600: [],
    }
    assert offsets(read(open_channel(), "15s").quiet()) == [2]
    assert offsets(read(open_channel(), "20s").quiet()) == [1, 2]


def test_a_time_to_come_is_what_comes_next(filled: Channel, open_channel: OPEN, clock: VirtualClock) -> None:
    reader = read(open_channel(), time_of(clock) + timedelta(days=1))
    publish(filled, "new")
    assert received(reader, 1) == [3]


@pytest.mark.parametrize(
    ("offset", "shown"),
    [
        *[
            (each, f'{{longstr,<<"{each}">>}}')
            for each in ("5", "0", "5X", "1d", "0s", "9h9m", "99999999999999999999")
        ],
        *[(each, f'{{longstr,<<"{each}">>}}') for each in ("abc", "FIRST", " first", "-1h", "h")],
        ("", "{longstr,<<>>}"),
        (True, "{bool,true}"),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 5])
def test_what_is_no_place_in_a_stream_is_refused(
    filled: Channel, open_channel: OPEN, offset: Any, shown: str, prefetch: int
) -> None:
    """Before anybody asks for the prefetch count."""
    refused = refusal(read, open_channel(), offset, prefetch=prefetch)
    assert refused == (
        406,
        f"invalid arg 'x-stream-offset' {OF_QUEUE}: {{invalid_stream_offset_arg,{shown}}}",
    )


@pytest.mark.parametrize("offset", [None, {"first": 1}, ["first"], 1.5])
def test_what_is_neither_word_nor_number_nor_time_is_refused(
    filled: Channel, open_channel: OPEN, offset: Any
) -> None:
    reader = open_channel()
    reader.qos(5)
    code, text = refusal(reader.consume, "s", arguments={"x-stream-offset": offset})
    assert code == 406
    assert text.startswith(f"invalid arg 'x-stream-offset' {OF_QUEUE}: {{invalid_stream_offset_arg,{{")


# what a reader must say


def test_a_reader_says_how_much_it_takes_at_a_time(filled: Channel, open_channel: OPEN) -> None:
    text = "consumer prefetch count is not set for 'queue 's' in vhost '/''"
    assert refusal(open_channel().consume, "s") == (406, text)
    assert refusal(open_channel().consume, "s", no_ack=True) == (406, text)
    shared = open_channel()
    shared.qos(5, shared=True)
    assert refusal(shared.consume, "s") == (406, text)


def test_a_reader_acknowledges(filled: Channel, open_channel: OPEN) -> None:
    reader = open_channel()
    reader.qos(5)
    code, text = refusal(reader.consume, "s", no_ack=True)
    assert code == 540
    assert text == "automatic acknowledgement not supported by stream queues queue 's' in vhost '/'"
    assert reader.client.closed is not None, "that ends the connection"


@pytest.mark.parametrize("argument", ["x-priority", "x-cancel-on-ha-failover"])
@pytest.mark.parametrize("value", [1, True, "a"])
def test_a_reader_has_no_arguments_of_other_consumers(
    filled: Channel, open_channel: OPEN, argument: str, value: Any
) -> None:
    reader = open_channel()
    reader.qos(5)
    refused = refusal(reader.consume, "s", arguments={argument: value})
    assert refused == (406, f"invalid arg '{argument}' {FOREIGN}")


def test_an_exclusive_reader_is_one_of_many(filled: Channel, open_channel: OPEN) -> None:
    readers = [open_channel() for _ in range(3)]
    for reader, exclusive in zip(readers, (False, True, False), strict=True):
        reader.qos(5)
        reader.consume("s", exclusive=exclusive, arguments={"x-stream-offset": "first"})
    assert [received(reader, 3) for reader in readers] == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("basic.get", lambda channel: channel.get("s")),
        ("queue.purge", lambda channel: channel.purge("s")),
    ],
)
def test_nothing_is_taken_out_of_a_stream(
    filled: Channel, open_channel: OPEN, what: str, act: Callable[[Channel], Any]
) -> None:
    other = open_channel()
    refused = refusal(act, other)
    assert refused == (540, f"{what} not supported by stream queues queue 's' in vhost '/'")
    assert filled.count("s") == 3


# deliveries and settlements


def test_a_delivery_tells_its_offset_behind_the_publishers_headers(
    channel: Channel, open_channel: OPEN
) -> None:
    stream(channel)
    publisher = open_channel().confirm_select()
    headers = {"CC": ["nowhere"], "a": 1, "nested": {"b": [1, None]}, "x-stream-offset": "mine"}
    publisher.publish_confirmed("s", "own", headers=headers, message_id="m", expiration="1", priority=9)
    publisher.publish_confirmed("s", "bare")
    own, bare = read(open_channel(), "first").deliveries(2)
    told = [("CC", ["nowhere"]), ("a", 1), ("nested", {"b": [1, None]}), ("x-stream-offset", 0)]
    assert list(own.headers.items()) == told
    assert (own.properties.message_id, own.properties.expiration, own.properties.priority) == ("m", "1", 9)
    assert bare.headers == {"x-stream-offset": 1}
    assert (own.method.exchange, own.method.routing_key, own.tag, bare.tag) == ("", "s", 1, 2)


def test_a_reader_holds_exactly_its_prefetch(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    publish(channel, *numbered(1000))
    reader = read(open_channel(), "first", prefetch=7)
    assert offsets(reader.quiet()) == list(range(7))
    reader.ack(5)
    reader.ack(2)
    assert offsets(reader.quiet()) == [7, 8]
    reader.ack(0, multiple=True)
    assert offsets(reader.quiet()) == list(range(9, 16))
    reader.ack(12, multiple=True)
    assert offsets(reader.quiet()) == [16, 17, 18]


def test_a_shared_limit_is_none_for_a_reader(filled: Channel, open_channel: OPEN) -> None:
    reader = open_channel()
    reader.qos(2, shared=True)
    assert offsets(read(reader, "first", prefetch=3).quiet()) == [0, 1, 2]


def test_two_readers_on_one_channel_have_credit_of_their_own(filled: Channel, open_channel: OPEN) -> None:
    reader = read(read(open_channel(), "first", prefetch=2, tag="a"), 1, prefetch=1, tag="b")
    found = [(each.method.consumer_tag, each.headers["x-stream-offset"]) for each in reader.quiet()]
    assert sorted(found) == [("a", 0), ("a", 1), ("b", 1)]


def test_an_ack_of_what_is_not_held_closes_the_channel(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel(), "first")
    reader.deliveries(3)
    reader.ack(1)
    reader.ack(1)
    assert (reader.error().code, reader.error().text.partition(" - ")[2]) == (406, "unknown delivery tag 1")


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize(
    "settle",
    [
        lambda channel: channel.nack(1),
        lambda channel: channel.nack(1, requeue=False),
        lambda channel: channel.nack(2, multiple=True),
        lambda channel: channel.reject(1),
        lambda channel: channel.reject(1, requeue=False),
    ],
)
def test_nothing_goes_back_into_a_stream(
    filled: Channel, open_channel: OPEN, settle: Callable[[Channel], None], cancelled: bool
) -> None:
    reader = read(open_channel(), "first")
    reader.deliveries(3)
    if cancelled:
        reader.cancel()
    settle(reader)
    error = reader.error()
    text = f"NOT_IMPLEMENTED - {NO_WAY_BACK} not supported by stream queues queue 's' in vhost '/'"
    assert (error.code, error.text) == (540, text)
    assert filled.count("s") == 3


def test_a_reader_can_not_ask_for_everything_again(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel(), "first")
    reader.ack(reader.deliveries(3)[-1].tag, multiple=True)
    reader.recover()
    publish(filled, "held")
    reader.delivery()
    code, text = refusal(reader.recover)
    assert (code, text) == (540, "basic.recover not supported by stream queues queue 's' in vhost '/'")


def test_what_was_delivered_at_the_time_of_a_cancel_may_still_be_acked(
    filled: Channel, open_channel: OPEN
) -> None:
    reader = read(open_channel(), "first", prefetch=2)
    reader.deliveries(2)
    reader.cancel()
    reader.ack(2, multiple=True)
    assert reader.quiet() == []
    reader.ack(2)
    assert reader.error().text.endswith("unknown delivery tag 2")


@pytest.mark.parametrize("leave", [lambda channel: channel.close(), lambda channel: channel.client.vanish()])
def test_nothing_is_ever_delivered_as_redelivered(
    filled: Channel, open_channel: OPEN, leave: Callable[[Channel], None]
) -> None:
    gone = read(open_channel(), "first")
    gone.deliveries(3)
    leave(gone)
    again = read(open_channel(), "first").deliveries(3)
    assert [(each.redelivered, each.headers) for each in again] == [
        (False, {"x-stream-offset": offset}) for offset in range(3)
    ]


def test_readers_do_not_know_of_each_other(channel: Channel, open_channel: OPEN) -> None:
    stream(channel)
    publish(channel, *numbered(20))
    readers = [read(open_channel(), start, prefetch=1 + start) for start in range(10)]
    publish(channel, *numbered(5, 20))
    for start, reader in enumerate(readers):
        for offset in range(start, 25):
            got = reader.delivery()
            assert (got.headers["x-stream-offset"], got.text) == (offset, f"m{offset}")
            reader.ack(got.tag)
        assert reader.quiet() == []


@pytest.mark.parametrize("options", [{}, {"if_empty": True}, {"if_unused": True}])
def test_a_stream_that_is_deleted_cancels_its_readers(
    filled: Channel, open_channel: OPEN, options: dict[str, bool]
) -> None:
    reader = read(open_channel(), "first")
    reader.deliveries(3)
    assert filled.delete("s", **options) == 0
    assert reader.next(commands.Basic.Cancel).method.consumer_tag == "c"
    reader.ack(2, multiple=True)
    assert reader.quiet() == []
    stream(filled)
    publish(filled, "new")
    assert [each.text for each in read(open_channel(), "first").quiet()] == ["new"]


# publishing


def test_what_is_not_synced_is_neither_confirmed_nor_seen(
    filled: Channel, open_channel: OPEN, broker: Broker
) -> None:
    publisher = open_channel().confirm_select()
    reader = read(open_channel(), "next")
    late = open_channel()
    with syncs_held(broker) as begun:
        publisher.publish("s", "transient", delivery_mode=1)
        assert begun.wait(WAIT_S)
        publisher.publish("s", "persistent")
        assert publisher.quiet() == []
        assert reader.quiet() == []
        assert offsets(read(late, "last").quiet()) == [2]
        assert offsets(read(late, 1, tag="d").quiet()) == [1, 2]
    assert publisher.confirmed(2) == {"ack": 2, "nack": 0}
    assert reader.texts(2) == ["transient", "persistent"]
    assert sorted(offsets(late.deliveries(4))) == [3, 3, 4, 4]


@pytest.mark.parametrize("end", ["stop", "crash", "power loss"])
def test_everything_that_was_confirmed_survives_with_its_offset(
    channel: Channel, open_channel: OPEN, broker: Broker, end: str
) -> None:
    stream(channel)
    publisher = channel.client.channel().confirm_select()
    for text in numbered(5):
        publisher.publish_confirmed("s", text, delivery_mode=1)
    if end == "stop":
        broker.restart()
    else:
        broker.crash(Random(7) if end == "power loss" else None)
        broker.start()
    found = read(open_channel(), 1).deliveries(4)
    assert [(each.headers["x-stream-offset"], each.text) for each in found] == [
        (offset, f"m{offset}") for offset in range(1, 5)
    ]
    assert {(each.redelivered, each.properties.delivery_mode) for each in found} == {(False, 1)}


def test_numbers_go_on_after_a_restart(filled: Channel, open_channel: OPEN, broker: Broker) -> None:
    broker.restart()
    publish(open_channel(), *numbered(2, 3))
    assert offsets(read(open_channel(), "first").quiet()) == [0, 1, 2, 3, 4]


def test_no_number_is_given_twice_after_a_crash_and_a_gap_is_no_hindrance(
    filled: Channel, open_channel: OPEN, broker: Broker
) -> None:
    """A number that was lost with an unsynced message may be known to somebody."""
    broker.crash()
    broker.start()
    waiting = [read(open_channel(), offset) for offset in ("next", 3, 4)]
    channel = open_channel()
    publish(channel, *numbered(2, 3))
    for reader in waiting:
        assert reader.texts(2) == ["m3", "m4"]
    found = read(open_channel(), "first").deliveries(5)
    assert [each.text for each in found] == numbered(5)
    numbers = offsets(found)
    assert numbers[:3] == [0, 1, 2]
    assert numbers == sorted(set(numbers))
    assert channel.count("s") == 5


def test_a_commit_shows_all_of_it_and_a_rollback_nothing(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel(), "next")
    tx = open_channel().tx_select()
    tx.publish("s", "a")
    tx.publish("s", "b")
    tx.quiet()
    assert reader.quiet() == []
    tx.tx_commit()
    assert reader.texts(2) == ["a", "b"]
    tx.publish("s", "c")
    tx.tx_rollback()
    publish(filled, "d")
    assert [(each.text, each.headers["x-stream-offset"]) for each in reader.deliveries(1)] == [("d", 5)]


def test_acks_in_a_transaction_give_credit_with_the_commit(filled: Channel, open_channel: OPEN) -> None:
    reader = read(open_channel().tx_select(), "first", prefetch=1)
    reader.delivery()
    reader.ack(1)
    assert reader.quiet() == []
    reader.tx_rollback()
    assert reader.quiet() == []
    reader.ack(1)
    reader.tx_commit()
    assert received(reader, 1) == [1]


def test_a_stream_can_store_each_sequence_once(channel: Channel, open_channel: OPEN, broker: Broker) -> None:
    stream(channel, **{"x-dedup": True})
    for _ in range(2):
        publisher = open_channel().confirm_select()
        for number in (1, 2, 2, 1, 3):
            headers = {"x-producer": "p", "x-seq": number}
            publisher.publish_confirmed("s", f"m{number}", headers=headers)
        broker.crash()
        broker.start()
    found = read(open_channel(), "first").quiet()
    assert [(each.text, each.headers["x-stream-offset"]) for each in found] == [
        ("m1", 0),
        ("m2", 1),
        ("m3", 2),
    ]


def test_copies_and_returns_are_as_with_any_queue(filled: Channel, open_channel: OPEN) -> None:
    filled.declare("q")
    publisher = open_channel().confirm_select()
    publisher.publish("q", "copied", headers={"BCC": ["s"]})
    publisher.publish("nowhere", "returned", mandatory=True)
    told = [publisher.next() for _ in range(2)] + publisher.quiet()
    returned = [each.text for each in told if isinstance(each.method, commands.Basic.Return)]
    assert returned == ["returned"]
    assert [each.text for each in read(open_channel(), 3).deliveries(1)] == ["copied"]


# retention, as a reader sees it


def test_a_reader_that_begins_below_what_is_kept_begins_with_the_first_there_is(
    channel: Channel, open_channel: OPEN, broker: Broker
) -> None:
    stream(channel, **{"x-max-length-bytes": 4000, "x-stream-max-segment-size-bytes": 1000})
    for _ in range(15):
        publish(channel, *["x" * 400] * 2)
        checkpoint(broker)
    checkpoint(broker)
    left = offsets(read(open_channel(), "first").quiet())
    assert left == list(range(30 - len(left), 30))
    assert 4 <= len(left) <= 12
    assert offsets(read(open_channel(), 2).quiet()) == left
    assert offsets(read(open_channel(), left[1]).quiet()) == left[1:]
    assert channel.count("s") == len(left)


def test_a_reader_that_is_overtaken_by_retention_goes_on_with_what_is_left(
    channel: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock
) -> None:
    stream(channel, **{"x-max-age": "1m"})
    publish(channel, *numbered(5))
    checkpoint(broker)
    slow = read(open_channel(), "first", prefetch=2)
    assert received(slow, 2) == [0, 1]
    clock.advance(61)
    checkpoint(broker)
    publish(channel, "new")
    assert channel.count("s") == 1
    slow.ack(2, multiple=True)
    assert [(each.text, each.headers["x-stream-offset"]) for each in slow.quiet()] == [("new", 5)]
    assert offsets(read(open_channel(), "first").quiet()) == [5]


def test_without_a_limit_everything_is_kept(
    filled: Channel, open_channel: OPEN, broker: Broker, clock: VirtualClock
) -> None:
    reader = read(open_channel(), "first")
    reader.ack(reader.deliveries(3)[-1].tag, multiple=True)
    clock.advance(10 * 365 * 86_400)
    checkpoint(broker)
    checkpoint(broker)
    broker.restart()
    assert offsets(read(open_channel(), "first").quiet()) == [0, 1, 2]
