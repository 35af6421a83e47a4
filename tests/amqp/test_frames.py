import pytest

from leveret.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, METHOD, content_frames, frame


def test_a_frame_is_type_channel_size_payload_end() -> None:
    assert frame(METHOD, 258, b"abc") == b"\1\1\2\0\0\0\3abc\xce"


def test_a_heartbeat_is_eight_bytes() -> None:
    assert bytes.fromhex("08 0000 00000000 ce") == HEARTBEAT_FRAME


def test_a_content_without_a_body_is_its_header() -> None:
    assert list(content_frames(1, b"head", b"", frame_max=4096)) == [frame(HEADER, 1, b"head")]
    assert list(content_frames(1, b"head", b"", frame_max=0)) == [frame(HEADER, 1, b"head")]


@pytest.mark.parametrize(
    ("size", "pieces"), [(1, [1]), (4088, [4088]), (4089, [4088, 1]), (8176, [4088] * 2)]
)
def test_a_body_is_cut_into_frames_of_the_allowed_size(size: int, pieces: list[int]) -> None:
    header, *bodies = content_frames(1, b"head", b"x" * size, frame_max=4096)
    assert header == frame(HEADER, 1, b"head")
    assert bodies == [frame(BODY, 1, b"x" * piece) for piece in pieces]
    assert all(len(each) <= 4096 for each in bodies)


def test_without_a_limit_a_body_is_not_cut() -> None:
    assert len(list(content_frames(1, b"head", b"x" * 1_000_000, frame_max=0))) == 2
