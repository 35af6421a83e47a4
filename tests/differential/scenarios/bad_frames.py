"""Frames that break the rules: content out of place, lengths that lie, bytes that are no frames."""

from tests.differential import wire
from tests.differential.play import Play

PUBLISH = {"exchange": "", "routing_key": "q"}


def a_header_without_a_method(play: Play) -> None:
    play.channel().header(0)
    play.settle()


def a_body_without_a_header(play: Play) -> None:
    play.channel().body(b"x")
    play.settle()


def a_body_right_after_the_method(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.body(b"x")
    play.settle()


def a_body_longer_than_announced(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(2)
    channel.body(b"three")
    play.settle()


def a_second_body_frame_beyond_the_announced_size(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(3)
    channel.body(b"ab")
    channel.body(b"cd")
    play.settle()


def a_body_after_a_header_of_size_0(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(0)
    channel.body(b"x")
    play.settle()


def an_empty_body_frame_before_the_rest(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(2)
    channel.body(b"")
    channel.body(b"a")
    channel.body(b"")
    channel.body(b"b")
    channel.end_content()
    channel.basic_get("q", no_ack=True)


def an_empty_body_frame_after_a_header_of_size_0(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(0)
    channel.body(b"")
    play.settle()


def a_header_of_the_wrong_class(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.header(0, class_id=50)
    play.settle()


def a_header_of_an_unknown_class(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.header(0, class_id=777)
    play.settle()


def a_header_whose_weight_is_not_0(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(0, weight=1)
    channel.end_content()
    channel.basic_get("q", no_ack=True)


def a_method_instead_of_the_header(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.queue_declare("q")


def a_method_instead_of_the_body(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.header(3)
    channel.body(b"a")
    channel.queue_declare("q")


def a_second_publish_before_the_header(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.begin_content(**PUBLISH)
    play.settle()


def a_second_header(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.header(3)
    channel.header(3)
    play.settle()


def closing_a_channel_in_the_middle_of_content(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.header(3)
    channel.channel_close(200, "bye", 0, 0)


def content_of_two_channels_interleaved(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    first.queue_declare("q")
    first.begin_content(**PUBLISH)
    second.begin_content(**PUBLISH)
    first.header(4)
    second.header(4)
    first.body(b"11")
    second.body(b"22")
    first.body(b"11")
    first.end_content()
    second.body(b"22")
    second.end_content()
    first.basic_get("q", no_ack=True)
    first.basic_get("q", no_ack=True)


def a_heartbeat_between_content_frames(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    play.peers[0].channel(0).frame(wire.HEARTBEAT)
    channel.header(1)
    play.peers[0].channel(0).frame(wire.HEARTBEAT)
    channel.body(b"x")
    channel.end_content()
    channel.basic_get("q", no_ack=True)


def a_heartbeat_on_a_channel(play: Play) -> None:
    channel = play.channel()
    channel.frame(wire.HEARTBEAT)
    play.settle()


def a_heartbeat_with_a_payload(play: Play) -> None:
    play.connect().channel(0).frame(wire.HEARTBEAT, b"boo")
    play.settle()


def an_unknown_frame_type(play: Play) -> None:
    play.channel().frame(5, b"what is this")
    play.settle()


def an_unknown_frame_type_on_channel_0(play: Play) -> None:
    play.connect().channel(0).frame(5, b"what is this")
    play.settle()


def a_content_frame_on_channel_0(play: Play) -> None:
    play.connect().channel(0).header(0)
    play.settle()


def an_unknown_class(play: Play) -> None:
    play.channel().frame(wire.METHOD, b"\x03\x09\x00\x0a")
    play.settle()


def an_unknown_method_of_a_known_class(play: Play) -> None:
    play.channel().frame(wire.METHOD, b"\x00\x3c\x03\x09")
    play.settle()


def an_unknown_method_on_channel_0(play: Play) -> None:
    play.connect().channel(0).frame(wire.METHOD, b"\x00\x0a\x03\x09")
    play.settle()


def a_method_frame_too_short_for_an_id(play: Play) -> None:
    play.channel().frame(wire.METHOD, b"\x00\x3c")
    play.settle()


def an_empty_method_frame(play: Play) -> None:
    play.channel().frame(wire.METHOD, b"")
    play.settle()


def a_method_that_ends_too_early(play: Play) -> None:
    play.channel().frame(wire.METHOD, b"\x00\x32\x00\x0a\x00\x00\x05qu")
    play.settle()


def a_method_with_bytes_after_its_arguments(play: Play) -> None:
    payload = wire.method_payload(wire.method_class("queue_declare"), {"queue": "q"})
    play.channel().frame(wire.METHOD, payload + b"more")
    play.settle()


def a_table_that_is_longer_than_the_frame(play: Play) -> None:
    payload = wire.method_payload(wire.method_class("queue_declare"), {"queue": "q"})
    play.channel().frame(wire.METHOD, payload[:-4] + b"\x00\x00\x10\x00")
    play.settle()


def a_table_with_an_unknown_field_type(play: Play) -> None:
    play.channel().queue_declare("q", arguments=b"\x01k?what")


def a_table_with_a_value_cut_off(play: Play) -> None:
    play.channel().queue_declare("q", arguments=b"\x01kI\x00\x00")


def a_table_with_a_duplicate_key(play: Play) -> None:
    two = b"\x0dx-message-ttlI\x00\x00\x27\x10" + b"\x0dx-message-ttlI\x00\x00\x4e\x20"
    channel = play.channel()
    channel.queue_declare("q", arguments=two)
    channel.queue_declare("q", arguments={"x-message-ttl": 10_000})
    channel.queue_declare("q", arguments={"x-message-ttl": 20_000})


def a_header_frame_too_short(play: Play) -> None:
    channel = play.channel()
    channel.begin_content(**PUBLISH)
    channel.frame(wire.HEADER, b"\x00\x3c\x00\x00\x00")
    play.settle()


def a_header_whose_properties_are_cut_off(play: Play) -> None:
    """A server need not read properties: what it does not need it may pass on as it is."""
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    payload = wire.header_payload(0, {"content_type": "text/plain"})
    channel.frame(wire.HEADER, payload[:-4])
    channel.end_content()


def the_largest_frame_that_was_agreed(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(131_064)
    channel.body(b"x" * 131_064)
    channel.end_content()
    channel.basic_get("q", no_ack=True)


def a_frame_one_byte_larger_than_agreed(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.begin_content(**PUBLISH)
    channel.header(131_065)
    channel.body(b"x" * 131_065)
    play.settle()


def content_for_a_method_that_has_none(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.header(0)
    play.settle()


def bytes_one_by_one(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    payload = wire.method_payload(wire.method_class("basic_publish"), PUBLISH)
    frames = [wire.frame_bytes(wire.METHOD, 1, payload)]
    frames.append(wire.frame_bytes(wire.HEADER, 1, wire.header_payload(5, {"priority": 1, "app_id": "x"})))
    frames += [wire.frame_bytes(wire.BODY, 1, piece) for piece in (b"he", b"llo")]
    for byte in b"".join(frames):
        play.peers[0].send(bytes([byte]), None)
    channel.basic_get("q", no_ack=True)


def bytes_after_which_no_frame_can_be_found(play: Play) -> None:
    """Side by side, because RabbitMQ takes three seconds to close each of these."""
    declare = wire.method_payload(wire.method_class("queue_declare"), {"queue": "q"})
    wrong = (
        wire.frame_bytes(wire.METHOD, 1, declare, end=0xCD),
        wire.frame_bytes(wire.METHOD, 1, declare, end=0),
        wire.frame_bytes(wire.BODY, 1, b"x" * 131_073),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"\xff" * 20,
    )
    for raw in wrong:
        peer = play.connect()
        peer.channel(1).open()
        peer.send(raw, f"{peer.name} > {raw[:40]!r}")
    for peer in play.peers:
        peer.read_until(lambda peer=peer: peer.ended)
    play.settle()
