"""A second reading of the frame layer, to compare the scanner with: slow, plain, and written on its own.

It sees all bytes at once and goes through them frame by frame, without runs and without fast ways. What it
finds are tuples, one per frame that completes something; `flattened` brings the scanner's events, in which
runs are one, into the same form.
"""

import struct
from collections.abc import Iterable

from leveret.amqp.events import (
    Contents,
    Event,
    Heartbeat,
    MethodFrame,
    Oversized,
    ProtocolHeader,
    Settlement,
    Violation,
)

Seen = tuple[object, ...]
SETTLING = {80: "ack", 90: "reject", 120: "nack"}
WITH_CONTENT = (40, 50, 60, 71)


class Wrong(Exception):
    """`Wrong(505)`: the connection is to be closed with that code."""


def flattened(events: Iterable[Event], *, texts: bool = False) -> list[Seen]:
    """One tuple per frame, message or mistake; with `texts` also what a peer is told of its mistakes."""
    found: list[Seen] = []
    for event in events:
        match event:
            case ProtocolHeader():
                found.append(("greeting", event.data))
            case MethodFrame():
                found.append(("method", event.channel, event.payload))
            case Contents():
                found += [("content", event.channel, event.method, *each) for each in event.contents]
            case Settlement():
                assert event.first == event.last or not event.multiple
                found += [
                    (SETTLING[event.kind], event.channel, tag, event.multiple, event.requeue)
                    for tag in range(event.first, event.last + 1)
                ]
            case Oversized():
                found.append(("oversized", event.channel, event.method, event.size_bytes))
            case Violation():
                text = (event.error.sentence,) if texts else ()
                found.append(("wrong", event.channel, event.error.code, event.lost, *text))
            case Heartbeat():
                found.append(("heartbeat",))
    return found


def read(data: bytes, *, greeted: bool, frame_max: int, message_max_bytes: int) -> list[Seen]:
    """Everything that whole frames in `data` say."""
    seen: list[Seen] = []
    position = 0
    if not greeted:
        if len(data) < 8:
            return seen
        seen.append(("greeting", data[:8]))
        position = 8
    channels: dict[int, list[bytes]] = {}
    while len(data) - position >= 8:
        kind, channel, size = struct.unpack_from(">BHI", data, position)
        if frame_max and size > frame_max:
            return [*seen, ("wrong", channel, 501, True)]
        payload, rest = data[position + 7 : position + 7 + size], data[position + 7 + size :][:1]
        if not rest:
            return seen
        if rest != b"\xce":
            return [*seen, ("wrong", channel, 501, True)]
        position += 8 + size
        try:
            seen += _take(channels, kind, channel, payload, message_max_bytes)
        except Wrong as wrong:
            channels.pop(channel, None)
            seen.append(("wrong", channel, wrong.args[0], False))
    return seen


def _take(
    channels: dict[int, list[bytes]], kind: int, channel: int, payload: bytes, message_max_bytes: int
) -> list[Seen]:
    """One frame. `channels` has the frames so far of each message in progress: method, header, bodies."""
    if kind not in (1, 2, 3, 8) or (kind == 8 and payload):
        raise Wrong(501)
    if kind == 8 and channel == 0:
        return [("heartbeat",)]
    if kind == 8 or (channel == 0 and kind != 1):
        raise Wrong(505)
    frames = channels.setdefault(channel, [])
    expected = min(len(frames) + 1, 3)
    if kind != expected:
        raise Wrong(505)
    frames.append(payload)
    seen: list[Seen] = []
    if kind == 1 and (channel == 0 or not _has_content(payload)):
        channels.pop(channel)
        return [_settlement(channel, payload) or ("method", channel, payload)]
    if kind == 2:
        _check_header(payload)
        if _announced(payload) > message_max_bytes:
            seen.append(("oversized", channel, frames[0], _announced(payload)))
    if len(frames) > 1:
        body, announced = b"".join(frames[2:]), _announced(frames[1])
        if len(body) > announced:
            raise Wrong(505)
        if len(body) == announced:
            channels.pop(channel)
            if announced <= message_max_bytes:
                seen.append(("content", channel, frames[0], frames[1], body))
    return seen


def _has_content(payload: bytes) -> bool:
    return len(payload) >= 4 and struct.unpack_from(">HH", payload) in [(60, each) for each in WITH_CONTENT]


def _settlement(channel: int, payload: bytes) -> Seen | None:
    if len(payload) != 13:
        return None
    class_id, method_id, tag, bits = struct.unpack(">HHQB", payload)
    if class_id != 60 or method_id not in SETTLING:
        return None
    first, second = bool(bits & 1), bool(bits & 2)
    multiple = first and method_id != 90
    requeue = {80: False, 90: first, 120: second}[method_id]
    return (SETTLING[method_id], channel, tag, multiple, requeue)


def _check_header(payload: bytes) -> None:
    if payload[2:4] not in (b"", b"\0\0"):
        raise Wrong(505)
    if len(payload) < 14:
        raise Wrong(501)
    if payload[:2] != b"\0\x3c":
        raise Wrong(505)


def _announced(header: bytes) -> int:
    return int.from_bytes(header[4:12], "big")
