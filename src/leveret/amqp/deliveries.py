"""Encodes runs of basic.deliver with their contents.

The hot path out of the broker: header and body are copied unchanged, and only tag and redelivered flag are
packed. Most messages of a queue have equal exchange, key and sizes of header and body. For such a run one
`Struct` packs a whole message, and the loop runs in C.

    deliver   frame 1: 60 60 | consumer tag | delivery tag u64 | redelivered u8 | exchange | routing key
              frame 2: content header · frame 3: body, in as many frames as frame_max makes of it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from leveret.amqp.frames import BODY, END, FRAME, HEADER, METHOD, OVERHEAD_BYTES, content_frames


class _Shape(NamedTuple):
    """Messages with equal exchange, key and sizes: the packer, and the constant parts of a message."""

    packer: Struct
    before: bytes
    after: bytes
    between: bytes


def deliver_frames(
    channel: int,
    consumer_tag: bytes,
    first_tag: int,
    *,
    exchanges: Sequence[bytes],
    keys: Sequence[bytes],
    headers: Sequence[bytes],
    bodies: Sequence[bytes],
    redelivered: Sequence[bool],
    frame_max: int,
) -> list[bytes]:
    """Return bytes that deliver the messages of these columns with tags from `first_tag` on."""
    tags = range(first_tag, first_tag + len(bodies))
    uniform = (
        len(set(exchanges)) == 1
        and len(set(keys)) == 1
        and len(set(map(len, headers))) == 1
        and len(set(map(len, bodies))) == 1
    )
    if uniform and _fits(bodies[0], frame_max):
        shape = _shape(channel, consumer_tag, exchanges[0], keys[0], len(headers[0]), len(bodies[0]))
        return list(
            map(
                shape.packer.pack,
                repeat(shape.before),
                tags,
                redelivered,
                repeat(shape.after),
                headers,
                repeat(shape.between),
                bodies,
                repeat(END),
            )
        )
    pieces: list[bytes] = []
    for tag, exchange, key, header, body, repeated in zip(
        tags, exchanges, keys, headers, bodies, redelivered, strict=True
    ):
        if _fits(body, frame_max):
            shape = _shape(channel, consumer_tag, exchange, key, len(header), len(body))
            pieces.append(
                shape.packer.pack(shape.before, tag, repeated, shape.after, header, shape.between, body, END)
            )
        else:
            before, after = _method_parts(channel, consumer_tag, exchange, key)
            pieces.append(before + _TAG.pack(tag, repeated) + after)
            pieces += content_frames(channel, header, body, frame_max=frame_max)
    return pieces


def _fits(body: bytes, frame_max: int) -> bool:
    """Return whether the body takes exactly one frame."""
    return 0 < len(body) <= frame_max - OVERHEAD_BYTES if frame_max else bool(body)


_TAG = Struct(">Q?")
_DELIVER = b"\x00\x3c\x00\x3c"


def _method_parts(channel: int, consumer_tag: bytes, exchange: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Return the method frame before and after the delivery tag and the redelivered flag."""
    before = _DELIVER + bytes((len(consumer_tag),)) + consumer_tag
    after = bytes((len(exchange),)) + exchange + bytes((len(key),)) + key
    size = len(before) + _TAG.size + len(after)
    return FRAME.pack(METHOD, channel, size) + before, after + END


@lru_cache(maxsize=4096)
def _shape(
    channel: int, consumer_tag: bytes, exchange: bytes, key: bytes, header_bytes: int, body_bytes: int
) -> _Shape:
    before, after = _method_parts(channel, consumer_tag, exchange, key)
    after += FRAME.pack(HEADER, channel, header_bytes)
    between = END + FRAME.pack(BODY, channel, body_bytes)
    layout = f">{len(before)}sQ?{len(after)}s{header_bytes}s{len(between)}s{body_bytes}sc"
    return _Shape(Struct(layout), before, after, between)
