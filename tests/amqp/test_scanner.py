import struct

import pytest
from pamqp import commands

from leveret.amqp.events import (
    Contents,
    Deliveries,
    Heartbeat,
    MethodFrame,
    Oversized,
    ProtocolHeader,
    Settlement,
    Violation,
)
from leveret.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, frame
from leveret.amqp.scanner import ACK, NACK, REJECT, Scanner
from tests.amqp.session import channel_open, content, header_of, published, sent, settlement

PUBLISH = b"\0\x3c\0\x28\0\0\0\1q\0"
PUBLISH_FRAME = frame(METHOD, 1, PUBLISH)


def scanner(*, frame_max: int = 4096, message_max_bytes: int = 10_000) -> Scanner:
    made = Scanner(greeted=True, message_max_bytes=message_max_bytes)
    made.frame_max = frame_max
    return made


def fed(*pieces: bytes, frame_max: int = 4096, message_max_bytes: int = 10_000) -> list[object]:
    made = scanner(frame_max=frame_max, message_max_bytes=message_max_bytes)
    return [event for piece in pieces for event in made.feed(piece)]


def violation(*pieces: bytes) -> tuple[int, int, str, bool]:
    """Channel, code, sentence and whether it is the end, of the only event."""
    (event,) = fed(*pieces)
    assert isinstance(event, Violation)
    return event.channel, event.error.code, event.error.sentence, event.lost


# greeting and simple frames


def test_the_first_eight_bytes_are_a_greeting() -> None:
    made = Scanner()
    assert made.feed(PROTOCOL_HEADER[:7]) == []
    assert made.feed(PROTOCOL_HEADER[7:] + HEARTBEAT_FRAME) == [ProtocolHeader(PROTOCOL_HEADER), Heartbeat()]
    assert made.feed(HEARTBEAT_FRAME) == [Heartbeat()]


def test_any_eight_bytes_are_a_greeting() -> None:
    assert Scanner().feed(b"GET / HTTP/1.1\r\n")[0] == ProtocolHeader(b"GET / HT")


def test_a_method_without_content_is_handed_on_as_it_is() -> None:
    data = sent(3, commands.Queue.Declare, queue="q")
    assert fed(data) == [MethodFrame(3, data[7:-1])]


def test_a_frame_that_is_cut_off_waits_for_its_end() -> None:
    data = sent(3, commands.Queue.Declare, queue="q")
    assert fed(data[:-1]) == []
    assert fed(*(bytes((octet,)) for octet in data)) == [MethodFrame(3, data[7:-1])]


# messages


def test_publishes_in_a_row_with_the_same_method_are_one_event() -> None:
    data = published(1, b"one") + published(1, b"") + published(1, b"three", delivery_mode=2)
    assert fed(data) == [
        Contents(
            1,
            PUBLISH,
            [
                (header_of(3), b"one"),
                (header_of(0), b""),
                (header_of(5, delivery_mode=2), b"three"),
            ],
        )
    ]


def test_another_method_or_channel_begins_another_event() -> None:
    data = published(1, b"a") + published(1, b"b", key="other") + published(2, b"c", key="other")
    assert [(event.channel, len(event.contents)) for event in fed(data)] == [(1, 1), (1, 1), (2, 1)]


def test_a_body_over_many_frames_is_put_together() -> None:
    body = bytes(range(256)) * 10
    assert fed(PUBLISH_FRAME + content(1, header_of(len(body)), body, step=7)) == [
        Contents(1, PUBLISH, [(header_of(len(body)), body)])
    ]


def test_an_empty_message_may_be_cut_anywhere() -> None:
    data = published(1, b"")
    for place in range(len(data)):
        assert fed(data[:place], data[place:]) == [Contents(1, PUBLISH, [(header_of(0), b"")])]


def test_empty_body_frames_add_nothing() -> None:
    empty = frame(BODY, 1, b"")
    data = PUBLISH_FRAME + frame(HEADER, 1, header_of(2)) + empty + frame(BODY, 1, b"ab")
    assert fed(data) == [Contents(1, PUBLISH, [(header_of(2), b"ab")])]


def test_messages_of_several_channels_may_be_interleaved() -> None:
    one, two = (frame(METHOD, channel, PUBLISH) for channel in (1, 2))
    data = one + two + frame(HEADER, 2, header_of(1)) + frame(HEADER, 1, header_of(1))
    data += frame(BODY, 2, b"2") + HEARTBEAT_FRAME + settlement(3, ACK, 1) + frame(BODY, 1, b"1")
    assert fed(data) == [
        Contents(2, PUBLISH, [(header_of(1), b"2")]),
        Heartbeat(),
        Settlement(3, ACK, 1, 1),
        Contents(1, PUBLISH, [(header_of(1), b"1")]),
    ]


@pytest.mark.parametrize("kind", [commands.Basic.Return, commands.Basic.GetOk])
def test_a_client_reads_contents_from_a_server(kind: type[commands.Basic.Return]) -> None:
    data = sent(1, kind)
    assert fed(data + content(1, header_of(1), b"x")) == [Contents(1, data[7:-1], [(header_of(1), b"x")])]


def test_on_channel_0_nothing_has_content() -> None:
    method, header, body = fed(published(0, b"x"))
    assert method == MethodFrame(0, PUBLISH)
    assert [(each.channel, each.error.code, each.lost) for each in (header, body)] == [(0, 505, False)] * 2


def test_a_message_too_large_is_announced_and_skipped() -> None:
    data = published(1, b"x" * 30) + published(1, b"y" * 10)
    for pieces in ([data], [data[:70], data[70:]]):
        assert fed(*pieces, message_max_bytes=29) == [
            Oversized(1, PUBLISH, 30),
            Contents(1, PUBLISH, [(header_of(10), b"y" * 10)]),
        ]


def test_nothing_is_kept_of_a_message_that_is_skipped() -> None:
    made = scanner(message_max_bytes=29)
    made.feed(PUBLISH_FRAME + frame(HEADER, 1, header_of(1000)) + frame(BODY, 1, bytes(900)))
    (assembly,) = made._assemblies.values()
    assert assembly.pieces == []


def test_where_channels_are_known_only_those_have_contents() -> None:
    made = scanner()
    made.channels = {1}
    assert made.feed(published(1, b"x")) == [Contents(1, PUBLISH, [(header_of(1), b"x")])]
    method, header, body = made.feed(published(2, b"x"))
    assert method == MethodFrame(2, PUBLISH)
    assert (header.error.code, body.error.code) == (505, 505)


def test_a_channel_that_is_opened_has_contents_from_there_on() -> None:
    made = scanner()
    made.channels = set()
    opened, contents = made.feed(channel_open(1) + published(1, b"x"))
    assert opened == MethodFrame(1, channel_open(1)[7:-1])
    assert contents == Contents(1, PUBLISH, [(header_of(1), b"x")])


def test_a_message_of_just_the_allowed_size_is_taken() -> None:
    (event,) = fed(published(1, b"x" * 30), message_max_bytes=30)
    assert isinstance(event, Contents)


def test_frames_may_be_as_large_as_memory_without_a_limit() -> None:
    (event,) = fed(PUBLISH_FRAME + content(1, header_of(9000), bytes(9000), step=9000), frame_max=0)
    assert isinstance(event, Contents)


# settlements


@pytest.mark.parametrize("kind", [ACK, REJECT, NACK])
def test_settlements_of_tags_in_a_row_are_one_event(kind: int) -> None:
    data = b"".join(settlement(1, kind, tag) for tag in (5, 6, 7, 9))
    assert fed(data) == [Settlement(1, kind, 5, 7), Settlement(1, kind, 9, 9)]


@pytest.mark.parametrize(
    ("kind", "bits", "multiple", "requeue"),
    [
        (ACK, 1, True, False),
        (ACK, 2, False, False),
        (REJECT, 1, False, True),
        (NACK, 1, True, False),
        (NACK, 2, False, True),
        (NACK, 3, True, True),
    ],
)
def test_bits_say_multiple_and_requeue(kind: int, bits: int, multiple: bool, requeue: bool) -> None:
    assert fed(settlement(1, kind, 5, bits)) == [Settlement(1, kind, 5, 5, multiple, requeue)]


def test_a_multiple_settlement_stands_alone() -> None:
    data = settlement(1, ACK, 5, 1) + settlement(1, ACK, 6, 1) + settlement(1, ACK, 7)
    assert [event.first for event in fed(data)] == [5, 6, 7]


def test_other_bits_channels_or_kinds_end_a_run() -> None:
    data = settlement(1, NACK, 1, 2) + settlement(1, NACK, 2) + settlement(1, ACK, 3) + settlement(2, ACK, 4)
    assert [(event.channel, event.kind, event.first) for event in fed(data)] == [
        (1, NACK, 1),
        (1, NACK, 2),
        (1, ACK, 3),
        (2, ACK, 4),
    ]


def test_tags_go_up_to_64_bits_and_not_around() -> None:
    last = 2**64 - 1
    data = settlement(1, ACK, last - 1) + settlement(1, ACK, last) + settlement(1, ACK, 0)
    assert fed(data) == [Settlement(1, ACK, last - 1, last), Settlement(1, ACK, 0, 0)]


def test_a_settlement_of_another_size_is_left_to_the_method_decoder() -> None:
    payload = struct.pack(">HHQ", 60, ACK, 1)
    assert fed(frame(METHOD, 1, payload)) == [MethodFrame(1, payload)]


# what is wrong, and the connection goes on being read


def test_a_header_or_body_without_a_method_is_unexpected() -> None:
    sentence = "expected method frame, got non method frame instead"
    assert violation(frame(HEADER, 1, header_of(0))) == (1, 505, sentence, False)
    assert violation(frame(BODY, 1, b"x")) == (1, 505, sentence, False)


def test_a_method_or_body_in_place_of_a_header_is_unexpected() -> None:
    sentence = "expected content header for class 60, got non content header frame instead"
    assert violation(PUBLISH_FRAME + PUBLISH_FRAME) == (1, 505, sentence, False)
    assert violation(PUBLISH_FRAME + frame(BODY, 1, b"x")) == (1, 505, sentence, False)
    assert violation(PUBLISH_FRAME + settlement(1, ACK, 1)) == (1, 505, sentence, False)


def test_a_header_in_place_of_a_body_is_unexpected() -> None:
    header = frame(HEADER, 1, header_of(5))
    sentence = "expected content body, got non content body frame instead"
    assert violation(PUBLISH_FRAME + header + header) == (1, 505, sentence, False)


def test_a_header_of_another_class_is_unexpected() -> None:
    header = frame(HEADER, 1, b"\0\x0a" + header_of(5)[2:])
    sentence = "expected content header for class 60, got one for class 10 instead"
    assert violation(PUBLISH_FRAME + header) == (1, 505, sentence, False)


def test_a_weight_is_no_content_header() -> None:
    header = frame(HEADER, 1, b"\0\x3c\0\1" + header_of(0)[4:])
    sentence = "expected content header for class 60, got non content header frame instead"
    assert violation(PUBLISH_FRAME + header) == (1, 505, sentence, False)


@pytest.mark.parametrize("length", [0, 2, 4, 12, 13])
def test_a_header_that_is_too_short_is_no_frame(length: int) -> None:
    header = header_of(0)[:length]
    octets = ",".join(map(str, header))
    sentence = f"type 2, all octets = <<{octets}>>: unknown_frame"
    wrong, after = fed(PUBLISH_FRAME + frame(HEADER, 1, header) + HEARTBEAT_FRAME)
    assert (wrong.channel, wrong.error.code, wrong.error.sentence, wrong.lost) == (1, 501, sentence, False)
    assert after == Heartbeat()


def test_a_body_longer_than_announced_is_unexpected() -> None:
    data = PUBLISH_FRAME + content(1, header_of(3), b"four")
    sentence = "the content body is longer than its header says"
    assert violation(data) == (1, 505, sentence, False)
    many = PUBLISH_FRAME + content(1, header_of(3), b"four", step=2)
    assert violation(many) == (1, 505, sentence, False)


def test_after_a_mistake_in_a_message_the_next_one_is_read() -> None:
    events = fed(PUBLISH_FRAME + content(1, header_of(3), b"four") + published(1, b"next"))
    assert [type(event) for event in events] == [Violation, Contents]


def test_mistakes_in_contents_name_the_method() -> None:
    (event,) = fed(PUBLISH_FRAME + PUBLISH_FRAME)
    assert event.error.method == (60, 40)


@pytest.mark.parametrize("kind", [0, 4, 7, 9, 255])
def test_a_frame_of_an_unknown_type_is_a_frame_error(kind: int) -> None:
    sentence = f'type {kind}, all octets = <<"abc">>: unknown_frame'
    assert violation(frame(kind, 7, b"abc")) == (7, 501, sentence, False)


def test_a_heartbeat_has_no_payload_and_no_channel() -> None:
    assert violation(frame(8, 0, b"\1")) == (0, 501, "type 8, all octets = <<1>>: unknown_frame", False)
    assert violation(frame(8, 1, b"")) == (1, 505, "type 8, all octets = <<>>", False)


def test_octets_are_shown_up_to_what_a_reply_holds() -> None:
    _, _, sentence, _ = violation(frame(9, 0, b"\0" * 4000))
    assert len(sentence) < 400


# what is wrong, and nothing more can be read


def test_a_wrong_end_of_a_frame_is_the_end() -> None:
    data = HEARTBEAT_FRAME[:-1] + b"\0" + HEARTBEAT_FRAME
    assert violation(data) == (
        0,
        501,
        "type 8, all octets = <<>>: {invalid_frame_end_marker,0}",
        True,
    )


def test_a_long_frame_with_a_wrong_end_is_shown_in_part() -> None:
    data = frame(METHOD, 1, b"a" * 17)[:-1] + b"\xcf"
    sentence = f'type 1, first 16 octets = <<"{"a" * 16}">>: {{invalid_frame_end_marker,207}}'
    assert violation(data) == (1, 501, sentence, True)


def test_a_frame_that_is_too_large_is_refused_by_its_size_alone() -> None:
    head = frame(METHOD, 1, b"x" * 4097)[:8]
    sentence = "type 1, all octets = <<>>: {frame_too_large,4097,4088}"
    assert violation(head) == (1, 501, sentence, True)


def test_a_frame_of_just_the_allowed_size_is_taken() -> None:
    data = PUBLISH_FRAME + content(1, header_of(4096), bytes(4096), step=4096)
    for pieces in ([data], [data[:100], data[100:]]):
        (event,) = fed(*pieces)
        assert isinstance(event, Contents)


@pytest.mark.parametrize("kind", ["header", "body"])
def test_a_publish_that_lies_whole_in_one_read_has_the_same_limits(kind: str) -> None:
    long = {"headers": {"h": "x" * 5000}} if kind == "header" else {}
    size = 5000 if kind == "body" else 1
    data = PUBLISH_FRAME + content(1, header_of(size, **long), b"x" * size, step=size)
    (event,) = fed(data)
    assert isinstance(event, Violation)
    assert (event.error.code, event.lost) == (501, True)


def test_after_the_end_nothing_is_read_and_nothing_kept() -> None:
    made = scanner()
    made.feed(PUBLISH_FRAME)
    (event,) = made.feed(b"\1" + b"\xff" * 7)
    assert event.lost
    assert made.feed(published(1, b"x")) == []
    assert not made._assemblies
    assert not made._incomplete


# publishes that lie whole in one read, up to where they do not


@pytest.mark.parametrize("length", range(1, len(published(1, b"body"))))
def test_wherever_a_run_of_publishes_is_cut_nothing_is_lost(length: int) -> None:
    one = published(1, b"body")
    events = fed(one + one[:length], one[length:] + one)
    assert [each for event in events for each in event.contents] == [(header_of(4), b"body")] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        content(2, header_of(1), b"x"),
        frame(HEADER, 1, header_of(1))[:-1] + b"\0" + frame(BODY, 1, b"x"),
        frame(HEADER, 1, header_of(1)) + frame(BODY, 2, b"x"),
        frame(HEADER, 1, header_of(1)) + frame(BODY, 1, b"x")[:-1] + b"\0",
        frame(HEADER, 1, header_of(1)) + HEARTBEAT_FRAME,
        frame(BODY, 1, b"x" * 20),
    ],
)
def test_what_is_not_a_publish_after_all_is_looked_at_frame_by_frame(wrong: bytes) -> None:
    first, second, *_ = fed(published(1, b"ok") + PUBLISH_FRAME + wrong)
    assert first == Contents(1, PUBLISH, [(header_of(2), b"ok")])
    assert isinstance(second, Violation | Heartbeat)


def test_a_close_ok_ends_a_message_that_will_not_be_finished() -> None:
    scanner = Scanner(greeted=True)
    close_ok = sent(1, commands.Channel.CloseOk)
    events = scanner.feed(PUBLISH_FRAME + close_ok)
    assert events == [MethodFrame(1, close_ok[7:-1])]
    assert scanner.feed(close_ok) == events


# what a server delivers


def deliver(tag: int, channel: int = 1) -> bytes:
    return sent(channel, commands.Basic.Deliver, consumer_tag="c", delivery_tag=tag, routing_key="q")


def delivered(tag: int, body: bytes, *, channel: int = 1, step: int = 4088) -> bytes:
    return deliver(tag, channel) + content(channel, header_of(len(body)), body, step=step)


def message(tag: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    """As it is in `Deliveries`."""
    return deliver(tag)[7:-1], header_of(len(body)), body


def messages_in(events: list[object]) -> list[tuple[bytes, bytes, bytes]]:
    assert all(isinstance(event, Deliveries) for event in events)
    return [each for event in events for each in event.messages]


def test_deliveries_in_a_row_are_one_event_whatever_their_methods_say() -> None:
    bodies = [b"one", b"", b"three", b"x" * 4088]
    data = b"".join(delivered(tag, body) for tag, body in enumerate(bodies, 1))
    assert fed(data) == [Deliveries(1, [message(tag, body) for tag, body in enumerate(bodies, 1)])]


def test_deliveries_on_another_channel_are_another_event() -> None:
    data = delivered(1, b"a") + delivered(2, b"b") + delivered(1, b"c", channel=2) + delivered(3, b"d")
    assert [(event.channel, len(event.messages)) for event in fed(data)] == [(1, 2), (2, 1), (1, 1)]


def test_a_delivered_body_over_many_frames_is_put_together() -> None:
    body = bytes(range(256)) * 10
    data = delivered(1, b"before") + delivered(2, body, step=700) + delivered(3, b"after")
    assert messages_in(fed(data)) == [message(1, b"before"), message(2, body), message(3, b"after")]


@pytest.mark.parametrize("body", [b"body", b""])
def test_wherever_a_run_of_deliveries_is_cut_nothing_is_lost(body: bytes) -> None:
    data = b"".join(delivered(tag, body) for tag in (1, 2, 3))
    for place in range(len(data)):
        events = fed(data[:place], data[place:])
        assert messages_in(events) == [message(tag, body) for tag in (1, 2, 3)], place


def test_deliveries_may_come_byte_by_byte() -> None:
    data = delivered(1, b"one") + delivered(2, b"") + delivered(3, b"three", step=2)
    events = fed(*(bytes((octet,)) for octet in data))
    assert messages_in(events) == [message(1, b"one"), message(2, b""), message(3, b"three")]


def test_between_deliveries_anything_may_come() -> None:
    data = (
        delivered(1, b"a") + HEARTBEAT_FRAME + delivered(2, b"b") + settlement(1, ACK, 1) + delivered(3, b"c")
    )
    kinds = [Deliveries, Heartbeat, Deliveries, Settlement, Deliveries]
    assert [type(event) for event in fed(data)] == kinds


def test_deliveries_of_several_channels_may_be_interleaved() -> None:
    header = frame(HEADER, 1, header_of(1))
    data = deliver(1) + delivered(7, b"2", channel=2) + header + HEARTBEAT_FRAME + frame(BODY, 1, b"1")
    two, beat, one = fed(data)
    assert (two.channel, beat, one) == (2, Heartbeat(), Deliveries(1, [message(1, b"1")]))


def test_a_client_that_delivers_is_given_no_deliveries() -> None:
    made = Scanner()
    (_, _, event) = made.feed(PROTOCOL_HEADER + delivered(1, b"x"))
    assert isinstance(event, Contents)


def test_on_channel_0_nothing_is_delivered() -> None:
    method, *wrong = fed(delivered(1, b"x", channel=0))
    assert method == MethodFrame(0, deliver(1)[7:-1])
    assert [each.error.code for each in wrong] == [505, 505]


def test_a_delivery_too_large_is_announced_and_skipped_however_it_comes() -> None:
    data = delivered(1, b"x" * 30) + delivered(2, b"y" * 10)
    for place in range(len(data)):
        oversized, after = fed(data[:place], data[place:], message_max_bytes=29)
        assert oversized == Oversized(1, deliver(1)[7:-1], 30), place
        assert after == Deliveries(1, [message(2, b"y" * 10)]), place


def test_where_channels_are_known_only_those_are_delivered_to() -> None:
    made = scanner()
    made.channels = {1}
    assert made.feed(delivered(1, b"x")) == [Deliveries(1, [message(1, b"x")])]
    method, *wrong = made.feed(delivered(1, b"x", channel=2))
    assert method == MethodFrame(2, deliver(1)[7:-1])
    assert [each.error.code for each in wrong] == [505, 505]


def test_delivered_frames_may_be_as_large_as_memory_without_a_limit() -> None:
    data = delivered(1, bytes(9000), step=9000) + delivered(2, b"x")
    assert messages_in(fed(data, frame_max=0)) == [message(1, bytes(9000)), message(2, b"x")]


HEADER_1 = frame(HEADER, 1, header_of(1))
BODY_1 = frame(BODY, 1, b"x")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(content(2, header_of(1), b"x"), id="header of another channel"),
        pytest.param(frame(HEADER, 1, b"\0\x0a" + header_of(1)[2:]) + BODY_1, id="header of another class"),
        pytest.param(frame(HEADER, 1, b"\0\x3c\0\1" + header_of(1)[4:]) + BODY_1, id="weight"),
        pytest.param(frame(HEADER, 1, header_of(1)[:13]) + BODY_1, id="short header"),
        pytest.param(frame(BODY, 1, b"x" * 20), id="body for a header"),
        pytest.param(deliver(3) + HEADER_1 + BODY_1, id="method for a header"),
        pytest.param(HEADER_1[:-1] + b"\0" + BODY_1, id="end of the header"),
        pytest.param(HEADER_1 + frame(BODY, 2, b"x"), id="body of another channel"),
        pytest.param(HEADER_1 + BODY_1[:-1] + b"\0", id="end of the body"),
        pytest.param(HEADER_1 + HEADER_1, id="header for a body"),
        pytest.param(HEADER_1 + frame(BODY, 1, b"xy"), id="long body"),
        pytest.param(frame(HEADER, 1, header_of(5000)) + frame(BODY, 1, bytes(5000)), id="large body"),
        pytest.param(frame(HEADER, 1, header_of(1, headers={"h": "x" * 5000})) + BODY_1, id="large header"),
    ],
)
def test_what_is_no_delivery_after_all_is_looked_at_frame_by_frame(wrong: bytes) -> None:
    data = delivered(1, b"ok") + deliver(2) + wrong
    whole = fed(data)
    assert whole[0] == Deliveries(1, [message(1, b"ok")])
    assert isinstance(whole[1], Violation)
    cut = len(delivered(1, b"ok"))
    apart = fed(data[:cut], *(bytes((octet,)) for octet in data[cut:]))
    assert list(map(repr, apart)) == list(map(repr, whole))


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(deliver(2)[:-1] + b"\0", id="end"),
        pytest.param(frame(METHOD, 1, deliver(2)[7:-1] + bytes(5000)), id="too large"),
    ],
)
def test_a_delivery_whose_method_is_damaged_ends_it(method: bytes) -> None:
    first, wrong = fed(delivered(1, b"ok") + method + content(1, header_of(1), b"x"))
    assert first == Deliveries(1, [message(1, b"ok")])
    assert isinstance(wrong, Violation)
    assert wrong.lost


def test_after_a_mistake_in_a_delivery_the_next_one_is_read() -> None:
    events = fed(deliver(1) + content(1, header_of(3), b"four") + delivered(2, b"next"))
    assert [type(event) for event in events] == [Violation, Deliveries]


def test_a_delivery_with_a_body_frame_to_come_waits_for_it() -> None:
    data = delivered(1, b"ok") + delivered(2, b"body")
    made = scanner()
    assert made.feed(data[:-12]) == [Deliveries(1, [message(1, b"ok")])]
    assert made.feed(data[-12:]) == [Deliveries(1, [message(2, b"body")])]
