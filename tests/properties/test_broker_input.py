"""The whole sans-IO core against anything a client may send: an answer by the book, and nothing left behind.

Whatever comes, `Connection` raises nothing, what it answers can be read, and when the sockets are gone so are
the channels, consumers, exclusive queues and deliveries. What is sent comes from `broker_input`.
"""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands

from leveret.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, frame
from leveret.amqp.methods import Method
from leveret.fronts.amqp.wire import State
from tests.amqp.session import (
    Core,
    Session,
    channel_open,
    frames_in,
    handshake,
    header_of,
    methods_in,
    names_in,
    nested_table,
    opened,
    published,
    sent,
    settlement,
    start_ok,
)
from tests.examples import examples
from tests.properties.broker_input import (
    KINDS,
    LIMITS,
    OPEN,
    READY,
    SIMPLE,
    TUNED,
    anything,
    check_answers,
    check_that_nothing_is_left,
    mangled,
    useful,
)

# any bytes


HANDSHAKE_STEPS = [b"", PROTOCOL_HEADER, start_ok(), TUNED, opened()]
PREFIXES = [b"".join(HANDSHAKE_STEPS[: n + 1]) for n in range(len(HANDSHAKE_STEPS))]


@given(
    st.sampled_from([*PREFIXES, READY]),
    st.lists(anything | mangled(anything), max_size=4),
    st.integers(0, 200),
)
@example(PROTOCOL_HEADER, [frame(METHOD, 0, b"\0\x0a\0\x0b")], 0)
@example(OPEN, [b"\1\0\0\xff\xff\xff\xff\0"], 0)
@examples(250)
def test_any_bytes_after_any_beginning_are_answered_by_the_book(
    prefix: bytes, pieces: list[bytes], missing: int
) -> None:
    core = Core(limits=LIMITS)
    session = core.session()
    data = prefix + b"".join(pieces)
    answer = session.feed_all(
        [prefix[: max(0, len(prefix) - missing)], data[max(0, len(prefix) - missing) :]]
    )
    check_answers(answer)
    check_that_nothing_is_left(core, session)


@given(st.binary(min_size=8, max_size=64))
@examples(50)
def test_a_stranger_is_told_which_protocol_is_spoken_here(data: bytes) -> None:
    core = Core()
    session = core.session()
    answer = session.feed(data)
    if not data.startswith(PROTOCOL_HEADER):
        assert answer == PROTOCOL_HEADER
        assert session.state is State.CLOSED
    check_that_nothing_is_left(core, session)


# any methods


steps = st.one_of(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.lists(useful, min_size=1, max_size=4)),
    st.tuples(st.sampled_from([0, 1]), st.lists(anything, min_size=1, max_size=2)),
    st.tuples(st.just(2), st.sampled_from([0.0005, 1.0, 100_000.0])),
)


@given(st.lists(steps, min_size=1, max_size=12))
@examples(300)
def test_any_methods_of_two_clients_are_answered_by_the_book(story: list[tuple[int, Any]]) -> None:
    core = Core(limits=LIMITS)
    sessions = [core.session(prefix=READY), core.session(prefix=SIMPLE)]
    answers = [b"", b""]
    for who, what in story:
        if who == 2:
            core.pass_time(what)
        else:
            answers[who] += sessions[who].feed(b"".join(what))
    for answer, session in zip(answers, sessions, strict=True):
        check_answers(answer + session.taken())
    check_that_nothing_is_left(core, *sessions)


@given(st.lists(useful, min_size=1, max_size=8), st.lists(st.integers(1, 80), max_size=40))
@examples(120)
def test_it_does_not_matter_to_errors_how_the_bytes_arrive(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    whole, cut = _closes([data]), _closes(_cut(data, sizes))
    assert cut == whole


def _closes(pieces: list[bytes]) -> list[tuple[int, int, str]]:
    """What was closed, and why; of several ways in which a message may reach a client only one is taken."""
    core = Core(limits=LIMITS)
    session = core.session(prefix=READY)
    answer = session.feed_all(pieces)
    closes = commands.Channel.Close | commands.Connection.Close
    found = [
        (channel, each.reply_code, each.reply_text)
        for channel, each in methods_in(answer)
        if isinstance(each, closes)
    ]
    core.close()
    return found


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


# cases of their own


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_in_every_state_is_answered_by_the_book(kind: type[Method]) -> None:
    core = Core(limits=LIMITS)
    sessions = []
    for prefix in [*PREFIXES[1:], READY]:
        for channel in (0, 1, 3):
            session = core.session(prefix=prefix)
            check_answers(session.feed(sent(channel, kind)))
            sessions.append(session)
    check_that_nothing_is_left(core, *sessions)


def nested_arguments(class_id: int, method_id: int, before: bytes, depth: int) -> bytes:
    return frame(METHOD, 1, struct.pack(">HHH", class_id, method_id, 0) + before + nested_table(depth))


@pytest.mark.parametrize("depth", [1_000, 15_000])
@pytest.mark.parametrize("durable", [0, 2])
def test_tables_may_be_nested_as_deep_as_a_frame_is_long(depth: int, durable: int) -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    queue = nested_arguments(50, 10, b"\1q" + bytes((durable,)), depth)
    exchange = nested_arguments(40, 10, b"\1e\7headers" + bytes((durable,)), depth)
    bind = nested_arguments(50, 20, b"\1q\1e\0\0", depth)
    unbind = nested_arguments(50, 50, b"\1q\1e\0", depth)
    consume = nested_arguments(60, 20, b"\1q\1c\0", depth)
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + nested_table(depth)
    message = frame(HEADER, 1, header)
    answer = session.feed_all([queue, queue, exchange, exchange, bind, bind])
    assert names_in(answer) == ["queue.declare-ok"] * 2 + ["exchange.declare-ok"] * 2 + ["queue.bind-ok"] * 2
    to_queue = sent(1, commands.Basic.Publish, routing_key="q") + message
    to_exchange = sent(1, commands.Basic.Publish, exchange="e", routing_key="q") + message
    answer = session.feed_all([to_queue, to_exchange, consume, settlement(1, 120, 1, 2)])
    assert names_in(answer) == ["basic.consume-ok"] + ["basic.deliver"] * 3
    assert (HEADER, 1, header) in frames_in(answer)
    assert names_in(session.feed(unbind)) == ["queue.unbind-ok"]
    check_that_nothing_is_left(core, session)


def test_a_dead_letter_keeps_a_deeply_nested_header() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "p"}
    session.feed(sent(1, commands.Queue.Declare, queue="q", arguments=dead))
    session.feed(sent(1, commands.Queue.Declare, queue="p"))
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + nested_table(15_000)
    session.feed(sent(1, commands.Basic.Publish, routing_key="q") + frame(HEADER, 1, header))
    session.feed(sent(1, commands.Basic.Get, queue="q") + settlement(1, 90, 1))
    answer = session.feed(sent(1, commands.Basic.Get, queue="p"))
    assert names_in(answer) == ["basic.get-ok"]
    assert nested_table(15_000)[4:] in answer
    check_that_nothing_is_left(core, session)


def test_thousands_of_late_settlements_are_no_error() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    arguments = {"x-consumer-timeout": 10, "x-consumer-timeout-action": "retry", "x-retry-delay-ms": 10_000}
    session.feed(sent(1, commands.Queue.Declare, queue="q", arguments=arguments) + published(1, b"x") * 3000)
    assert names_in(session.feed(sent(1, commands.Basic.Consume, queue="q"))).count("basic.deliver") == 3000
    core.pass_time(5)
    assert session.feed(b"".join(settlement(1, 80, tag) for tag in range(1, 3001))) == b""
    check_that_nothing_is_left(core, session)


def test_a_consumer_that_can_not_be_told_of_its_timeout_goes_with_its_channel() -> None:
    core = Core(limits=LIMITS)
    session = core.session(prefix=SIMPLE + sent(1, commands.Queue.Declare, queue="q"))
    session.feed(published(1, b"body") + sent(1, commands.Basic.Consume, queue="q", consumer_tag="c"))
    core.pass_time(LIMITS.consumer_timeout_ms / 1000 + 1)
    assert names_in(session.taken()) == ["channel.close 406"]
    assert not core.broker.vhosts["/"].queue("q").consumers
    check_that_nothing_is_left(core, session)


def test_a_long_chain_of_auto_delete_exchanges_goes_with_its_last_link() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    count = 1_500
    for number in range(count):
        declare = {"exchange": f"e{number}", "exchange_type": "fanout", "auto_delete": True}
        session.feed(sent(1, commands.Exchange.Declare, **declare))
    for number in range(count - 1):
        session.feed(sent(1, commands.Exchange.Bind, source=f"e{number}", destination=f"e{number + 1}"))
    answer = session.feed(sent(1, commands.Exchange.Delete, exchange=f"e{count - 1}"))
    assert names_in(answer) == ["exchange.delete-ok"]
    assert not [name for name in core.broker.vhosts["/"].exchanges if name.startswith("e")]
    check_that_nothing_is_left(core, session)


@pytest.mark.parametrize("multiplier", [1e5, 1e300, 2**62])
def test_delays_stop_growing_at_their_limit(multiplier: float) -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    arguments = {"x-retry-delay-ms": 1, "x-retry-multiplier": multiplier, "x-retry-delay-max-ms": 1000}
    session.feed(sent(1, commands.Queue.Declare, queue="q", arguments=arguments) + published(1, b"x"))
    for tag in range(1, 70):
        core.pass_time(1)
        answer = session.feed(sent(1, commands.Basic.Get, queue="q") + settlement(1, 120, tag, 2))
        assert names_in(answer) == ["basic.get-ok"]
    check_that_nothing_is_left(core, session)


def test_a_channel_error_does_not_depend_on_where_the_next_message_is_cut() -> None:
    message = published(1, b"body", exchange="not there")
    for place in range(len(message)):
        core = Core()
        session = core.session(prefix=handshake() + channel_open(1))
        answer = session.feed(message + message[:place]) + session.feed(message[place:] + message)
        assert names_in(answer) == ["channel.close 404"], place
        answer = session.feed(
            sent(1, commands.Channel.CloseOk) + channel_open(1) + published(1, mandatory=True)
        )
        assert names_in(answer) == ["channel.open-ok", "basic.return"], place
        core.close()


def test_a_message_too_large_closes_its_channel_only() -> None:
    core = Core(limits=LIMITS)
    session = core.session(prefix=READY)
    message = published(1, b"x" * 5000)
    answer = session.feed(message[:3000]) + session.feed(message[3000:])
    assert names_in(answer) == ["channel.close 406"]
    check_that_nothing_is_left(core, session)


def test_what_came_before_a_malformed_message_counts() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1) + sent(1, commands.Queue.Declare, queue="q"))
    header = struct.pack(">HHQH", 60, 0, 0, 0x8000)
    wrong = sent(1, commands.Basic.Publish, routing_key="q") + frame(HEADER, 1, header)
    assert names_in(session.feed(published(1, b"good") + wrong)) == ["connection.close 502"]
    assert core.broker.vhosts["/"].queue("q").ready == 1
    check_that_nothing_is_left(core, session)


def test_nothing_is_collected_for_a_client_that_has_not_logged_in() -> None:
    core = Core()
    session = core.session(prefix=PROTOCOL_HEADER)
    for channel in range(1, 100):
        announced = sent(channel, commands.Basic.Publish) + frame(HEADER, channel, header_of(1 << 26))
        session.feed(announced + frame(BODY, channel, bytes(4000)))
    assert session.state is State.CLOSED
    check_that_nothing_is_left(core, session)


def test_nothing_is_collected_on_a_channel_that_is_not_open() -> None:
    core = Core()
    session = core.session(prefix=OPEN)
    answer = session.feed(sent(1, commands.Basic.Publish) + frame(HEADER, 1, header_of(1 << 26)))
    assert names_in(answer) == ["connection.close 504"]
    check_that_nothing_is_left(core, session)


def test_a_session_may_come_in_one_piece() -> None:
    core = Core()
    session = core.session()
    declare = sent(1, commands.Queue.Declare, queue="q")
    answer = session.feed(handshake() + channel_open(1) + declare + published(1, b"body") * 2)
    assert names_in(answer)[-2:] == ["channel.open-ok", "queue.declare-ok"]
    assert core.broker.vhosts["/"].queue("q").ready == 2
    check_that_nothing_is_left(core, session)


@pytest.mark.parametrize("closed", [commands.Channel.Close, commands.Channel.CloseOk])
def test_a_channel_that_is_closed_and_opened_in_one_read_takes_messages(closed: type[Method]) -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    if closed is commands.Channel.CloseOk:
        assert names_in(session.feed(sent(1, commands.Queue.Purge, queue="none"))) == ["channel.close 404"]
    session.feed(sent(1, closed) + channel_open(1))
    message = published(1, b"body", mandatory=True)
    for answer in (session.feed(message), session.feed(message[:30]) + session.feed(message[30:])):
        assert names_in(answer) == ["basic.return"]
    check_that_nothing_is_left(core, session)


# memory


OUT_MAX_BYTES = 20 << 20


def handed_out(core: Core, session: Session, data: bytes) -> int:
    """How many bytes wait for a socket after one turn in which nothing is written."""
    core.broker.begin_turn()
    session.connection.receive(session.connection.scanner.feed(data))
    core.settle()
    return session.connection.out_bytes


def test_one_turn_hands_out_a_bounded_amount_from_many_queues() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1))
    for number in range(60):
        session.feed(sent(1, commands.Queue.Declare, queue=f"q{number}"))
        session.feed(published(1, b"x" * 500_000, key=f"q{number}") * 2)
    consumes = [sent(1, commands.Basic.Consume, queue=f"q{n}", consumer_tag=f"c{n}") for n in range(60)]
    assert handed_out(core, session, b"".join(consumes)) < OUT_MAX_BYTES
    assert names_in(session.taken()).count("basic.deliver") == 120
    check_that_nothing_is_left(core, session)


def test_one_turn_hands_out_a_bounded_amount_of_large_messages() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1) + sent(1, commands.Queue.Declare, queue="q"))
    for _ in range(16):
        session.feed(published(1, b"x" * 4_000_000))
    consume = sent(1, commands.Basic.Consume, queue="q", consumer_tag="c")
    assert handed_out(core, session, consume) < OUT_MAX_BYTES
    assert names_in(session.taken()).count("basic.deliver") == 16
    check_that_nothing_is_left(core, session)


def test_one_turn_answers_a_bounded_amount_of_gets() -> None:
    core = Core()
    session = core.session(prefix=handshake() + channel_open(1) + sent(1, commands.Queue.Declare, queue="q"))
    session.feed(published(1, b"x" * 1_000_000))
    pairs = [sent(1, commands.Basic.Get, queue="q") + settlement(1, 90, tag, 1) for tag in range(1, 101)]
    assert handed_out(core, session, b"".join(pairs)) < OUT_MAX_BYTES
    assert names_in(session.taken() + session.feed(b"")).count("basic.get-ok") == 100
    check_that_nothing_is_left(core, session)
