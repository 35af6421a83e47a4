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
DELIVERY_MODE_FLAG, MESSAGE_ID_FLAG = 1 << 12, 1 << 7


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


def make_load(shape: Shape, count: int) -> Load:
    """Encodes a run: about three microseconds a message."""
    methods = [publish(shape.exchange, key) for key in shape.keys]
    around = [deliver_around_tag(shape.exchange, key) for key in shape.keys]
    kinds = len(methods)
    content = contents(shape, count)
    published = [methods[number % kinds] + content[number] for number in range(count)]
    delivered = []
    for number in range(count):
        before, after = around[number % kinds]
        delivered.append(before + SEQUENCE.pack(number + 1) + after + content[number])
    return Load(
        publishes=b"".join(published),
        publish_ends=array("Q", accumulate(map(len, published))),
        deliveries=b"".join(delivered),
        delivery_ends=array("Q", accumulate(map(len, delivered))),
        acks=b"".join(settlement(tag, multiple=False) for tag in range(1, count + 1)),
    )
