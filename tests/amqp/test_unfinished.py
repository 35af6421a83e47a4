"""Messages of which not all frames have come: what the scanner says of them, and what it keeps."""

from leveret.amqp.events import ContentBegun, Contents, Event, MethodFrame, Overfull, ProtocolHeader
from leveret.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, frame
from leveret.amqp.scanner import Scanner
from tests.amqp.session import content, header_of, published

PUBLISH = b"\0\x3c\0\x28\0\0\0\1q\0"
ROOM_BYTES = 1000
"""For the objects that hold the frames of a few unfinished messages."""


def server_scanner(*, unfinished_max_bytes: int = 1 << 40) -> Scanner:
    made = Scanner(message_max_bytes=1_000_000, unfinished_max_bytes=unfinished_max_bytes)
    made.frame_max = 4096
    assert made.feed(PROTOCOL_HEADER) == [ProtocolHeader(PROTOCOL_HEADER)]
    return made


def begun(channel: int, size: int, *, sent: int) -> bytes:
    """A publish of `size` bytes, of which the first `sent` have been sent."""
    return frame(METHOD, channel, PUBLISH) + content(channel, header_of(size), bytes(sent))


def test_a_publish_is_announced_when_its_method_has_come() -> None:
    scanner = server_scanner()
    assert scanner.feed(frame(METHOD, 1, PUBLISH)) == [ContentBegun(1, PUBLISH)]
    assert scanner.feed(frame(HEADER, 1, header_of(2)) + frame(BODY, 1, b"a")) == []
    assert scanner.feed(frame(BODY, 1, b"b")) == [Contents(1, PUBLISH, [(header_of(2), b"ab")])]


def test_publishes_that_are_whole_in_one_read_are_not_announced() -> None:
    (event,) = server_scanner().feed(published(1, b"one") + published(1, b""))
    assert isinstance(event, Contents)


def test_a_client_hears_of_deliveries_when_they_are_whole() -> None:
    assert Scanner(greeted=True).feed(frame(METHOD, 1, b"\0\x3c\0\x3c\1t" + bytes(9) + b"\0\1q")) == []


def test_unfinished_messages_of_all_channels_are_counted_until_they_are_whole() -> None:
    scanner = server_scanner()
    for channel in range(1, 17):
        scanner.feed(begun(channel, 20_000, sent=10_000))
        assert channel * 10_000 <= scanner.unfinished_bytes <= channel * (10_000 + ROOM_BYTES)
    for channel in range(1, 17):
        (event,) = scanner.feed(b"".join(frame(BODY, channel, bytes(2000)) for _ in range(5)))
        assert isinstance(event, Contents)
    assert scanner.unfinished_bytes == 0


def test_a_frame_that_is_cut_off_is_counted() -> None:
    scanner = server_scanner()
    scanner.feed(published(1, bytes(3000))[:2000])
    assert 2000 <= scanner.unfinished_bytes <= 2000 + ROOM_BYTES


def test_many_small_frames_are_counted_with_what_holds_them() -> None:
    scanner = server_scanner()
    scanner.feed(begun(1, 10_000, sent=0) + frame(BODY, 1, b"ab") * 1000)
    assert scanner.unfinished_bytes > 50_000


def test_a_skipped_message_is_read_to_its_end_and_not_kept() -> None:
    scanner = server_scanner()
    scanner.feed(begun(1, 10_000, sent=5000))
    scanner.skip(1)
    assert scanner.unfinished_bytes == 0
    assert scanner.feed(frame(BODY, 1, bytes(4000))) == []
    assert scanner.unfinished_bytes == 0
    assert scanner.feed(frame(BODY, 1, bytes(1000)) + frame(METHOD, 1, b"\0\x14\0\x28")) == [
        MethodFrame(1, b"\0\x14\0\x28")
    ]


def test_a_message_that_is_skipped_at_its_method_has_a_header_that_is_not_kept() -> None:
    scanner = server_scanner()
    scanner.feed(frame(METHOD, 1, PUBLISH))
    scanner.skip(1)
    scanner.feed(frame(HEADER, 1, header_of(500, headers={"a": "x" * 3000})))
    assert scanner.unfinished_bytes == 0
    assert scanner.feed(frame(BODY, 1, bytes(500)) + published(1, b"next")) == [
        Contents(1, PUBLISH, [(header_of(4), b"next")])
    ]


def test_skipping_where_no_message_is_under_way_does_nothing() -> None:
    scanner = server_scanner()
    scanner.skip(1)
    assert scanner.feed(published(1, b"x")) == [Contents(1, PUBLISH, [(header_of(1), b"x")])]


def test_a_connection_that_keeps_too_much_loses_the_message_that_is_too_much() -> None:
    scanner = server_scanner(unfinished_max_bytes=50_000)
    events: list[Event] = []
    for channel in range(1, 6):
        events += scanner.feed(begun(channel, 15_000, sent=12_000))
    (overfull,) = [event for event in events if isinstance(event, Overfull)]
    assert overfull.channel == 5
    assert overfull.unfinished_bytes > 50_000
    assert scanner.unfinished_bytes <= 50_000
    (finished,) = scanner.feed(frame(BODY, 1, bytes(3000)))
    assert isinstance(finished, Contents), "the other messages go on"
    assert scanner.feed(frame(BODY, 5, bytes(3000))) == [], "of this one nothing is left"


def test_a_message_that_is_whole_counts_no_more() -> None:
    scanner = server_scanner(unfinished_max_bytes=20_000)
    for _ in range(5):
        begun_event, finished = scanner.feed(begun(1, 15_000, sent=15_000))
        assert isinstance(begun_event, ContentBegun)
        assert isinstance(finished, Contents)


def test_nothing_is_kept_when_a_peer_breaks_the_protocol() -> None:
    scanner = server_scanner()
    scanner.feed(begun(1, 10_000, sent=5000) + begun(2, 10_000, sent=5000))
    scanner.feed(frame(METHOD, 1, PUBLISH))  # instead of the rest of the body
    assert 5000 <= scanner.unfinished_bytes < 6000
    scanner.feed(frame(BODY, 2, bytes(4000)) * 2)  # more than was announced
    assert scanner.unfinished_bytes == 0
    scanner.feed(begun(1, 10_000, sent=5000))
    scanner.feed(b"\xff" * 20)
    assert scanner.unfinished_bytes == 0
