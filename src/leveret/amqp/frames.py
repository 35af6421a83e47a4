"""Frames: constants of their layout, and functions that encode single frames.

    frame    type u8 | channel u16 | size u32 | payload | 0xCE                       (AMQP 0-9-1, 4.2.3)
    type     1 method, 2 content header, 3 content body, 8 heartbeat

Reading frames is left to `scanner`, methods to `methods`, runs of deliveries to `deliveries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
END: Final = b"\xce"
FRAME: Final = Struct(">BHI")
OVERHEAD_BYTES: Final = 8
"""Bytes of a frame around its payload; frame_max includes them."""
FRAME_MIN_BYTES: Final = 4096
"""Frame size that every peer must accept (AMQP 0-9-1, 4.2.3): the limit until tune-ok."""
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = FRAME.pack(HEARTBEAT, 0, 0) + END
BASIC: Final = 60


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def content_frames(channel: int, header: bytes, body: bytes, *, frame_max: int) -> Iterator[bytes]:
    """Yield the frames of a content header and a body; `frame_max` 0 means no limit."""
    yield frame(HEADER, channel, header)
    step = frame_max - OVERHEAD_BYTES if frame_max else max(len(body), 1)
    for start in range(0, len(body), step):
        yield frame(BODY, channel, body[start : start + step])
