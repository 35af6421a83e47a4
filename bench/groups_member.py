"""A member of a group on a non-blocking socket, where it can't be said beforehand in which order things come.

`Deliveries` cuts what arrives into deliveries, run by run of the same size, and checks all of their bytes:
everything but tag, offset and number is compared with frames made by `bench.frames`. Half a microsecond each.
`Member` joins, takes deliveries in and sends settlements; what it makes of them is left to the measurements.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from bench.frames import (
    ACK,
    CHANNEL,
    CONSUMER_TAG,
    FRAME_END,
    IDS,
    METHOD,
    PREFIX,
    SEQUENCE,
    SETTLEMENT,
    Load,
    Shape,
    around_offset,
    method,
    short,
)
from bench.peer import Arguments, Client, Unexpected, consume_frame
from bench.streams import RECEIVE_BYTES, describe, read, write

NACK = (60, 120)
DELIVER, CONSUME_OK, CANCEL_OK = (60, 60), (60, 21), (60, 31)
REQUEUE = 2
COUNT_FIELD, STREAM_FIELD = b"\x10x-delivery-countl", b"\x08x-streamS"


class Delivery(NamedTuple):
    tag: int
    stream: str
    offset: int
    number: int
    """What its body opens with."""
    returns: int
    """How often it had come back."""


class _Layout(NamedTuple):
    """Deliveries of one size: where the parts are that differ, and the first part, which does not."""

    struct: Struct
    before: bytes


class Deliveries:
    """`for delivery in deliveries.feed(data)`; other methods must be announced in `awaited`."""

    def __init__(self, shape: Shape, load: Load) -> None:
        self.awaited: set[tuple[int, int]] = set()
        """Methods that may come; the one that came is taken out."""
        self._shape = shape
        self._tail = load.publishes[SEQUENCE.size - shape.body_bytes - len(FRAME_END) :]
        self._after = around_offset(shape, "")[1]
        self._layouts: dict[tuple[int, int], _Layout] = {}
        self._known: dict[bytes, tuple[str, int]] = {}
        """What may stand between tag and offset: the stream, and how often it had come back."""
        self._rest = b""

    def feed(self, data: memoryview) -> list[Delivery]:
        whole = self._rest + data
        found: list[Delivery] = []
        at = 0
        while (layout := self._layout_at(whole, at)) is not None:
            if isinstance(layout, int):
                at += layout
                continue
            size = layout.struct.size
            count = (len(whole) - at) // size
            if not count:
                break
            taken = self._take(whole, at, layout, count)
            found += taken
            at += size * len(taken)
        self._rest = whole[at:]
        return found

    def _take(self, whole: bytes, at: int, layout: _Layout, count: int) -> list[Delivery]:
        """Deliveries from there on, until one is not of this layout."""
        found: list[Delivery] = []
        known, opening, closing, end = self._known, layout.before, self._after, self._tail
        run = memoryview(whole)[at : at + count * layout.struct.size]
        for before, tag, again, between, offset, after, number, tail in layout.struct.iter_unpack(run):
            kind = known.get(between)
            if kind is None or before != opening or after != closing or tail != end or again != (kind[1] > 0):
                here = at + len(found) * layout.struct.size
                if self._layout_at(whole, here) is not layout:
                    return found
                kind = self._learn(whole[here : here + layout.struct.size], between, again)
                if before != opening or after != closing or tail != end:
                    raise Unexpected(f"not a delivery of the run: {describe(whole[here:])}")
            found.append(Delivery(tag, kind[0], offset, number, kind[1]))
        return found

    def _layout_at(self, whole: bytes, at: int) -> _Layout | int | None:
        """The layout of the delivery that begins there, or how many bytes of an awaited method to pass over.

        None when what came ends before that can be said.
        """
        if len(whole) < at + PREFIX.size + IDS.size:
            return None
        kind, _, method_bytes = PREFIX.unpack_from(whole, at)
        if kind != METHOD or (ids := IDS.unpack_from(whole, at + PREFIX.size)) != DELIVER:
            return self._pass_over(whole, at)
        if CONSUME_OK in self.awaited:
            raise Unexpected("a delivery came before the answer to basic.consume")
        header_at = at + PREFIX.size + method_bytes + len(FRAME_END)
        if len(whole) < header_at + PREFIX.size:
            return None
        header_bytes = PREFIX.unpack_from(whole, header_at)[2]
        sizes = method_bytes, header_bytes
        if sizes not in self._layouts:
            self._layouts[sizes] = self._make_layout(*sizes, ids)
        return self._layouts[sizes]

    def _make_layout(self, method_bytes: int, header_bytes: int, ids: tuple[int, int]) -> _Layout:
        before = PREFIX.pack(METHOD, CHANNEL, method_bytes) + IDS.pack(*ids) + short(CONSUMER_TAG)
        total = method_bytes + header_bytes + self._shape.body_bytes + 3 * (PREFIX.size + len(FRAME_END))
        fixed = len(before) + 9 + SEQUENCE.size + len(self._after) + SEQUENCE.size + len(self._tail)
        if total <= fixed:
            raise Unexpected(f"a delivery of {total} bytes")
        layout = f">{len(before)}sQB{total - fixed}sQ{len(self._after)}sQ{len(self._tail)}s"
        return _Layout(Struct(layout), before)

    def _pass_over(self, whole: bytes, at: int) -> int | None:
        kind, _, size = PREFIX.unpack_from(whole, at)
        total: int = PREFIX.size + size + len(FRAME_END)
        if len(whole) < at + total:
            return None
        ids = IDS.unpack_from(whole, at + PREFIX.size)
        if kind != METHOD or ids not in self.awaited:
            raise Unexpected(f"neither a delivery nor awaited: {describe(whole[at:])}")
        self.awaited.discard(ids)
        return total

    def _learn(self, delivery: bytes, between: bytes, again: int) -> tuple[str, int]:
        """What its headers say, if they are made as they must be."""
        exchange_bytes = between[0]
        exchange = between[1 : 1 + exchange_bytes].decode()
        key = between[2 + exchange_bytes : 2 + exchange_bytes + between[1 + exchange_bytes]].decode()
        count_at, stream_at = between.find(COUNT_FIELD), between.find(STREAM_FIELD)
        if stream_at < 0:
            raise Unexpected(f"a delivery without its stream: {delivery!r}")
        returns = 0
        if count_at >= 0:
            (returns,) = SEQUENCE.unpack_from(between, count_at + len(COUNT_FIELD))
        size_at = stream_at + len(STREAM_FIELD)
        size = int.from_bytes(between[size_at : size_at + 4], "big")
        stream = between[size_at + 4 : size_at + 4 + size].decode()
        opening = short(exchange) + short(key) + FRAME_END
        expected = opening + around_offset(self._shape, stream, returns=returns)[0]
        if between != expected or again != (returns > 0):
            raise Unexpected(f"redelivered {again}, got {between!r}, expected {expected!r}")
        self._known[between] = (stream, returns)
        return stream, returns


class Member:
    """`Member(client, shape, load)`; `member.join("topic", prefetch=100, arguments={"x-group": "a"})`."""

    def __init__(self, client: Client, shape: Shape, load: Load) -> None:
        self.client = client
        self.socket: socket.socket = client.socket
        self.delivered = 0
        self._deliveries = Deliveries(shape, load)
        self._out = bytearray()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    def join(self, subject: str, *, prefetch: int, arguments: Arguments) -> None:
        self.client.consume(subject, prefetch=prefetch, arguments=arguments)
        self.socket.setblocking(False)

    def ask_to_join(self, subject: str, *, prefetch: int, arguments: Arguments) -> None:
        """The same without waiting for the answer."""
        self.client.limit(prefetch)
        self.socket.setblocking(False)
        self._deliveries.awaited.add(CONSUME_OK)
        self._out += consume_frame(subject, arguments=arguments)

    @property
    def wants_to_send(self) -> bool:
        return bool(self._out)

    def send(self) -> None:
        with memoryview(self._out) as data:
            size = write(self.socket, data)
        del self._out[:size]

    def receive(self) -> list[Delivery]:
        found = self._deliveries.feed(self._buffer[: read(self.socket, self._buffer)])
        self.delivered += len(found)
        return found

    def ack(self, tags: Iterable[int]) -> None:
        """A frame for each."""
        self._settle(tags, ACK, 0)

    def send_back(self, tags: Iterable[int]) -> None:
        self._settle(tags, NACK, REQUEUE)

    def _settle(self, tags: Iterable[int], ids: tuple[int, int], bits: int) -> None:
        pack = SETTLEMENT.pack
        self._out += b"".join([pack(METHOD, CHANNEL, 13, *ids, tag, bits, 0xCE) for tag in tags])

    def cancel(self) -> None:
        """Deliveries may still come before the answer."""
        self._deliveries.awaited.add(CANCEL_OK)
        self._out += method(60, 30, short(CONSUMER_TAG) + b"\0")

    @property
    def is_answered(self) -> bool:
        return not self._deliveries.awaited

    def hang_up(self) -> None:
        """Asks for the end of the connection, and waits for nothing."""
        self._out += method(10, 50, (200).to_bytes(2, "big") + short("") + bytes(4), channel=0)

    def close(self) -> None:
        """When nothing more is to come: settlements that wait are sent first."""
        self.socket.setblocking(True)
        if self._out:
            self.socket.sendall(self._out)
        self.client.close()
