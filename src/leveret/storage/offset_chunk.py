"""One chunk of an offset set: which of 65,536 consecutive offsets are members.

A chunk has one of two shapes: *bounds* while it has few runs, a *bitmap* when it has many. Numbers count from
the start of the chunk. The place of chunks and the checks of ranges are left to `offset_set.py`. Searches and
counts use integers and regular expressions, so that no Python loop runs for each bit or byte. Two rules:
`Chunk.count` is exact after every operation, and `FULL`, which all sets share, never changes.

    bounds   array of start, stop, start, stop, ... ascending, stop exclusive; x is a member if the number
             of bounds <= x is odd
    bits     8,192 bytes; x is a member if bit x % 8 (lowest first) of byte x // 8 is set
"""

import re
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

CHUNK_BITS: Final = 16
CHUNK_SIZE: Final = 1 << CHUNK_BITS
BITMAP_BYTES: Final = CHUNK_SIZE // 8

# A single offset takes 1.4 µs in bounds, and 0.22 µs in a bitmap within a batch. 32 runs take 0.3 KiB, a
# bitmap 8 KiB. A bitmap becomes bounds only when there can't be more than 17 runs: that needs no counting,
# and a chunk can't change its shape at every operation.
RUNS_MAX: Final = 32
SPARSE_COUNT: Final = 16
DENSE_COUNT: Final = CHUNK_SIZE - SPARSE_COUNT

KIND_FULL: Final = 1
KIND_RUNS: Final = 2
KIND_BITMAP: Final = 3

_NOT_EMPTY = re.compile(rb"[\x01-\xff]")
_NOT_FULL = re.compile(rb"[\x00-\xfe]")
# Bytes compared at once before the search: a whole bitmap takes 3 µs instead of 30.
_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_ONES: Final = b"\xff" * _BLOCK
_RUN = re.compile("1+")
# Offsets converted to text at once, so that a small `take` does not convert the whole chunk.
_WINDOW: Final = 1024


def splice(bounds: "array[int]", lo: int, hi: int, member: bool) -> int:
    """Make [lo, hi) all members or all absent; return the change of the number of members.

    Removing is adding to the complement, so both differ only in the parity of an index: after an even number
    of bounds, a position is outside of every run.
    """
    first = bisect_left(bounds, lo)
    last = bisect_right(bounds, hi)
    if first == last:
        if first & 1 == member:
            return 0
        bounds[first:first] = array("I", (lo, hi))
        return hi - lo if member else lo - hi
    keeps_lo = first & 1 == (not member)
    keeps_hi = last & 1 == (not member)
    before = sum(bounds[first | 1 : last : 2]) - sum(bounds[first + (first & 1) : last : 2])
    edges = ([lo] if keeps_lo else []) + ([hi] if keeps_hi else [])
    bounds[first:last] = array("I", edges)
    after = hi * keeps_hi - lo * keeps_lo
    return (after if member else -after) - before


def window(bits: bytearray, lo: int, hi: int) -> int:
    """Return the bits of [lo, hi) as an integer with `lo` as the lowest bit."""
    word = int.from_bytes(bits[lo >> 3 : (hi + 7) >> 3], "little") >> (lo & 7)
    return word & ((1 << (hi - lo)) - 1)


def fill(bits: bytearray, lo: int, hi: int, member: bool) -> int:
    """Set or clear the bits of [lo, hi); return how many of them were set before."""
    first, last = lo >> 3, (hi + 7) >> 3
    word = int.from_bytes(bits[first:last], "little")
    mask = ((1 << (hi - lo)) - 1) << (lo & 7)
    before = (word & mask).bit_count()
    word |= mask
    bits[first:last] = (word if member else word ^ mask).to_bytes(last - first, "little")
    return before


def find_bit(bits: bytearray, lo: int, member: bool) -> int:
    """Return the lowest set (or clear) bit from `lo` on, or CHUNK_SIZE if there is none."""
    if lo >= CHUNK_SIZE:
        return CHUNK_SIZE
    flip = 0 if member else 0xFF
    byte = (bits[lo >> 3] ^ flip) >> (lo & 7) << (lo & 7)
    index = lo >> 3
    if not byte:
        index += 1
        while bits.startswith(_ZEROS if member else _ONES, index):
            index += _BLOCK
        match = (_NOT_EMPTY if member else _NOT_FULL).search(bits, index)
        if match is None:
            return CHUNK_SIZE
        index = match.start()
        byte = bits[index] ^ flip
    return index * 8 + (byte & -byte).bit_length() - 1


def bitmap_runs(bits: bytearray, lo: int, hi: int, *, base: int) -> Iterator[tuple[int, int]]:
    """Yield the maximal runs in [lo, hi), moved up by `base`: 0.3 µs per run with a regular expression."""
    lo = find_bit(bits, lo, True)
    while lo < hi:
        edge = min(lo + _WINDOW, hi)
        stop = lo
        for match in _RUN.finditer(format(window(bits, lo, edge), "b")[::-1]):
            start, stop = match.span()
            stop += lo
            if stop == edge:
                stop = min(find_bit(bits, edge, False), hi)
            yield base + lo + start, base + stop
        lo = find_bit(bits, max(edge, stop), True)


class Chunk:
    """A set of numbers below CHUNK_SIZE, created with its first run. `bounds` is empty while `bits` is used.

    >>> chunk = Chunk(0, 10)
    >>> chunk.add(5, 12), chunk.remove(1, 3), chunk.count
    (2, 2, 10)
    """

    __slots__ = ("bits", "bounds", "count")

    def __init__(self, lo: int, hi: int) -> None:
        self.count = hi - lo
        self.bounds = array("I", (lo, hi))
        self.bits: bytearray | None = None

    def add(self, lo: int, hi: int) -> int:
        """Add [lo, hi); return how many were absent."""
        if self.bits is not None:
            added = hi - lo - fill(self.bits, lo, hi, True)
        elif self.bounds[-1] == lo:
            self.bounds[-1] = hi
            added = hi - lo
        else:
            added = splice(self.bounds, lo, hi, True)
        self.count += added
        self.reshape()
        return added

    def remove(self, lo: int, hi: int) -> int:
        """Remove [lo, hi); return how many were members. The owner must drop an empty chunk."""
        bounds = self.bounds
        if self.bits is not None:
            removed = fill(self.bits, lo, hi, False)
        elif bounds[0] == lo and hi < bounds[1]:
            bounds[0] = hi
            removed = hi - lo
        else:
            removed = -splice(bounds, lo, hi, False)
        self.count -= removed
        self.reshape()
        return removed

    def reshape(self) -> None:
        """Change to the other shape if it suits the members better."""
        if self.bits is None:
            if len(self.bounds) > 2 * RUNS_MAX:
                self.bits = self.to_bits()
                self.bounds = array("I")
        elif self.count <= SPARSE_COUNT or self.count >= DENSE_COUNT:
            self.bounds = self.to_bounds()
            self.bits = None

    def to_bits(self) -> bytearray:
        """Return the members as a bitmap: the chunk's own or a new one."""
        if self.bits is not None:
            return self.bits
        bits = bytearray(BITMAP_BYTES)
        for lo, hi in zip(self.bounds[::2], self.bounds[1::2], strict=True):
            fill(bits, lo, hi, True)
        return bits

    def to_bounds(self) -> "array[int]":
        """Return the members as bounds: the chunk's own or new ones."""
        if self.bits is None:
            return self.bounds
        return array("I", [bound for run in bitmap_runs(self.bits, 0, CHUNK_SIZE, base=0) for bound in run])

    def has(self, number: int) -> bool:
        if self.bits is not None:
            return self.bits[number >> 3] >> (number & 7) & 1 == 1
        return bisect_right(self.bounds, number) & 1 == 1

    def find(self, lo: int, member: bool) -> int:
        """Return the lowest member (or absent number) from `lo` on, or CHUNK_SIZE if there is none."""
        if self.bits is not None:
            return find_bit(self.bits, lo, member)
        index = bisect_right(self.bounds, lo)
        if index & 1 == member:
            return lo
        return self.bounds[index] if index < len(self.bounds) else CHUNK_SIZE

    def last(self) -> int:
        if self.bits is None:
            return self.bounds[-1] - 1
        length = len(self.bits.rstrip(b"\x00"))
        return length * 8 - 9 + self.bits[length - 1].bit_length()

    def count_in(self, lo: int, hi: int) -> int:
        if self.bits is not None:
            return window(self.bits, lo, hi).bit_count()
        # The copy has at most 64 bounds.
        return -splice(self.bounds[:], lo, hi, False)

    def count_runs(self, lo: int, hi: int) -> int:
        """Return how many maximal runs begin in [lo, hi)."""
        if self.bits is not None:
            word = window(self.bits, lo, hi)
            return (word & ~(word << 1)).bit_count()
        return (bisect_left(self.bounds, hi) + 1) // 2 - bisect_right(self.bounds, lo) // 2

    def runs(self, lo: int, hi: int, *, base: int) -> Iterator[tuple[int, int]]:
        """Yield the maximal runs in [lo, hi), ascending, moved up by `base`."""
        if self.bits is not None:
            yield from bitmap_runs(self.bits, lo, hi, base=base)
            return
        bounds = self.bounds
        for index in range(bisect_right(bounds, lo) & ~1, len(bounds), 2):
            if bounds[index] >= hi:
                return
            yield base + max(bounds[index], lo), base + min(bounds[index + 1], hi)

    def same(self, other: "Chunk") -> bool:
        """Return whether both chunks have the same members, whatever their shapes."""
        if self.count != other.count:
            return False
        if self.bits is None and other.bits is None:
            return self.bounds == other.bounds
        return self.to_bits() == other.to_bits()

    def copy(self) -> "Chunk":
        if self is FULL:
            return self
        twin = Chunk(0, 0)
        twin.count = self.count
        twin.bounds = self.bounds[:]
        twin.bits = None if self.bits is None else self.bits[:]
        return twin

    @property
    def memory_bytes(self) -> int:
        if self is FULL:
            return 0
        return sum(map(sys.getsizeof, (self, self.bounds, self.bits)))

    def encode(self) -> tuple[int, int, bytes]:
        """Return kind, number of runs and payload (see `offset_set.py`), whatever the chunk's shape."""
        if self.count == CHUNK_SIZE:
            return KIND_FULL, 0, b""
        if self.bits is not None and self.count_runs(0, CHUNK_SIZE) > RUNS_MAX:
            return KIND_BITMAP, 0, bytes(self.bits)
        bounds = self.to_bounds()
        return KIND_RUNS, len(bounds) // 2, struct.pack(f"<{len(bounds)}I", *bounds)


FULL: Final = Chunk(0, CHUNK_SIZE)


def payload_bytes(kind: int, runs: int) -> int:
    """Return the length of an encoded chunk's payload. Raise ValueError for an unknown kind."""
    if kind == KIND_RUNS and runs:
        return runs * 8
    if runs or kind not in (KIND_FULL, KIND_BITMAP):
        raise ValueError(f"offset set: a chunk can't have kind {kind} and {runs} runs")
    return BITMAP_BYTES if kind == KIND_BITMAP else 0


def decode_chunk(kind: int, payload: bytes) -> Chunk:
    """Return the chunk that `encode` made into this payload. Raise ValueError for any other payload."""
    if kind == KIND_FULL:
        return FULL
    chunk = Chunk(0, 0)
    if kind == KIND_BITMAP:
        chunk.bits = bytearray(payload)
        chunk.bounds = array("I")
        chunk.count = int.from_bytes(payload, "little").bit_count()
    else:
        chunk.bounds = array("I", struct.unpack(f"<{len(payload) // 4}I", payload))
        bounds = chunk.bounds
        if bounds[-1] > CHUNK_SIZE or any(map(int.__ge__, bounds, bounds[1:])):
            raise ValueError("offset set: the runs of a chunk do not ascend, touch, or leave the chunk")
        chunk.count = sum(bounds[1::2]) - sum(bounds[::2])
    if not 0 < chunk.count < CHUNK_SIZE:
        raise ValueError("offset set: a chunk of runs or a bitmap is empty or full")
    chunk.reshape()
    return chunk
