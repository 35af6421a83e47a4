"""Streams: declaring them, reading them from anywhere, settling, and what can't be done with them.

RabbitMQ delivers from streams, and counts what is in them, in its own time. So nobody asks for counts; what
is to come is waited for by its number; there is one reader at most while something is published, and it is on
a channel behind the publisher's, which is the order within a step. Each message is published alone, because
RabbitMQ hands out whole batches.
"""

from typing import Any

from tests.differential.channel import Channel
from tests.differential.play import Play
from tests.differential.wire import Typed

STREAM = {"x-queue-type": "stream"}


def _declare(play: Play, channel: Channel, name: str = "s", **flags: Any) -> None:
    play.leave_alone(name)
    arguments = STREAM | flags.pop("arguments", {})
    channel.queue_declare(name, **{"durable": True, **flags}, arguments=arguments)


def _filled(play: Play, count: int = 3) -> Channel:
    """A stream `s` with messages `0`, `1` …, each confirmed; the channel that published them."""
    channel = play.channel(1)
    _declare(play, channel)
    channel.confirm_select()
    for number in range(count):
        channel.publish(str(number), key="s")
    return channel


def _read(channel: Channel, offset: Any = None, *, count: int, prefetch: int = 10, tag: str = "c") -> None:
    """Reads `s` from there on, and waits until so many have come on the channel."""
    channel.basic_qos(0, prefetch)
    arguments = {} if offset is None else {"x-stream-offset": offset}
    channel.basic_consume("s", tag, arguments=arguments)
    _await(channel, count)


def _await(channel: Channel, count: int) -> None:
    channel.peer.read_until(lambda: len(channel.delivered) >= count)
    channel.peer.play.settle()


# --- declaring


def declaring_a_stream(play: Play) -> None:
    channel = play.channel()
    _declare(play, channel)
    _declare(play, channel)
    channel.queue_declare("s", passive=True)
    every = {
        "x-max-age": "7D",
        "x-max-length-bytes": 1_000_000,
        "x-stream-max-segment-size-bytes": 3_000_000_000,
        "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "client-local",
        "x-unheard-of": "anything",
    }
    _declare(play, channel, "t", arguments=every)
    _declare(play, channel, "t", arguments=every | {"x-unheard-of": "else"})
    channel.queue_delete("t")


def flags_that_a_stream_can_not_have(play: Play) -> None:
    wrong: list[dict[str, bool]] = [
        {"durable": False},
        {"exclusive": True},
        {"auto_delete": True},
        {"durable": False, "exclusive": True},
        {"durable": False, "exclusive": True, "auto_delete": True},
    ]
    for number, flags in enumerate(wrong, 1):
        _declare(play, play.channel(number), **flags)
    _declare(play, play.channel(20), "")
    _declare(play, play.channel(21), "", durable=False, arguments={"x-max-age": "nonsense"})


BAD = (
    *({"x-max-age": age} for age in ("5", "5X", "1d", "0s", "1.5h", "1h2m", 5, True, None)),
    *({"x-max-length-bytes": size} for size in (-1, "a")),
    *({"x-stream-max-segment-size-bytes": size} for size in (-1, "1000", 3_000_000_001)),
    *({"x-initial-cluster-size": size} for size in (0, "a")),
    *({"x-queue-leader-locator": word} for word in ("bad", 1)),
    {"x-queue-type": "streams"},
)


def bad_arguments_of_a_stream(play: Play) -> None:
    for number, arguments in enumerate(BAD, 1):
        _declare(play, play.channel(number), f"s{number}", arguments=arguments)


FOREIGN = (
    "x-message-ttl",
    "x-max-length",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-priority",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-expires",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-queue-master-locator",
    "x-quorum-initial-group-size",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
)


def arguments_of_other_queues_on_a_stream(play: Play) -> None:
    for number, argument in enumerate(FOREIGN, 1):
        _declare(play, play.channel(number), arguments={argument: "a"})
    _declare(play, play.channel(100), arguments={"x-overflow": "a", "x-expires": 5, "x-max-length": 5})


def which_mistake_in_a_stream_is_told_first(play: Play) -> None:
    wrong: dict[str, Any] = {
        "x-stream-max-segment-size-bytes": 3_000_000_001,
        "x-overflow": "a",
        "x-queue-leader-locator": "bad",
        "x-initial-cluster-size": 0,
        "x-max-age": "1d",
        "x-max-length-bytes": -1,
    }
    for number, argument in enumerate(reversed(list(wrong)), 1):
        _declare(play, play.channel(number), durable=False, arguments=dict(wrong))
        del wrong[argument]
    _declare(play, play.channel(50), arguments={"x-stream-max-segment-size-bytes": 3_000_000_001})
    _declare(
        play, play.channel(51), arguments={"x-stream-max-segment-size-bytes": 3_000_000_001}, durable=False
    )


def declaring_a_stream_again_in_another_way(play: Play) -> None:
    given = {"x-max-age": "1D", "x-max-length-bytes": 1_000_000}
    _declare(play, play.channel(), arguments=given)
    others: list[dict[str, Any]] = [
        given | {"x-max-age": "24h"},
        {"x-max-length-bytes": 1_000_000},
        {"x-max-age": "1D"},
        given | {"x-initial-cluster-size": 1},
        given | {"x-stream-max-segment-size-bytes": 1000},
        {"x-max-age": "1s", "x-max-length-bytes": 5},
        given | {"x-queue-type": "classic"},
        given | {"x-queue-type": "quorum"},
    ]
    for number, arguments in enumerate(others, 2):
        _declare(play, play.channel(number), arguments=arguments)
    play.channel(20).queue_declare("s", durable=True)
    play.channel(21).queue_declare("s", durable=True, arguments=given)
    for number, flag in enumerate(("durable", "auto_delete", "exclusive"), 22):
        _declare(play, play.channel(number), arguments=given, **{flag: flag != "durable"})


def an_age_that_does_not_begin_with_a_digit(play: Play) -> None:
    _declare(play, play.channel(), arguments={"x-max-age": "abc"})


def the_consumers_of_a_stream_are_counted(play: Play) -> None:
    channel = play.channel()
    _declare(play, channel)
    _read(channel, count=0)
    channel.queue_declare("s", passive=True)


# --- where a reader begins


def reading_a_stream_from_its_first_message(play: Play) -> None:
    _filled(play)
    _read(play.channel(2), "first", count=3)


def reading_a_stream_from_its_last_message(play: Play) -> None:
    publisher = _filled(play)
    reader = play.channel(2)
    _read(reader, "last", count=1)
    publisher.publish("3", key="s")
    _await(reader, 2)


def reading_what_comes_next(play: Play) -> None:
    publisher = _filled(play)
    for number, offset in enumerate(("next", None), 2):
        reader = play.channel(number)
        _read(reader, offset, count=0)
        publisher.publish("new", key="s")
        _await(reader, 1)
        reader.basic_cancel("c")


def reading_a_stream_from_an_offset(play: Play) -> None:
    _filled(play)
    widths = "bBsuIil"
    for number, kind in enumerate(widths, 2):
        _read(play.channel(number), Typed(kind, 1), count=2)
    _read(play.channel(20), 0, count=3)
    _read(play.channel(21), -7, count=3)


def an_offset_at_and_beyond_the_end(play: Play) -> None:
    publisher = _filled(play)
    for number, (offset, waited_for) in enumerate(((3, 0), (6, 2)), 2):
        reader = play.channel(number)
        _read(reader, offset, count=0)
        for _ in range(waited_for):
            publisher.publish("too early", key="s")
        for count in (1, 2):
            publisher.publish("new", key="s")
            _await(reader, count)
        reader.basic_cancel("c")


def reading_a_stream_from_a_time(play: Play) -> None:
    publisher = _filled(play)
    for number, time in enumerate((Typed("T", 1), "1h", "10m", "7D", "1M", "1Y", "100s"), 2):
        reader = play.channel(number)
        _read(reader, time, count=3)
        reader.basic_cancel("c")
    later = play.channel(20)
    _read(later, Typed("T", 4_000_000_000), count=0)
    publisher.publish("3", key="s")
    _await(later, 1)


def an_empty_stream_is_read_from_anywhere(play: Play) -> None:
    publisher = _filled(play, 0)
    for number, offset in enumerate(("first", "last", "next", 0), 2):
        reader = play.channel(number)
        _read(reader, offset, count=0)
        publisher.publish("0", key="s")
        _await(reader, 1)
        reader.basic_cancel("c")
        publisher.queue_delete("s")
        _declare(play, publisher)


def offsets_that_are_none(play: Play) -> None:
    _filled(play, 0)
    for number, word in enumerate(("5", "0", "5X", "1d", "0s", "9h9m", "99999999999999999999"), 2):
        play.channel(number).basic_consume("s", "c", arguments={"x-stream-offset": word})


def an_offset_that_does_not_begin_with_a_digit(play: Play) -> None:
    _filled(play, 0)
    reader = play.channel(2)
    reader.basic_qos(0, 5)
    reader.basic_consume("s", "c", arguments={"x-stream-offset": "abc"})


# --- what a reader must say


def a_reader_without_a_limit_of_its_own(play: Play) -> None:
    _filled(play, 0)
    play.channel(2).basic_consume("s", "c")
    play.channel(3).basic_consume("s", "c", no_ack=True)
    shared = play.channel(4)
    shared.basic_qos(0, 5, global_=True)
    shared.basic_consume("s", "c")


def a_reader_that_does_not_acknowledge(play: Play) -> None:
    reader = _filled(play, 0)
    reader.basic_qos(0, 5)
    reader.basic_consume("s", "c", no_ack=True)


def arguments_of_other_consumers_on_a_stream(play: Play) -> None:
    _filled(play, 0)
    others = ({"x-priority": 1}, {"x-priority": "a"}, {"x-cancel-on-ha-failover": True}, {"x-unheard-of": 1})
    for number, arguments in enumerate(others, 2):
        reader = play.channel(number)
        reader.basic_qos(0, 5)
        reader.basic_consume("s", "c", arguments=arguments)


def an_exclusive_reader_is_one_of_many(play: Play) -> None:
    _filled(play)
    for number, exclusive in enumerate((False, True, False), 2):
        reader = play.channel(number)
        reader.basic_qos(0, 5)
        reader.basic_consume("s", "c", exclusive=exclusive, arguments={"x-stream-offset": "first"})
        _await(reader, 3)


def what_can_not_be_done_with_a_stream(play: Play) -> None:
    _filled(play)
    play.connect().channel(1).open().basic_get("s")
    play.connect().channel(1).open().queue_purge("s")


# --- deliveries and settlements


def an_ack_is_credit_for_a_reader(play: Play) -> None:
    _filled(play, 9)
    reader = play.channel(2)
    _read(reader, "first", count=3, prefetch=3)
    reader.basic_ack(2)
    _await(reader, 4)
    reader.basic_ack(1)
    _await(reader, 5)
    reader.basic_ack(4, multiple=True)
    _await(reader, 7)
    reader.basic_ack(0, multiple=True)
    _await(reader, 9)
    reader.basic_ack(5)


def a_shared_limit_does_not_hold_a_reader(play: Play) -> None:
    _filled(play, 5)
    reader = play.channel(2)
    reader.basic_qos(0, 2, global_=True)
    _read(reader, "first", count=5, prefetch=5)


def returning_messages_to_a_stream(play: Play) -> None:
    _filled(play)
    for method, arguments in (
        ("basic_nack", {"delivery_tag": 1}),
        ("basic_nack", {"delivery_tag": 2, "multiple": True}),
        ("basic_nack", {"delivery_tag": 1, "requeue": False}),
        ("basic_reject", {"delivery_tag": 1, "requeue": True}),
        ("basic_reject", {"delivery_tag": 1}),
    ):
        reader = play.connect().channel(1).open()
        _read(reader, "first", count=3)
        getattr(reader, method)(**arguments)


def returning_messages_to_a_stream_after_a_cancel(play: Play) -> None:
    _filled(play)
    reader = play.channel(2)
    _read(reader, "first", count=3)
    reader.basic_cancel("c")
    reader.basic_nack(1)


def asking_for_everything_again_that_was_read(play: Play) -> None:
    _filled(play)
    reader = play.channel(2)
    _read(reader, "first", count=3)
    reader.basic_recover(requeue=True)


def acks_after_a_reader_was_cancelled(play: Play) -> None:
    _filled(play)
    reader = play.channel(2)
    _read(reader, "first", count=2, prefetch=2)
    reader.basic_cancel("c")
    reader.basic_ack(1)
    reader.basic_ack(2)
    reader.basic_ack(2)


def a_reader_that_is_gone_leaves_nothing_behind(play: Play) -> None:
    _filled(play)
    gone = play.connect()
    _read(gone.channel(1).open(), "first", count=3)
    gone.drop()
    _read(play.channel(2), "first", count=3)


def a_stream_goes_under_its_reader(play: Play) -> None:
    """Without an answer: nobody promises whether it comes before the reader is told."""
    publisher = _filled(play)
    reader = play.channel(2)
    _read(reader, "first", count=3)
    publisher.queue_delete("s", if_empty=True, nowait=True)
    _await_cancels(reader, 1)
    reader.basic_ack(3, multiple=True)
    _declare(play, publisher)
    _read(reader, "next", count=3, tag="d")
    publisher.queue_delete("s", if_unused=True, nowait=True)
    _await_cancels(reader, 2)


def _await_cancels(channel: Channel, count: int) -> None:
    channel.peer.read_until(lambda: channel.count_of("basic.cancel") >= count)
    channel.peer.play.settle()


def the_messages_of_a_stream_that_goes_are_not_counted(play: Play) -> None:
    channel = _filled(play)
    channel.queue_delete("s", if_empty=True)
    channel.queue_delete("s")


# --- publishing


def messages_keep_their_properties_in_a_stream(play: Play) -> None:
    publisher = _filled(play, 0)
    publisher.publish("bare", key="s")
    publisher.publish(
        "full",
        key="s",
        content_type="t/x",
        content_encoding="ce",
        delivery_mode=1,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="1",
        message_id="m",
        timestamp=5,
        message_type="t",
        user_id="guest",
        app_id="a",
    )
    publisher.publish("", key="s", delivery_mode=2)
    publisher.publish("own", key="s", headers={"a": "b", "x-stream-offset": "mine"})
    publisher.publish("wrong", key="s", expiration="abc")
    _read(play.channel(2), "first", count=4)


def headers_of_a_message_in_a_stream(play: Play) -> None:
    publisher = _filled(play, 0)
    kept = {"text": "b", "bool": True, "void": None, "long": Typed("l", 2**40), "time": Typed("T", 5)}
    publisher.publish("kept", key="s", headers=kept)
    publisher.publish("nested", key="s", headers={"list": ["a", "b"], "table": {"k": "v"}, "text": "b"})
    _read(play.channel(2), "first", count=2)


def streams_behind_exchanges(play: Play) -> None:
    publisher = _filled(play, 0)
    publisher.exchange_declare("x", "topic")
    publisher.queue_bind("s", "x", "a.*")
    publisher.publish("routed", "x", "a.b", mandatory=True)
    publisher.publish("returned", "x", "b", mandatory=True)
    publisher.publish("copied", "", "none", headers={"BCC": ["s"]})
    _read(play.channel(2), "first", count=2)


def transactions_on_a_stream(play: Play) -> None:
    _filled(play, 1)
    tx = play.channel(2)
    tx.tx_select()
    tx.publish("undone", key="s")
    tx.tx_rollback()
    tx.publish("done", key="s")
    tx.tx_commit()
    _read(play.channel(3), "first", count=2)


def acks_of_a_reader_in_a_transaction(play: Play) -> None:
    _filled(play)
    reader = play.channel(2)
    reader.tx_select()
    _read(reader, "first", count=1, prefetch=1)
    reader.basic_ack(1)
    reader.tx_commit()
    _await(reader, 2)
