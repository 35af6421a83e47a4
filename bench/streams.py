"""The two ends of a measured stream, on non-blocking sockets: `Publishing` and `Consuming`.

Both walk through a `Load` that was encoded beforehand, so their work is per read and per write, never per
message: a publish is a slice of the stream, a delivery is compared byte for byte with what must come, acks
are a slice again (one frame each, without the multiple flag). They check everything: no nack, no tag
confirmed twice, no delivery missing, doubled, changed, out of order or redelivered. They leave waiting and
pacing to `bench.generator`.
"""

from __future__ import annotations

import socket
from bisect import bisect_right

from bench.frames import ACK, CHANNEL, METHOD, PREFIX, SETTLEMENT, Load
from bench.peer import Unexpected

SEND_BYTES = 256 << 10
RECEIVE_BYTES = 1 << 20


class Stall(Exception):
    """Nothing came from the broker for too long."""


def read(connection: socket.socket, buffer: memoryview) -> int:
    """Bytes read, none when there is nothing to read yet."""
    try:
        size = connection.recv_into(buffer)
    except BlockingIOError:
        return 0
    if not size:
        raise Unexpected("the broker closed the connection")
    return size


def write(connection: socket.socket, data: memoryview) -> int:
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


class Confirms:
    """Which publishes are confirmed. Every frame must be a `basic.ack`, every tag is confirmed once."""

    def __init__(self, count: int) -> None:
        self.count = 0
        self._known = bytearray(count + 1)
        self._low = 1
        self._rest = b""

    def feed(self, data: memoryview) -> None:
        """One loop per confirm frame: brokers that send one per message pay for it themselves."""
        whole = self._rest + data
        end = len(whole) - len(whole) % SETTLEMENT.size
        for kind, channel, size, *ids, tag, multiple, closing in SETTLEMENT.iter_unpack(whole[:end]):
            if (kind, channel, size, *ids, closing) != (METHOD, CHANNEL, 13, *ACK, 0xCE) or multiple > 1:
                raise Unexpected(f"not a confirm: {describe(whole)}")
            self._confirm(tag, bool(multiple))
        self._rest = whole[end:]

    def _confirm(self, tag: int, multiple: bool) -> None:
        if not 0 < tag < len(self._known) or self._known[tag]:
            raise Unexpected(f"publish {tag} was confirmed twice, or never sent")
        low = self._low if multiple else tag
        self.count += self._known.count(0, low, tag + 1)
        if multiple:
            self._known[low : tag + 1] = b"\1" * (tag + 1 - low)
            self._low = tag + 1
        else:
            self._known[tag] = 1


class Publishing:
    """Sends the publishes of a load, as far as it is allowed to, and takes in their confirms."""

    def __init__(self, connection: socket.socket, load: Load) -> None:
        self.socket = connection
        self.confirms = Confirms(load.count)
        self._stream = memoryview(load.publishes)
        self._ends = load.publish_ends
        self._position = 0
        self._limit = 0
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    @property
    def wants_to_send(self) -> bool:
        return self._position < self._limit

    def allow(self, messages: int) -> None:
        """Permits so many messages in all."""
        self._limit = self._ends[min(messages, len(self._ends)) - 1]

    def send(self) -> None:
        end = min(self._limit, self._position + SEND_BYTES)
        self._position += write(self.socket, self._stream[self._position : end])

    def receive(self) -> None:
        self.confirms.feed(self._buffer[: read(self.socket, self._buffer)])


class Consuming:
    """Compares what is delivered with the load, and acks each message by a frame of its own."""

    def __init__(self, connection: socket.socket, load: Load, *, auto_ack: bool) -> None:
        self.socket = connection
        self.delivered = 0
        self.acked = 0
        self._auto_ack = auto_ack
        self._expected = load.deliveries
        self._ends = load.delivery_ends
        self._position = 0
        self._acks = memoryview(load.acks)
        self._ack_position = 0
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    @property
    def wants_to_send(self) -> bool:
        return not self._auto_ack and self._ack_position < self.delivered * SETTLEMENT.size

    def receive(self) -> None:
        """`bytes.startswith` is a memcmp without a copy."""
        data = self._buffer[: read(self.socket, self._buffer)]
        if not self._expected.startswith(data, self._position):
            raise Unexpected(f"after {self.delivered} deliveries: {self._difference(bytes(data))}")
        self._position += len(data)
        self.delivered = bisect_right(self._ends, self._position)
        if self._auto_ack:
            self.acked = self.delivered

    def send(self) -> None:
        """All acks that are due, in one send."""
        end = self.delivered * SETTLEMENT.size
        self._ack_position += write(self.socket, self._acks[self._ack_position : end])
        self.acked = self._ack_position // SETTLEMENT.size

    def _difference(self, data: bytes) -> str:
        expected = self._expected[self._position : self._position + len(data)]
        at = next((i for i, (a, b) in enumerate(zip(data, expected, strict=False)) if a != b), len(expected))
        start = max(0, at - 40)
        return f"got {describe(data[start : at + 80])}, expected {describe(expected[start : at + 80])}"


def describe(data: bytes) -> str:
    """The first bytes, and the frame they seem to open."""
    if len(data) < PREFIX.size:
        return data.hex()
    kind, channel, size = PREFIX.unpack_from(data)
    return f"[type {kind} channel {channel} size {size}] {data[:120]!r}"
