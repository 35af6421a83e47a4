"""Messages, records and batches, and how batches are encoded as bytes.

A *message* is what a caller appends. A *record* is a message with its offset and time. Segments, journals and
WAL frames all hold records in *batches*: a table of fixed-width rows, a column of digests, then the data of
all records. A row holds the position of its data, so a damaged row or body never hides its neighbours. A
record's digest covers its row and its data, and only serves to locate damage: the block or WAL frame around a
batch has one checksum for all of it.

    batch    rows: 32 B x n | digests: 8 B x n | data
    row      offset u64 | time u64 (us) | position u32 | body u32 | header u32 | exchange u8 | key u8
             | flags u8 | priority u8                  (body, header, exchange and key are lengths)
    digest   xxh3 of the data, seeded with xxh3 of the row: u64
    data     exchange, routing key, content header as it came over the wire, body

The code works on whole batches with loops in C (`map`, `zip`, `join`) and does no IO.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

ROW = Struct("<QQIIIBBBB")
ROW_BYTES = ROW.size
DIGEST = Struct("<Q")
DIGEST_BYTES = DIGEST.size
FLAGS_BYTE = 30
"""Position of the flags in a row: `table[FLAGS_BYTE::ROW_BYTES]` is the column of flags."""

PERSISTENT = 0x01
"""Set by the caller: the record survives a restart. Callers define the bits 0x02 to 0x40 themselves."""
PERSISTENT_FLAGS = bytes(flags for flags in range(256) if flags & PERSISTENT)
FIRST = 0x80
"""Set by `encode` on the first row of a batch, so that an index shows where batches begin."""

BATCH_RECORDS_MAX = 2048
"""4,096 small messages do not fit into the processor's cache while they are encoded: a fifth slower."""
BATCH_BYTES_MAX = 2 << 20

_EMPTY = b""


class Message(NamedTuple):
    """One message to append: `Message(b"orders", b"eu.de", header, body, PERSISTENT, 0)`."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    flags: int = 0
    priority: int = 0


_flags_of = itemgetter(Message._fields.index("flags"))


def flags_of(messages: Iterable[Message]) -> bytes:
    """Return the flags of the messages, one byte each."""
    return bytes(map(_flags_of, messages))


class Record(NamedTuple):
    """A message with its offset and time."""

    offset: int
    time_us: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    flags: int
    priority: int


class Batch(NamedTuple):
    """Messages appended together: dense offsets from `first`, one time, and `size` bytes of data."""

    first: int
    time_us: int
    messages: Sequence[Message]
    size: int

    @property
    def stop(self) -> int:
        return self.first + len(self.messages)

    def slice(self, start: int, stop: int) -> Batch:
        """Return the part of the batch with offsets in [start, stop)."""
        if start <= self.first and stop >= self.stop:
            return self
        start = max(start, self.first)
        messages = self.messages[start - self.first : stop - self.first]
        return Batch(start, self.time_us, messages, size_of(messages))

    def persistent_parts(self) -> Iterator[Batch]:
        """Yield the runs of persistent messages."""
        offset = self.first
        for persistent, group in groupby(message.flags & PERSISTENT for message in self.messages):
            count = len(list(group))
            if persistent:
                yield self.slice(offset, offset + count)
            offset += count

    def records(self, start: int, stop: int) -> Iterator[Record]:
        start = max(start, self.first)
        messages = self.messages[start - self.first : stop - self.first]
        return (Record(offset, self.time_us, *message) for offset, message in enumerate(messages, start))


def size_of(messages: Iterable[Message]) -> int:
    """Return the bytes of data of the messages."""
    exchanges, keys, headers, bodies, _, _ = zip(*messages, strict=True)
    return sum(map(len, chain(exchanges, keys, headers, bodies)))


def encode(batches: Sequence[Batch], *, position: int) -> tuple[bytes, bytes]:
    """Return the rows of the batches, and the encoded batch: rows, digests and data.

    `position` is where the result will be in its file, because rows hold positions in the file. A message of
    100 bytes takes about 0.5 us.
    """
    messages: list[Message] = []
    offsets = []
    times = []
    for first, time_us, batch_messages, _ in batches:
        messages += batch_messages
        offsets.append(range(first, first + len(batch_messages)))
        times.append(repeat(time_us, len(batch_messages)))
    exchanges, keys, headers, bodies, flags, priorities = zip(*messages, strict=True)
    data = list(map(_EMPTY.join, zip(exchanges, keys, headers, bodies, strict=True)))
    rows = list(
        map(
            ROW.pack,
            chain.from_iterable(offsets),
            chain.from_iterable(times),
            accumulate(map(len, data), initial=position + len(messages) * (ROW_BYTES + DIGEST_BYTES)),
            map(len, bodies),
            map(len, headers),
            map(len, exchanges),
            map(len, keys),
            chain((flags[0] | FIRST,), flags[1:]),
            priorities,
        )
    )
    digests = array("Q", map(xxh3_64_intdigest, data, map(xxh3_64_intdigest, rows)))
    table = _EMPTY.join(rows)
    return table, _EMPTY.join(chain((table, digests), data))


def batch_bytes(count: int) -> int:
    """Return the bytes of the rows and digests of `count` records."""
    return count * (ROW_BYTES + DIGEST_BYTES)


def decode(rows: bytes | memoryview, content: bytes, *, start: int) -> list[Record]:
    """Return the records of `rows`, whose data is in `content`; `start` is the file position of `content`."""
    records = []
    for offset, time_us, position, body, header, exchange, key, flags, priority in ROW.iter_unpack(rows):
        exchange_from = position - start
        key_from = exchange_from + exchange
        header_from = key_from + key
        body_from = header_from + header
        records.append(
            Record(
                offset,
                time_us,
                content[exchange_from:key_from],
                content[key_from:header_from],
                content[header_from:body_from],
                content[body_from : body_from + body],
                flags & ~FIRST,
                priority,
            )
        )
    return records


def extent(row: bytes | memoryview) -> tuple[int, int]:
    """Return the position and the size of the data that a row describes."""
    _, _, position, body, header, exchange, key, _, _ = ROW.unpack(row)
    return position, body + header + exchange + key


def digest(row: bytes, content: bytes, *, start: int) -> int:
    """Return the digest of a row and its data in `content`, as in `decode`; -1 if the data is not there."""
    position, size = extent(row)
    if position < start or position + size > start + len(content):
        return -1
    data = content[position - start : position - start + size]
    return int(xxh3_64_intdigest(data, xxh3_64_intdigest(row)))


def sort_out(
    content: bytes, *, table: int, count: int, start: int = 0, other: bytes = b""
) -> tuple[bytes, list[int]]:
    """Return the rows of a damaged batch that match their digests, and the numbers of the other rows.

    The rows are at `table` in `content`, which begins at position `start` of the file. `other` is a second
    copy of the rows, or empty.
    """
    good = []
    lost = []
    for number in range(count):
        expected = DIGEST.unpack_from(content, table + count * ROW_BYTES + number * DIGEST_BYTES)[0]
        own_row = content[table + number * ROW_BYTES : table + (number + 1) * ROW_BYTES]
        other_row = other[number * ROW_BYTES : (number + 1) * ROW_BYTES]
        for row in (other_row, own_row):
            if row and digest(row, content, start=start) == expected:
                good.append(row)
                break
        else:
            lost.append(number)
    return b"".join(good), lost


def pieces(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Split and join the batches into pieces, each small enough for one batch in a file."""
    piece: list[Batch] = []
    count = size = 0
    for batch in batches:
        for part in _split(batch):
            full = count + len(part.messages) > BATCH_RECORDS_MAX or size + part.size > BATCH_BYTES_MAX
            if piece and full:
                yield piece
                piece, count, size = [], 0, 0
            piece.append(part)
            count += len(part.messages)
            size += part.size
    if piece:
        yield piece


def _split(batch: Batch) -> Iterator[Batch]:
    """Halve a batch until each part is small enough or a single message."""
    count = len(batch.messages)
    if count > 1 and (count > BATCH_RECORDS_MAX or batch.size > BATCH_BYTES_MAX):
        middle = batch.first + count // 2
        yield from _split(batch.slice(batch.first, middle))
        yield from _split(batch.slice(middle, batch.stop))
    else:
        yield batch
