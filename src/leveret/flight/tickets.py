"""The ticket of a Flight read (`do_get`) and the descriptor of a Flight write (`do_put`).

>>> unpack_ranges(pack_ranges([(5, 9), (12, 13)]))
[(5, 9), (12, 13)]
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Literal

import msgspec

from leveret.flight.bounds import OFFSET_MAX, RANGE_BYTES, OutOfBounds


class ReadTicket(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Reads messages of a queue by offset."""

    vhost: str
    queue: str
    log_id: int
    ranges: bytes
    with_headers: bool = False
    """Whether rows have content headers, from which properties are read."""
    exact: bool = True
    """Whether missing messages are an error."""


class PieceTicket(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Reads one piece of a store snapshot: rows of `storage.message_events`."""

    picture: str
    event: Literal["published", "told", "standing"]
    log_id: int
    segment: int


class StageDescriptor(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Writes rows of one task of a batch, hidden until the batch is committed."""

    vhost: str
    query: str
    batch: int
    stage: str
    """Name of the stage, unique for each attempt of a task."""
    timeout_s: float
    """Time after which an uncommitted stage is deleted."""
    unroutable: str | None = None
    """Exchange for unroutable rows; None makes them an error if `mandatory` is set."""
    mandatory: bool = True


_encoder = msgspec.msgpack.Encoder()
_tickets: msgspec.msgpack.Decoder[ReadTicket | PieceTicket] = msgspec.msgpack.Decoder(
    ReadTicket | PieceTicket
)
_descriptors = msgspec.msgpack.Decoder(StageDescriptor)


def encode(ticket: ReadTicket | PieceTicket | StageDescriptor) -> bytes:
    return _encoder.encode(ticket)


def decode_ticket(data: bytes) -> ReadTicket | PieceTicket:
    return _tickets.decode(data)


def decode_descriptor(data: bytes) -> StageDescriptor:
    return _descriptors.decode(data)


def pack_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    flat = array("Q", chain.from_iterable(ranges))
    if sys.byteorder == "big":
        flat.byteswap()
    return flat.tobytes()


def unpack_ranges(data: bytes) -> list[tuple[int, int]]:
    flat = array("Q", data)
    if sys.byteorder == "big":
        flat.byteswap()
    return list(zip(flat[::2], flat[1::2], strict=True))


def ascending_ranges(data: bytes) -> list[tuple[int, int]]:
    """Return the ranges of a ticket; raise `OutOfBounds` if they are malformed or not in order."""
    try:
        ranges = unpack_ranges(data)
    except ValueError:
        raise OutOfBounds(f"{len(data)} bytes can't be ranges of offsets: each has {RANGE_BYTES}") from None
    end = 0
    for start, stop in ranges:
        if not end <= start < stop < OFFSET_MAX:
            raise OutOfBounds(f"ranges of offsets must ascend: {start} to {stop} follows one to {end}")
        end = stop
    return ranges
