"""AMQP 0-9-1 frames as the load generator needs them: made once, before the clock starts.

A `Load` is everything that will pass between the generator and a broker in one run, encoded in full: the
publishes, the deliveries that must come back, the acks. Sending is then slicing, and checking every byte of
every delivery is one comparison per read. This module shares no code with `leveret.amqp`, on purpose: the
benchmark must not judge the broker by the broker's own idea of a frame.

    frame    type u8 | channel u16 | size u32 | payload | 0xCE
    method   class u16 | method u16 | arguments
    header   class u16 | weight u16 | body size u64 | property flags u16 | properties
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct

METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = b"\xce"
CHANNEL = 1
TRANSIENT, PERSISTENT = 1, 2
CONSUMER_TAG = "bench"

PREFIX = Struct(">BHI")
IDS = Struct(">HH")
CONTENT_HEADER = Struct(">HHQHB")
SETTLEMENT = Struct(">BHIHHQBB")  # a whole frame of basic.ack or basic.nack: the tag and one byte of bits
SEQUENCE = Struct(">Q")

ACK = (60, 80)
HEADERS_FLAG, DELIVERY_MODE_FLAG, MESSAGE_ID_FLAG = 1 << 13, 1 << 12, 1 << 7


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return PREFIX.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(class_id: int, method_id: int, arguments: bytes = b"", *, channel: int = CHANNEL) -> bytes:
    return frame(METHOD, IDS.pack(class_id, method_id) + arguments, channel)


def short(text: str) -> bytes:
    """A short string."""
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def long(data: bytes) -> bytes:
    """A long string, or a table whose fields are encoded already."""
    return len(data).to_bytes(4, "big") + data


def table(fields: Mapping[str, str | int | bool]) -> bytes:
    """The fields of a table: texts as long strings, numbers with 64 bits."""
    return b"".join(short(name) + _field(value) for name, value in fields.items())


def _field(value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return b"t" + bytes((value,))
    return b"S" + long(value.encode()) if isinstance(value, str) else b"l" + SEQUENCE.pack(value)


def publish(exchange: str, key: str) -> bytes:
    return method(60, 40, b"\0\0" + short(exchange) + short(key) + b"\0")


def deliver_around_tag(exchange: str, key: str) -> tuple[bytes, bytes]:
    """A `basic.deliver` frame, not redelivered, without the eight bytes of its delivery tag."""
    whole = method(60, 60, short(CONSUMER_TAG) + bytes(8) + b"\0" + short(exchange) + short(key))
    at = PREFIX.size + IDS.size + len(short(CONSUMER_TAG))
    return whole[:at], whole[at + 8 :]


def settlement(tag: int, *, multiple: bool) -> bytes:
    return SETTLEMENT.pack(METHOD, CHANNEL, 13, *ACK, tag, multiple, 0xCE)


@dataclass(frozen=True)
class Shape:
    """What the messages of a run look like."""

    exchange: str = ""
    keys: tuple[str, ...] = ("queue",)
    mode: int = PERSISTENT
    body_bytes: int = 100
    varied: bool = False
    """A message id of its own for each, and sizes from a fifth to nine fifths of `body_bytes`."""


@dataclass(frozen=True)
class Load:
    """The encoded traffic of one run; `*_ends[i]` is where message i ends in its stream."""

    publishes: bytes
    publish_ends: array[int]
    deliveries: bytes
    delivery_ends: array[int]
    acks: bytes

    @property
    def count(self) -> int:
        return len(self.publish_ends)


def contents(shape: Shape, count: int) -> list[bytes]:
    """Header and body frames; every body opens with the message's number."""
    chance = random.Random(count)
    filler = chance.randbytes(2 * shape.body_bytes)
    mode_only = CONTENT_HEADER.pack(60, 0, shape.body_bytes, DELIVERY_MODE_FLAG, shape.mode)
    fixed_header = frame(HEADER, mode_only) + PREFIX.pack(BODY, CHANNEL, shape.body_bytes)
    fixed_tail = filler[SEQUENCE.size : shape.body_bytes] + FRAME_END
    if not shape.varied:
        return [fixed_header + SEQUENCE.pack(number) + fixed_tail for number in range(count)]
    made = []
    for number in range(count):
        size = chance.randint(shape.body_bytes // 5, shape.body_bytes * 9 // 5)
        properties = CONTENT_HEADER.pack(60, 0, size, DELIVERY_MODE_FLAG | MESSAGE_ID_FLAG, shape.mode)
        header = frame(HEADER, properties + short(f"order-{chance.getrandbits(48):x}"))
        made.append(header + frame(BODY, SEQUENCE.pack(number) + filler[SEQUENCE.size : size]))
    return made


def around_offset(shape: Shape, stream: str, *, returns: int = 0) -> tuple[bytes, bytes]:
    """The header frame of a group's delivery without its offset, and with it what opens the body frame."""
    told: dict[str, str | int] = {"x-delivery-count": returns} if returns else {}
    fields = table({**told, "x-stream": stream, "x-stream-offset": 0})
    flags = HEADERS_FLAG | DELIVERY_MODE_FLAG
    opening = CONTENT_HEADER.pack(60, 0, shape.body_bytes, flags, 0)[:-1]
    whole = frame(HEADER, opening + long(fields) + bytes([shape.mode]))
    at = len(whole) - len(FRAME_END) - 1  # behind the offset stand the delivery mode and the end
    return whole[: at - 8], whole[at:] + PREFIX.pack(BODY, CHANNEL, shape.body_bytes)


def stamped(shape: Shape, stream: str, content: list[bytes]) -> list[bytes]:
    """Contents as a group's member is given them that were published to a stream, from its beginning."""
    before, after = around_offset(shape, stream)
    body_at = -shape.body_bytes - len(FRAME_END)
    return [before + SEQUENCE.pack(offset) + after + each[body_at:] for offset, each in enumerate(content)]


def make_load(shape: Shape, count: int, *, stream: str = "") -> Load:
    """Encodes a run: about three microseconds a message. With a stream, deliveries are to a group on it."""
    methods = [publish(shape.exchange, key) for key in shape.keys]
    around = [deliver_around_tag(shape.exchange, key) for key in shape.keys]
    kinds = len(methods)
    content = contents(shape, count)
    published = [methods[number % kinds] + content[number] for number in range(count)]
    coming = stamped(shape, stream, content) if stream else content
    delivered = []
    for number in range(count):
        before, after = around[number % kinds]
        delivered.append(before + SEQUENCE.pack(number + 1) + after + coming[number])
    return Load(
        publishes=b"".join(published),
        publish_ends=array("Q", accumulate(map(len, published))),
        deliveries=b"".join(delivered),
        delivery_ends=array("Q", accumulate(map(len, delivered))),
        acks=b"".join(settlement(tag, multiple=False) for tag in range(1, count + 1)),
    )
