"""What a Flight read and a Flight write are about: the ticket of `do_get`, the descriptor of `do_put`.

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
    """Messages of a queue by their offsets."""

    vhost: str
    queue: str
    log_id: int
    ranges: bytes
    with_headers: bool = False
    """Whether content headers come along: properties are read from them."""
    exact: bool = True
    """Whether it is an error when some of them are gone."""


class PieceTicket(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What one piece of a picture tells: rows of `storage.events`."""

    picture: str
    event: Literal["published", "told", "standing"]
    log_id: int
    segment: int


class StageDescriptor(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Rows of one task of one batch: hidden until the batch is committed."""

    vhost: str
    query: str
    batch: int
    stage: str
    """A name that no other attempt of any task has."""
    timeout_s: float
    """How long it is kept without a commit."""
    unroutable: str | None = None
    """The exchange for rows that no queue takes; None makes them an error, if they are mandatory."""
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
    """The ranges of a ticket; `OutOfBounds` where they are no ranges, or not in order."""
    try:
        found = unpack_ranges(data)
    except ValueError:
        raise OutOfBounds(f"{len(data)} bytes are no ranges of offsets: each has {RANGE_BYTES}") from None
    end = 0
    for start, stop in found:
        if not end <= start < stop < OFFSET_MAX:
            raise OutOfBounds(f"a range of offsets from {start} to {stop} after one to {end} makes no sense")
        end = stop
    return found
