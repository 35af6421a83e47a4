"""Frames: the constants of their layout, and how single ones are written.

    frame    type u8 | channel u16 | size u32 | payload | 0xCE                       (AMQP 0-9-1, 4.2.3)
    type     1 method, 2 content header, 3 content body, 8 heartbeat

Reading is left to `scanner`, methods to `methods`, runs of deliveries to `deliveries`.
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
"""Of a frame around its payload; frame_max counts it."""
FRAME_MIN_BYTES: Final = 4096
"""What every peer must accept (AMQP 0-9-1, 4.2.3); before tuning nothing larger may be sent."""
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = FRAME.pack(HEARTBEAT, 0, 0) + END
BASIC: Final = 60


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def content_frames(channel: int, header: bytes, body: bytes, *, frame_max: int) -> Iterator[bytes]:
    """A content header and as many body frames as it takes; `frame_max` 0 means no limit."""
    yield frame(HEADER, channel, header)
    step = frame_max - OVERHEAD_BYTES if frame_max else max(len(body), 1)
    for start in range(0, len(body), step):
        yield frame(BODY, channel, body[start : start + step])
