"""A WAL frame: one commit round, as bytes.

A commit round has the batches of any number of logs. Its frame holds them as one batch of records
(`records.py`), with the number of records of each log. A frame is atomic: it counts as a whole or not at all.
Frames begin at multiples of 512 bytes, so that a sector that was synced is never written again.

    frame    head 80 B | head again | groups | groups again | rows | digests | data | zeros to 512 B
    head     magic "LvWF" | groups u32 | generation u64 | ticket u64 | previous ticket u64 | synced u64 (us)
             | records u32 | 0 u32 | length u64 | groups' checksum u64 | content's checksum u64 | checksum u64
    group    log id u64 | records u64

All checksums are xxh3, seeded with the generation of the file. Each reuse of a file has a new generation, so
a stale frame is never valid. The content's checksum covers everything after the heads. Heads and groups are
written twice: otherwise a single changed byte would cost the whole round instead of one record. Repair is
left to `frame_repair.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from leveret.storage import records
from leveret.storage.records import ROW, ROW_BYTES, Batch, Message, Record, size_of

SECTOR_BYTES = 512

_HEAD = Struct("<4sIQQQQIIQQQ")
_CHECKSUM = Struct("<Q")
_MAGIC = b"LvWF"
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_GROUP_BYTES = 16

Round = Mapping[int, Sequence[Batch]]
"""The batches of one frame, by log id."""


class Lost(NamedTuple):
    """A record that can't be read: its log and offset if they are known, and its position in the file."""

    log: int | None
    offset: int | None
    position: int


class Head(NamedTuple):
    """The head of a frame. `synced_us` is the time when the sync of the previous frame ended."""

    magic: bytes
    groups: int
    generation: int
    ticket: int
    previous: int
    synced_us: int
    records: int
    zero: int
    length: int
    groups_checksum: int
    content_checksum: int

    @property
    def rows_from(self) -> int:
        return 2 * HEAD_BYTES + 2 * self.groups * _GROUP_BYTES


def encode(round_: Round, *, generation: int, ticket: int, previous: int, synced_us: int) -> bytes:
    """Return the frame of a round, padded to whole sectors."""
    counts = {log: sum([len(batch.messages) for batch in batches]) for log, batches in round_.items()}
    groups = array("Q", chain.from_iterable(counts.items())).tobytes()
    rows_from = 2 * HEAD_BYTES + 2 * len(groups)
    rows, batch = b"", b""
    if round_:
        rows, batch = records.encode(list(chain.from_iterable(round_.values())), position=rows_from)
    checksum = xxh3_64(groups + groups, seed=generation)
    checksum.update(batch)
    length = rows_from + len(batch)
    head = _HEAD.pack(
        _MAGIC,
        len(counts),
        generation,
        ticket,
        previous,
        synced_us,
        len(rows) // ROW_BYTES,
        0,
        length,
        xxh3_64_intdigest(groups, seed=generation),
        checksum.intdigest(),
    )
    head += _CHECKSUM.pack(xxh3_64_intdigest(head, seed=generation))
    return b"".join((head, head, groups, groups, batch, bytes(-length % SECTOR_BYTES)))


def read_head(content: bytes | memoryview, position: int, generation: int) -> Head | None:
    """Return the head of the frame at `position` from its intact copy, or None if there is no frame."""
    for copy_at in (position, position + HEAD_BYTES):
        fields = bytes(content[copy_at : copy_at + _HEAD.size])
        if len(content) - copy_at >= HEAD_BYTES and fields[:4] == _MAGIC:
            checksum = _CHECKSUM.unpack_from(content, copy_at + _HEAD.size)[0]
            if checksum == xxh3_64_intdigest(fields, seed=generation):
                return Head(*_HEAD.unpack(fields))
    return None


def find(content: bytes, position: int, generation: int) -> int:
    """Return the position of the next frame at or after `position`, or -1 if there is none."""
    magic_at = content.find(_MAGIC, position)
    while magic_at >= 0:
        for start in (magic_at, magic_at - HEAD_BYTES):
            if start >= position and start % SECTOR_BYTES == 0 and read_head(content, start, generation):
                return start
        magic_at = content.find(_MAGIC, magic_at + 1)
    return -1


class Frame(NamedTuple):
    """A frame in a WAL file. `content` is its bytes, which may be damaged or cut off at the file's end."""

    path: str
    position: int
    head: Head
    content: bytes

    @property
    def is_intact(self) -> bool:
        body = memoryview(self.content)[2 * HEAD_BYTES :]
        return bool(xxh3_64_intdigest(body, seed=self.head.generation) == self.head.content_checksum)

    @property
    def is_cut(self) -> bool:
        """Whether the file ends before the frame: a write never leaves that, the file was cut later."""
        return len(self.content) < self.head.length

    @property
    def has_both_heads(self) -> bool:
        return self.content[:HEAD_BYTES] == self.content[HEAD_BYTES : 2 * HEAD_BYTES]

    def groups(self) -> list[tuple[int, int]] | None:
        """Return the log ids with their numbers of records, or None if both copies are damaged."""
        copy = self.groups_copy()
        if copy is None:
            return None
        flat = array("Q", copy)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def records(self) -> Iterator[tuple[int, list[Record]]]:
        """Yield the log ids of an intact frame, each with the log's records."""
        rows_at = self.head.rows_from
        for log, count in self.groups() or ():
            rows = self.content[rows_at : rows_at + count * ROW_BYTES]
            yield log, records.decode(rows, self.content, start=0)
            rows_at += count * ROW_BYTES

    def salvage(self) -> tuple[dict[int, list[Record]], list[Lost]]:
        """Return the readable records of a damaged frame by log, and the lost ones."""
        groups = self.groups()
        if groups is None:
            return {}, [Lost(None, None, self.position) for _ in range(self.head.records)]
        content = self.content.ljust(self.head.length, b"\0")
        good, lost = records.sort_out(content, table=self.head.rows_from, count=self.head.records)
        readable = iter(records.decode(good, content, start=0))
        missing = set(lost)
        number = 0
        by_log: dict[int, list[Record]] = {}
        losses: list[Lost] = []
        for log, count in groups:
            numbers = range(number, number + count)
            by_log[log] = [next(readable) for row in numbers if row not in missing]
            losses.extend(self._lost(log, row) for row in numbers if row in missing)
            number += count
        return by_log, losses

    def groups_copy(self) -> bytes | None:
        """Return the bytes of an intact copy of the groups, or None if both copies are damaged."""
        size = self.head.groups * _GROUP_BYTES
        for at in (2 * HEAD_BYTES, 2 * HEAD_BYTES + size):
            copy = self.content[at : at + size]
            if xxh3_64_intdigest(copy, seed=self.head.generation) == self.head.groups_checksum:
                return copy
        return None

    def _lost(self, log: int, number: int) -> Lost:
        """Describe a lost record, with its offset and position if its row is plausible."""
        row = self.content[self.head.rows_from + number * ROW_BYTES :][:ROW_BYTES]
        if len(row) == ROW_BYTES:
            position, size = records.extent(row)
            if self.head.rows_from < position <= position + size <= self.head.length:
                return Lost(log, ROW.unpack(row)[0], self.position + position)
        return Lost(log, None, self.position)


def batches_of(records_: Sequence[Record]) -> list[Batch]:
    """Group records into batches: dense offsets and one time in each."""
    batches: list[Batch] = []
    messages: list[Message] = []
    first = next_offset = time_us = -1
    for record in records_:
        if record.offset != next_offset or record.time_us != time_us:
            if messages:
                batches.append(Batch(first, time_us, messages, size_of(messages)))
            messages = []
            first, time_us = record.offset, record.time_us
        messages.append(Message(*record[2:]))
        next_offset = record.offset + 1
    if messages:
        batches.append(Batch(first, time_us, messages, size_of(messages)))
    return batches
