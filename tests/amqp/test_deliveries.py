import pytest
from pamqp import commands

from leveret.amqp.deliveries import deliver_frames
from leveret.amqp.frames import BODY, frame
from tests.amqp.session import content, frames_in, header_of, sent


def delivered(bodies: list[bytes], *, keys: list[bytes] | None = None, frame_max: int = 4096) -> bytes:
    count = len(bodies)
    pieces = deliver_frames(
        3,
        b"tag",
        7,
        exchanges=[b"ex"] * count,
        keys=keys or [b"key"] * count,
        headers=[header_of(len(body)) for body in bodies],
        bodies=bodies,
        redelivered=[number % 2 == 1 for number in range(count)],
        frame_max=frame_max,
    )
    return b"".join(pieces)


def expected(bodies: list[bytes], *, keys: list[bytes] | None = None, frame_max: int = 4096) -> bytes:
    """The same, frame by frame."""
    data = b""
    for number, body in enumerate(bodies):
        key = keys[number].decode() if keys else "key"
        data += sent(
            3,
            commands.Basic.Deliver,
            consumer_tag="tag",
            delivery_tag=7 + number,
            redelivered=number % 2 == 1,
            exchange="ex",
            routing_key=key,
        )
        data += content(3, header_of(len(body)), body, step=frame_max - 8 if frame_max else len(body) or 1)
    return data


def test_messages_of_one_shape_are_delivered() -> None:
    bodies = [b"one", b"two", b"six"]
    assert delivered(bodies) == expected(bodies)


def test_messages_of_different_shapes_are_delivered_in_their_order() -> None:
    bodies = [b"one", b"", b"three", b"x" * 9000]
    keys = [b"a", b"bb", b"", b"a"]
    assert delivered(bodies, keys=keys) == expected(bodies, keys=keys)


@pytest.mark.parametrize("different", ["exchanges", "keys", "headers", "bodies"])
def test_what_is_different_in_one_thing_only_is_not_of_one_shape(different: str) -> None:
    columns = {"exchanges": [b"ex"] * 2, "keys": [b"key"] * 2, "bodies": [b"body"] * 2}
    columns["headers"] = [header_of(4)] * 2
    other = {"exchanges": b"xe", "keys": b"yek", "headers": header_of(4, priority=1), "bodies": b"longer"}
    columns[different][1] = other[different]
    first, second = (
        b"".join(deliver_frames(1, b"c", tag, redelivered=[False], frame_max=4096, **each))
        for tag, each in enumerate(
            ({name: [column[n]] for name, column in columns.items()} for n in (0, 1)), 1
        )
    )
    both = deliver_frames(1, b"c", 1, redelivered=[False] * 2, frame_max=4096, **columns)
    assert b"".join(both) == first + second
    assert other[different] in second


def test_a_message_without_a_body_has_no_body_frame() -> None:
    assert delivered([b""]) == expected([b""])
    assert [kind for kind, _, _ in frames_in(delivered([b"", b""]))] == [1, 2, 1, 2]


@pytest.mark.parametrize("frame_max", [4096, 5000, 131_072])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("frames", [1, 2])
def test_no_frame_is_larger_than_allowed(frame_max: int, beyond: int, frames: int) -> None:
    size = frames * (frame_max - 8) + beyond
    data = delivered([b"x" * size] * 2, frame_max=frame_max)
    assert data == expected([b"x" * size] * 2, frame_max=frame_max)
    sizes = [len(payload) + 8 for _, _, payload in frames_in(data)]
    assert max(sizes) <= frame_max
    assert sum(kind == BODY for kind, _, _ in frames_in(data)) == 2 * (frames + (beyond > 0))


def test_without_a_limit_a_body_is_one_frame() -> None:
    body = b"x" * 300_000
    assert delivered([body], frame_max=0).endswith(frame(BODY, 3, body))
    assert delivered([b""], frame_max=0) == expected([b""], frame_max=0)


def test_nothing_to_deliver_is_nothing() -> None:
    assert delivered([]) == b""


def test_tags_have_64_bits() -> None:
    (piece,) = deliver_frames(
        1,
        b"",
        2**64 - 1,
        exchanges=[b""],
        keys=[b""],
        headers=[header_of(1)],
        bodies=[b"x"],
        redelivered=[True],
        frame_max=4096,
    )
    assert frames_in(piece)[0][2] == b"\0\x3c\0\x3c\0" + b"\xff" * 8 + b"\1\0\0"
