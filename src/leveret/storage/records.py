"""Messages, records, and the one way they are laid out in bytes.

A *message* is what a caller appends; a *record* is a message with the offset and the time it got. Segments,
journals and WAL frames all hold records in the same *batch*: a table of fixed-width rows, a column of
digests, then the data of all records end to end. The row tells where its data is, so that a damaged row or
body never hides its neighbours; the digest of a record covers its row and its data, and only serves to
locate damage: whoever frames a batch (a block, a WAL frame) puts one checksum over the whole of it.

    batch    rows: 32 B x n | digests: 8 B x n | data
    row      offset u64 | time u64 (us) | position u32 | body u32 | header u32 | exchange u8 | key u8
             | flags u8 | priority u8                  (body, header, exchange and key are lengths)
    digest   xxh3 of the data, seeded with xxh3 of the row: u64
    data     exchange, routing key, content header as it came over the wire, body

Everything here works on whole batches with loops in C (`map`, `zip`, `join`); it does no IO.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

ROW = Struct("<QQIIIBBBB")
ROW_BYTES = ROW.size
DIGEST = Struct("<Q")
DIGEST_BYTES = DIGEST.size
FLAGS_BYTE = 30
"""Where a row keeps its flags; `table[FLAGS_BYTE::ROW_BYTES]` is the flags column of a table."""
PRIORITY_BYTE = 31

PERSISTENT = 0x01
"""Set by the caller: the record must survive a restart. The bits 0x02 to 0x40 are the caller's own."""
PERSISTENT_FLAGS = bytes(flags for flags in range(256) if flags & PERSISTENT)
FIRST = 0x80
"""Set by the layout on the first row of a batch, so that an index alone shows where batches begin."""

BATCH_RECORDS_MAX = 2048
"""With 4,096 the encoding of small messages leaves the processor's cache and takes a fifth longer."""
BATCH_BYTES_MAX = 2 << 20

_EMPTY = b""


class Message(NamedTuple):
    """What is appended: `Message(b"orders", b"eu.de", header, body, PERSISTENT, 0)`."""

    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    flags: int = 0
    priority: int = 0


_flags_of = itemgetter(Message._fields.index("flags"))


def flags_of(messages: Iterable[Message]) -> bytes:
    """The flags of all of them; `flags.translate(None, SOME)` is those that are not among some."""
    return bytes(map(_flags_of, messages))


class Record(NamedTuple):
    """A message as the log keeps it."""

    offset: int
    time_us: int
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes
    flags: int
    priority: int


class Batch(NamedTuple):
    """Messages that were appended together: dense offsets from `first`, one time, `size` bytes of data."""

    first: int
    time_us: int
    messages: Sequence[Message]
    size: int

    @property
    def stop(self) -> int:
        return self.first + len(self.messages)

    def slice(self, start: int, stop: int) -> Batch:
        """The part of it with offsets in [start, stop)."""
        if start <= self.first and stop >= self.stop:
            return self
        start = max(start, self.first)
        messages = self.messages[start - self.first : stop - self.first]
        return Batch(start, self.time_us, messages, size_of(messages))

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Its records with offsets in [start, stop)."""
        start = max(start, self.first)
        messages = self.messages[start - self.first : stop - self.first]
        return (Record(offset, self.time_us, *message) for offset, message in enumerate(messages, start))


def size_of(messages: Iterable[Message]) -> int:
    """Bytes of data the messages carry."""
    exchanges, keys, headers, bodies, _, _ = zip(*messages, strict=True)
    return sum(map(len, chain(exchanges, keys, headers, bodies)))


def encode(batches: Sequence[Batch], *, position: int) -> tuple[bytes, bytes]:
    """The rows of the batches alone, and the whole: rows, digests, data. `position` is where it will stand.

    Rows hold positions of the file they are written to. About 0.5 us for a message of 100 bytes.
    """
    messages: list[Message] = []
    offsets = []
    times = []
    for first, time_us, some, _ in batches:
        messages += some
        offsets.append(range(first, first + len(some)))
        times.append(repeat(time_us, len(some)))
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
    """Bytes of the rows and digests of `count` records."""
    return count * (ROW_BYTES + DIGEST_BYTES)


def decode(rows: bytes | memoryview, content: bytes, *, start: int) -> list[Record]:
    """The records of `rows`, whose data is found in `content`, a piece of the file that begins at `start`."""
    records = []
    for offset, time_us, at, body, header, exchange, key, flags, priority in ROW.iter_unpack(rows):
        a = at - start
        b = a + exchange
        c = b + key
        d = c + header
        records.append(
            Record(
                offset,
                time_us,
                content[a:b],
                content[b:c],
                content[c:d],
                content[d : d + body],
                flags & ~FIRST,
                priority,
            )
        )
    return records


def extent(row: bytes | memoryview) -> tuple[int, int]:
    """Where the data of a row begins and how long it is."""
    _, _, position, body, header, exchange, key, _, _ = ROW.unpack(row)
    return position, body + header + exchange + key


def digest(row: bytes, content: bytes, *, start: int) -> int:
    """The digest that this row with its data in `content` (which begins at `start`) should have."""
    position, size = extent(row)
    if position < start or position + size > start + len(content):
        return -1
    data = content[position - start : position - start + size]
    return int(xxh3_64_intdigest(data, xxh3_64_intdigest(row)))


def sort_out(
    content: bytes, *, table: int, count: int, start: int = 0, other: bytes = b""
) -> tuple[bytes, list[int]]:
    """For a damaged batch: the rows that match their digests, and the numbers of those that don't.

    The rows stand at `table` in `content`, a piece of a file that begins at `start`; `other` is a second
    copy of the rows, where there is one.
    """
    good = []
    lost = []
    for number in range(count):
        wanted = DIGEST.unpack_from(content, table + count * ROW_BYTES + number * DIGEST_BYTES)[0]
        mine = content[table + number * ROW_BYTES : table + (number + 1) * ROW_BYTES]
        theirs = other[number * ROW_BYTES : (number + 1) * ROW_BYTES]
        for row in (theirs, mine):
            if row and digest(row, content, start=start) == wanted:
                good.append(row)
                break
        else:
            lost.append(number)
    return b"".join(good), lost


def pieces(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """The same batches cut and joined into pieces that each make one batch in a file, within the bounds."""
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
    """Halves a batch until each part is within the bounds or a single message."""
    count = len(batch.messages)
    if count > 1 and (count > BATCH_RECORDS_MAX or batch.size > BATCH_BYTES_MAX):
        middle = batch.first + count // 2
        yield from _split(batch.slice(batch.first, middle))
        yield from _split(batch.slice(middle, batch.stop))
    else:
        yield batch
