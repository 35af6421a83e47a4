"""A WAL frame: one commit round, as bytes.

A round is the batches that were collected for any number of logs; a frame holds all of them as one batch of
records (`records.py`) and says how many belong to which log. What is in one frame is atomic. Frames begin at
multiples of 512 bytes, so that a sector that was synced is never written again.

    frame    head 80 B | head again | groups | groups again | rows | digests | data | zeros to 512 B
    head     magic "LvWF" | groups u32 | generation u64 | ticket u64 | previous ticket u64 | synced u64 (us)
             | records u32 | 0 u32 | length u64 | groups' checksum u64 | content's checksum u64 | checksum u64
    group    log id u64 | records u64

All checksums are xxh3, seeded with the generation of the file, which is new at every reuse: a stale frame
can't pass. The content's checksum covers everything after the heads. Heads and groups stand twice, because
without them a single flipped byte would cost the whole round instead of one record. What can be done for a
frame in which a byte has changed is in `frame_repair.py`.
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
"""What one frame holds: batches by log id."""


class Lost(NamedTuple):
    """A record that can't be read: its log and offset as far as they are known, and where in the file."""

    log: int | None
    offset: int | None
    position: int


class Head(NamedTuple):
    """What a frame says of itself. `synced_us` is when the frame before it had reached the disk."""

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
    """The frame of a round, padded to whole sectors."""
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
    """The head of the frame at `position`, from whichever copy is intact; None when there is no frame."""
    for at in (position, position + HEAD_BYTES):
        fields = bytes(content[at : at + _HEAD.size])
        if len(content) - at >= HEAD_BYTES and fields[:4] == _MAGIC:
            found = _CHECKSUM.unpack_from(content, at + _HEAD.size)[0]
            if found == xxh3_64_intdigest(fields, seed=generation):
                return Head(*_HEAD.unpack(fields))
    return None


def find(content: bytes, position: int, generation: int) -> int:
    """Where the next frame at or after `position` begins; -1 when there is none."""
    at = content.find(_MAGIC, position)
    while at >= 0:
        for start in (at, at - HEAD_BYTES):
            if start >= position and start % SECTOR_BYTES == 0 and read_head(content, start, generation):
                return start
        at = content.find(_MAGIC, at + 1)
    return -1


class Frame(NamedTuple):
    """A frame found in a WAL file; `content` is its bytes, which may be damaged, or cut where the file is."""

    path: str
    position: int
    head: Head
    content: bytes

    @property
    def is_intact(self) -> bool:
        found: int = xxh3_64_intdigest(memoryview(self.content)[2 * HEAD_BYTES :], seed=self.head.generation)
        return found == self.head.content_checksum

    @property
    def is_cut(self) -> bool:
        """Whether the file ends before the frame does: no write does that, it was cut afterwards."""
        return len(self.content) < self.head.length

    @property
    def has_both_heads(self) -> bool:
        return self.content[:HEAD_BYTES] == self.content[HEAD_BYTES : 2 * HEAD_BYTES]

    def groups(self) -> list[tuple[int, int]] | None:
        """Log ids and how many records each has; None when both copies are damaged."""
        copy = self.groups_copy()
        if copy is None:
            return None
        flat = array("Q", copy)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def records(self) -> Iterator[tuple[int, list[Record]]]:
        """The records of an intact frame by log."""
        at = self.head.rows_from
        for log, count in self.groups() or ():
            rows = self.content[at : at + count * ROW_BYTES]
            yield log, records.decode(rows, self.content, start=0)
            at += count * ROW_BYTES

    def salvage(self) -> tuple[dict[int, list[Record]], list[Lost]]:
        """The readable records of a damaged frame by log, and what can be told of those that are lost."""
        groups = self.groups()
        if groups is None:
            return {}, [Lost(None, None, self.position) for _ in range(self.head.records)]
        content = self.content.ljust(self.head.length, b"\0")
        good, lost = records.sort_out(content, table=self.head.rows_from, count=self.head.records)
        found = iter(records.decode(good, content, start=0))
        missing = set(lost)
        number = 0
        by_log: dict[int, list[Record]] = {}
        losses: list[Lost] = []
        for log, count in groups:
            numbers = range(number, number + count)
            by_log[log] = [next(found) for each in numbers if each not in missing]
            losses.extend(self._lost(log, each) for each in numbers if each in missing)
            number += count
        return by_log, losses

    def groups_copy(self) -> bytes | None:
        """The bytes of the groups, from whichever copy is intact."""
        size = self.head.groups * _GROUP_BYTES
        for at in (2 * HEAD_BYTES, 2 * HEAD_BYTES + size):
            copy = self.content[at : at + size]
            if xxh3_64_intdigest(copy, seed=self.head.generation) == self.head.groups_checksum:
                return copy
        return None

    def _lost(self, log: int, number: int) -> Lost:
        """What its row tells of a lost record, when there is one that can be meant."""
        row = self.content[self.head.rows_from + number * ROW_BYTES :][:ROW_BYTES]
        if len(row) == ROW_BYTES:
            position, size = records.extent(row)
            if self.head.rows_from < position <= position + size <= self.head.length:
                return Lost(log, ROW.unpack(row)[0], self.position + position)
        return Lost(log, None, self.position)


def batches_of(found: Sequence[Record]) -> list[Batch]:
    """Records as the batches they would have been appended in: dense offsets, one time."""
    batches: list[Batch] = []
    messages: list[Message] = []
    first = next_offset = time_us = -1
    for record in found:
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
