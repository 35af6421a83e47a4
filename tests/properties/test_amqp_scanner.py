"""The scanner against a plain reading of the same bytes, and against itself with the bytes cut elsewhere.

Streams are what clients send: messages over any number of frames, settlements, other methods, heartbeats,
several channels at once; or such a stream with some damage; or noise.
"""

import struct
from itertools import accumulate, pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import frame as pamqp_frame

from leveret.amqp.deliveries import deliver_frames
from leveret.amqp.events import Contents, Deliveries, Event
from leveret.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, frame
from leveret.amqp.scanner import Scanner
from tests.amqp import reference
from tests.amqp.session import content, header_of, published, settlement
from tests.examples import examples

MESSAGE_MAX_BYTES = 300
FRAME_MAX = 256
TAGS = st.integers(0, 12) | st.integers(0, 2**64 - 1) | st.just(2**64 - 1)

publish_methods = st.sampled_from(
    [
        struct.pack(">HHH", 60, 40, 0) + b"\0\1q\0",
        struct.pack(">HHH", 60, 40, 0) + b"\2ex\3key\1",
        struct.pack(">HH", 60, 40),
        struct.pack(">HH", 60, 60) + b"\1c" + bytes(9) + b"\0\0",
    ]
)
deliver_methods = st.builds(
    lambda tag, key: struct.pack(">HH2sQ", 60, 60, b"\1c", tag) + b"\0\0" + bytes((len(key),)) + key,
    st.integers(0, 2**64 - 1),
    st.binary(max_size=5),
)
headers = st.sampled_from([{}, {"delivery_mode": 2}, {"headers": {"a": 1}, "message_id": "m"}])


@st.composite
def message_frames(draw: st.DrawFn, channel: int) -> list[bytes]:
    """A publish: its body in pieces of any size, empty ones among them."""
    sizes = draw(st.lists(st.integers(0, 120), max_size=4))
    pieces = [bytes((draw(st.integers(0, 255)),)) * size for size in sizes]
    header = header_of(sum(sizes), **draw(headers))
    return [
        frame(METHOD, channel, draw(publish_methods)),
        frame(HEADER, channel, header),
        *(frame(BODY, channel, piece) for piece in pieces),
    ]


@st.composite
def delivery_frames(draw: st.DrawFn, channel: int) -> list[bytes]:
    """Deliveries in a row, most of them with a body in one frame: what a client reads all day."""
    found: list[bytes] = []
    for size in draw(st.lists(st.sampled_from([0, 1, 5, 60, 120, 200, FRAME_MAX, 290]), max_size=4)):
        found.append(frame(METHOD, channel, draw(deliver_methods)))
        found.append(frame(HEADER, channel, header_of(size, **draw(headers))))
        if size:
            step = draw(st.sampled_from([size, 50]))
            found += [frame(BODY, channel, bytes(min(step, size - at))) for at in range(0, size, step)]
    return found


@st.composite
def settlement_frames(draw: st.DrawFn, channel: int) -> list[bytes]:
    """A few settlements, mostly of tags in a row."""
    kind, bits = draw(st.sampled_from([80, 90, 120])), draw(st.sampled_from([0, 0, 1, 2, 3, 255]))
    first = draw(TAGS)
    count = draw(st.integers(1, 5))
    return [settlement(channel, kind, min(first + n, 2**64 - 1), bits) for n in range(count)]


@st.composite
def odd_frames(draw: st.DrawFn, channel: int) -> list[bytes]:
    """Frames that are whole but often out of place."""
    kind = draw(st.sampled_from([1, 2, 3, 8, 0, 4, 255]))
    ids = draw(st.sampled_from([b"", b"\0\x3c\0\x28", b"\0\x3c\0\x50", b"\0\x3c\0\0\0\0", b"\0\x0a\0\x33"]))
    return [frame(kind, channel, ids + draw(st.binary(max_size=30)))]


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Frames of several channels, each channel's in their order; sometimes with damage."""
    lanes: list[list[bytes]] = []
    for channel in draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)):
        makers = [message_frames, delivery_frames, settlement_frames, odd_frames]
        chosen = draw(st.lists(st.sampled_from(makers[: 4 if draw(st.booleans()) else 3]), max_size=5))
        lanes.append([each for maker in chosen for each in draw(maker(channel))])
    lanes.append([HEARTBEAT_FRAME] * draw(st.integers(0, 2)))
    joined: list[bytes] = []
    bursts = st.integers(1, 4)
    while lanes := [lane for lane in lanes if lane]:
        lane = draw(st.sampled_from(lanes))
        burst = draw(bursts)
        joined += lane[:burst]
        del lane[:burst]
    return draw(damaged(b"".join(joined)))


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    damaged_data = bytearray(data)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        start = draw(st.integers(0, len(damaged_data)))
        stop = start + draw(st.integers(0, 3))
        damaged_data[start:stop] = draw(st.binary(max_size=3))
    return bytes(damaged_data)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`cut(b"abcdef", [2, 1])` is `[b"ab", b"c", b"def"]`."""
    places = [0, *(place for place in accumulate(sizes) if place < len(data)), len(data)]
    return [data[start:stop] for start, stop in pairwise(places)]


def scanned(
    pieces: list[bytes],
    *,
    texts: bool,
    greeted: bool = True,
    message_max_bytes: int = MESSAGE_MAX_BYTES,
    frame_max: int = FRAME_MAX,
) -> list[reference.Seen]:
    scanner = Scanner(greeted=greeted, message_max_bytes=message_max_bytes)
    scanner.frame_max = frame_max
    events = [
        contents for piece in pieces for event in scanner.feed(piece) for contents in as_contents(event)
    ]
    return reference.flattened(events, texts=texts)


def as_contents(event: Event) -> list[Event]:
    """Deliveries one by one, in the form that all other contents have."""
    if not isinstance(event, Deliveries):
        return [event]
    return [Contents(event.channel, method, [(header, body)]) for method, header, body in event.messages]


def plain(
    data: bytes,
    *,
    greeted: bool = True,
    message_max_bytes: int = MESSAGE_MAX_BYTES,
    frame_max: int = FRAME_MAX,
) -> list[reference.Seen]:
    return reference.read(data, greeted=greeted, frame_max=frame_max, message_max_bytes=message_max_bytes)


cuts = st.lists(st.integers(1, 60), max_size=30)


@given(streams() | st.binary(max_size=200), cuts)
@example(published(1, b"x" * 257), [])  # a body frame over the limit, whole in one read
@example(published(0, b"x"), [])
@example(published(1, b"x" * 301) + published(1, b"y"), [])
@example(settlement(1, 80, 2**64 - 1) * 2, [])
@examples(1000)
def test_the_scanner_sees_what_a_plain_reading_sees(data: bytes, sizes: list[int]) -> None:
    assert scanned([data], texts=False) == plain(data)
    assert scanned(cut(data, sizes), texts=False) == plain(data)


@given(streams() | st.binary(max_size=200), cuts)
@example(published(1, b"x" * 257), [30])
@example(published(0, b"x"), [30])
@examples(500)
def test_it_does_not_matter_where_the_bytes_are_cut(data: bytes, sizes: list[int]) -> None:
    whole = scanned([data], texts=True)
    assert scanned(cut(data, sizes), texts=True) == whole
    assert scanned([bytes((octet,)) for octet in data], texts=True) == whole


@given(streams(), cuts, st.sampled_from([0, 60, 130, 300]), st.sampled_from([0, 128, FRAME_MAX]))
@examples(500)
def test_limits_hold_however_the_bytes_come(
    data: bytes, sizes: list[int], message_max_bytes: int, frame_max: int
) -> None:
    limits = {"message_max_bytes": message_max_bytes, "frame_max": frame_max}
    assert scanned([data], texts=False, **limits) == plain(data, **limits)
    assert scanned(cut(data, sizes), texts=False, **limits) == plain(data, **limits)


@given(st.binary(max_size=7) | st.just(PROTOCOL_HEADER), streams(), cuts)
@examples(100)
def test_a_greeting_comes_first(greeting: bytes, data: bytes, sizes: list[int]) -> None:
    data = greeting + data
    assert scanned(cut(data, sizes), texts=False, greeted=False) == plain(data, greeted=False)


@given(streams(), cuts)
@examples(200)
def test_no_more_is_kept_than_a_frame_and_the_announced_bodies(data: bytes, sizes: list[int]) -> None:
    scanner = Scanner(greeted=True, message_max_bytes=MESSAGE_MAX_BYTES)
    scanner.frame_max = FRAME_MAX
    for piece in cut(data, sizes):
        scanner.feed(piece)
        assert len(scanner._incomplete) < FRAME_MAX + 8
        kept_bytes = [sum(map(len, assembly.pieces)) for assembly in scanner._assemblies.values()]
        assert all(each <= MESSAGE_MAX_BYTES for each in kept_bytes)
        assert scanner.unfinished_bytes >= len(scanner._incomplete) + sum(kept_bytes)
        assert scanner._assemblies or scanner.unfinished_bytes == len(scanner._incomplete)


@given(st.lists(st.integers(0, 2**64 - 3), max_size=8), st.sampled_from([80, 90, 120]))
@examples(100)
def test_tags_in_a_row_are_one_event_and_others_are_not(starts: list[int], kind: int) -> None:
    tags = [start + n for start in starts for n in range(3)]
    events = Scanner(greeted=True).feed(b"".join(settlement(1, kind, tag) for tag in tags))
    runs = 1 + sum(after != before + 1 for before, after in pairwise(tags)) if tags else 0
    assert len(events) == runs
    assert [seen[2] for seen in reference.flattened(events)] == tags


# what is delivered

short = st.binary(max_size=20) | st.binary(min_size=255, max_size=255)


@st.composite
def deliveries(draw: st.DrawFn) -> dict[str, list[object]]:
    """Columns as a queue gives them; often of one shape, because that has a way of its own."""
    count = draw(st.integers(1, 5))
    step = draw(st.sampled_from([4096, 5000])) - 8
    sizes = st.sampled_from([0, 1, 100, step - 1, step, step + 1, 2 * step, 2 * step + 1])

    def column(strategy: st.SearchStrategy[object]) -> list[object]:
        return [draw(strategy)] * count if draw(st.booleans()) else [draw(strategy) for _ in range(count)]

    bodies = [bytes((n,)) * size for n, size in enumerate(column(sizes))]
    chosen = column(headers)
    return {
        "exchanges": column(short),
        "keys": column(short),
        "headers": [header_of(len(body), **each) for body, each in zip(bodies, chosen, strict=True)],
        "bodies": bodies,
        "redelivered": draw(st.lists(st.booleans(), min_size=count, max_size=count)),
    }


@given(
    deliveries(),
    st.binary(max_size=255),
    st.integers(1, 65535),
    st.integers(1, 2**64 - 10),
    st.sampled_from([0, 4096, 5000, 131_072]),
)
@examples(300)
def test_deliveries_are_read_back_as_they_were_meant(
    columns: dict[str, list[object]], consumer_tag: bytes, channel: int, first_tag: int, frame_max: int
) -> None:
    data = b"".join(deliver_frames(channel, consumer_tag, first_tag, frame_max=frame_max, **columns))
    scanner = Scanner(greeted=True)
    scanner.frame_max = frame_max
    events = scanner.feed(data)
    assert all(isinstance(event, Deliveries) and event.channel == channel for event in events)
    got = [message for event in events for message in event.messages]
    assert [each[1:] for each in got] == list(zip(columns["headers"], columns["bodies"], strict=True))
    tag_at = 5 + len(consumer_tag)
    expected = zip(columns["redelivered"], columns["exchanges"], columns["keys"], strict=True)
    for number, ((method, _, _), (again, exchange, key)) in enumerate(zip(got, expected, strict=True)):
        assert method[:tag_at] == b"\0\x3c\0\x3c" + bytes((len(consumer_tag),)) + consumer_tag
        assert struct.unpack_from(">QB", method, tag_at) == (first_tag + number, again)
        assert method[tag_at + 9 :] == bytes((len(exchange),)) + exchange + bytes((len(key),)) + key


@given(deliveries(), st.sampled_from([0, 4096, 5000, 131_072]))
@examples(200)
def test_another_library_reads_the_same_frames(columns: dict[str, list[object]], frame_max: int) -> None:
    count = len(columns["bodies"])
    columns = {**columns, "exchanges": [b"ex"] * count, "keys": [b"key"] * count}  # pamqp wants text
    rest = b"".join(deliver_frames(9, b"tag", 5, frame_max=frame_max, **columns))
    bodies: list[bytes] = []
    tags = []
    while rest:
        size, channel, value = pamqp_frame.unmarshal(rest)
        assert channel == 9
        assert not frame_max or size <= frame_max
        rest = rest[size:]
        match value.name:
            case "Basic.Deliver":
                tags.append((value.delivery_tag, value.redelivered, value.consumer_tag, value.routing_key))
                bodies.append(b"")
            case "ContentBody":
                bodies[-1] += value.value
            case "ContentHeader":
                assert value.body_size == len(columns["bodies"][len(bodies) - 1])
    assert bodies == columns["bodies"]
    assert tags == [(5 + n, again, "tag", "key") for n, again in enumerate(columns["redelivered"])]


@given(st.integers(1, 400), st.binary(max_size=400))
@examples(50)
def test_a_message_of_any_size_comes_through_in_frames_of_any_size(step: int, body: bytes) -> None:
    method = frame(METHOD, 1, b"\0\x3c\0\x28\0\0\0\1q\0")
    data = method + content(1, header_of(len(body)), body, step=step)
    (event,) = Scanner(greeted=True).feed(data)
    assert event == Contents(1, method[7:-1], [(header_of(len(body)), body)])
