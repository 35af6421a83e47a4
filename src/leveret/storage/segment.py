"""A segment: one file of blocks, and beside it an index of fixed-width rows.

A block is one batch of records (`records.py`) with one checksum, which is verified whenever the block is
read. The index repeats the rows of all blocks, so readers find records without reading the data. A chained
hash verifies the index as a whole. If the index is missing or damaged, it is rebuilt from the blocks. If a
block is damaged, block and index repair each other, and only the damaged record is lost.

    msgs.<first>    file header 64 B | block | block | ...
    block           magic "LvB1" | length u32 | checksum u64 | first offset u64 | count u32 | 0 u32 | batch
    index.<first>   file header 64 B | row 32 B | row | ...

The checksum of a block is xxh3 of the bytes after it, seeded with the block's position: a block is valid only
where it was written. When segments are written and deleted is left to `log.py` and `checkpointer.py`.

The rule: the `SegmentInfo` in the checkpoint says what a segment holds. Bytes beyond its `length_bytes` do
not count.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from leveret.storage import formats, records
from leveret.storage.errors import Damage, write_failed
from leveret.storage.files import File, Files
from leveret.storage.formats import HEADER_BYTES, FileHeader
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.records import (
    DIGEST,
    DIGEST_BYTES,
    FLAGS_BYTE,
    PERSISTENT,
    PERSISTENT_FLAGS,
    ROW,
    ROW_BYTES,
    Batch,
    Record,
)

BLOCK = Struct("<4sIQQII")
BLOCK_MAGIC = b"LvB1"
CHECKSUM_FROM = 16

Report = Callable[[Damage], None]

_first_rows = re.compile(b"[\x80-\xff]", re.DOTALL)


class Block(NamedTuple):
    """Position and contents of a block. `row` is the number of its first row in the index."""

    first: int
    last: int
    position: int
    length: int
    row: int
    rows: int
    hash_before: int
    """Chained hash of the index rows before this block."""
    hash_after: int
    """Chained hash including this block's rows."""


class SegmentInfo(NamedTuple):
    """The contents of a segment, as the checkpoint stores them. Replaced, never changed."""

    first: int
    edition: int = 0
    length_bytes: int = 0
    rows: int = 0
    last: int = -1
    transient: int = 0
    """Number of transient records, which do not survive a restart."""
    oldest_us: int = 0
    newest_us: int = 0
    index_hash: int = 0
    """Chained hash of the index: xxh3 of each block's rows, seeded with the hash of the blocks before."""
    settled_us: int = 0
    """Time when all records were first seen settled; 0 while some are unsettled."""

    @property
    def name(self) -> str:
        """End of the file names: the first offset, and for a rewritten segment its edition."""
        return f"{self.first:020d}" + (f"-{self.edition}" if self.edition else "")

    @property
    def is_dense(self) -> bool:
        return self.rows == self.last + 1 - self.first


class Segment:
    """Reads and writes one segment. Keeps no file open, and remembers its blocks after the first look."""

    def __init__(
        self, files: Files, directory: str, info: SegmentInfo, *, log_id: int, report: Report
    ) -> None:
        self._files = files
        self._log_id = log_id
        self._report = report
        self._blocks: list[Block] | None = None
        self.directory = directory
        self.info = info
        self.path = f"{directory}/msgs.{info.name}"
        self.index_path = f"{directory}/index.{info.name}"

    # writing

    def extended(self, batches: Iterable[Batch]) -> Segment:
        """Write batches to the end of the segment, and return the extended segment. Nothing is synced.

        When a write fails, the files are cut back to their old contents and `WriteFailed` is raised.
        """
        info = self.info
        blocks: list[Block] = []
        try:
            with (
                self._files.open(self.path, create=True) as file,
                self._files.open(self.index_path, create=True) as index,
            ):
                try:
                    info = self._start(file, index)
                    for piece in records.pieces(batches):
                        info = _write_block(file, index, piece, info, blocks)
                except OSError:
                    _cut_back(file, self.info.length_bytes)
                    _cut_back(index, _index_size(self.info) if self.info.length_bytes else 0)
                    raise
        except OSError as error:
            raise write_failed(error, self.path) from error
        segment = Segment(self._files, self.directory, info, log_id=self._log_id, report=self._report)
        if self._blocks is not None or not self.info.rows:
            segment._blocks = [*(self._blocks or ()), *blocks]
        return segment

    def _start(self, file: File, index: File) -> SegmentInfo:
        """Write the headers of new files, or cut off bytes beyond the segment's contents."""
        if not self.info.length_bytes:
            for new_file, kind in ((file, formats.SEGMENT), (index, formats.INDEX)):
                new_file.truncate(0)
                new_file.write(FileHeader(kind, self._log_id, self.info.first).encode(), 0)
            return self.info._replace(length_bytes=HEADER_BYTES)
        self.trim(file, index)
        return self.info

    def trim(self, file: File, index: File) -> None:
        """Cut off bytes beyond the segment's contents, which no checkpoint names."""
        if file.size() > self.info.length_bytes:
            file.truncate(self.info.length_bytes)
        if index.size() > _index_size(self.info):
            index.truncate(_index_size(self.info))

    @property
    def paths(self) -> tuple[str, str]:
        """Paths of the segment and its index."""
        return self.path, self.index_path

    # reading

    def records(self, ranges: Iterable[Range]) -> Iterator[Record]:
        """Yield the records in the ranges. Damaged ones are reported and left out."""
        wanted = OffsetSet(ranges)
        for block in self.blocks():
            if wanted.count(block.first, block.last + 1):
                yield from (record for record in self.load(block) if record.offset in wanted)

    def load(self, block: Block) -> list[Record]:
        """Return the verified records of a block. Damaged ones are reported and left out."""
        rows, content = self.read_block(block)
        return records.decode(rows, content, start=block.position)

    def read_block(self, block: Block) -> tuple[bytes, bytes]:
        """Return the rows of a block's readable records, and the bytes of the block."""
        content = self._read(block.length, block.position)
        if is_sound(content, block):
            return content[BLOCK.size : BLOCK.size + block.rows * ROW_BYTES], content
        content = content.ljust(block.length, b"\x00")
        return self._salvage(block, content), content

    def blocks(self) -> list[Block]:
        """Return the segment's blocks, from the index, or from the segment if the index is damaged."""
        if self._blocks is None:
            table = self._read_index()
            blocks = _blocks_of(table, self.info)
            if blocks is None:
                table, blocks = self._rebuild()
            self._blocks = blocks
        return self._blocks

    def present(self) -> Iterator[Range]:
        """Yield the offsets that the segment has, as ascending ranges."""
        if not self.info.rows:
            return
        if self.info.is_dense:
            yield self.info.first, self.info.last + 1
            return
        start = stop = -1
        for row in ROW.iter_unpack(self.rows()):
            if row[0] != stop:
                if start >= 0:
                    yield start, stop
                start = row[0]
            stop = row[0] + 1
        yield start, stop

    def transient(self) -> Iterator[int]:
        """Yield the offsets of the transient records."""
        if self.info.transient:
            for row in ROW.iter_unpack(self.rows()):
                if not row[7] & PERSISTENT:
                    yield row[0]

    def priorities(self) -> Iterator[tuple[int, int]]:
        """Yield offset and priority of each record with a priority above 0."""
        for row in ROW.iter_unpack(self.rows()):
            if row[8]:
                yield row[0], row[8]

    def rows(self) -> bytes:
        """Return the rows of the whole index, verified."""
        table = self._read_index()
        if _blocks_of(table, self.info) is None:
            table, self._blocks = self._rebuild()
        return table

    def _read_index(self) -> bytes:
        try:
            with self._files.open(self.index_path) as index:
                header = index.read(HEADER_BYTES, 0)
                if formats.read_header(header, self.index_path, formats.INDEX) is None:
                    return b""
                return index.read(self.info.rows * ROW_BYTES, HEADER_BYTES)
        except FileNotFoundError:
            return b""

    # repair

    def _salvage(self, block: Block, content: bytes) -> bytes:
        """Return the intact rows of a damaged block, and report each lost record."""
        table = self._read_index()
        if _blocks_of(table, self.info) is None:
            table = b""
        by_index = table[block.row * ROW_BYTES : (block.row + block.rows) * ROW_BYTES]
        good, lost = records.sort_out(
            content, table=BLOCK.size, count=block.rows, start=block.position, other=by_index
        )
        if lost and len(lost) == 1 and _only_digest_damaged(content, block, by_index, lost[0]):
            good, lost = by_index, []
        for number in lost:
            row = ROW.unpack_from(by_index, number * ROW_BYTES) if by_index else None
            self._report(
                Damage(
                    file=self.path,
                    position=row[2] if row else block.position,
                    offset=row[0] if row else block.first + number,
                    what="a record does not match its checksum and is lost",
                )
            )
        if not lost:
            self._report(
                Damage(self.path, block.position, None, "a block was damaged; all its records were repaired")
            )
        return good

    def _rebuild(self) -> tuple[bytes, list[Block]]:
        """Rebuild the index from the segment, and return its rows and the blocks."""
        self._report(Damage(self.index_path, 0, None, "the index was missing or damaged and was rebuilt"))
        content = self._read(self.info.length_bytes, 0)
        tables = []
        blocks: list[Block] = []
        row = hashed = 0
        lost: list[int] = []
        for position, length in _walk(content, lost.append):
            count = _count_of(content, position)
            table = content[position + BLOCK.size : position + BLOCK.size + count * ROW_BYTES]
            first, last = (ROW.unpack_from(table, row_at)[0] for row_at in (0, len(table) - ROW_BYTES))
            before, hashed = hashed, xxh3_64_intdigest(table, seed=hashed)
            tables.append(table)
            blocks.append(Block(first, last, position, length, row, count, before, hashed))
            row += count
        for position in lost:
            what = "a block and its index are unreadable; it is lost"
            self._report(Damage(self.path, position, None, what))
        if not lost and hashed != self.info.index_hash:
            self._report(Damage(self.path, HEADER_BYTES, None, "its blocks differ from those written"))
        self.info = self.info._replace(rows=row, index_hash=hashed)
        rows = b"".join(tables)
        self._write_index(rows)
        return rows, blocks

    def _read(self, size: int, position: int) -> bytes:
        """Return `size` bytes of the segment, fewer at the file's end, and none if the file is missing."""
        try:
            with self._files.open(self.path) as file:
                return file.read(size, position)
        except FileNotFoundError:
            return b""

    def _write_index(self, rows: bytes) -> None:
        """Write the index if possible. If not, the next reader rebuilds it again."""
        try:
            with self._files.open(self.index_path, create=True) as index:
                index.truncate(0)
                index.write(FileHeader(formats.INDEX, self._log_id, self.info.first).encode() + rows, 0)
        except OSError as error:
            # A read-only reader has already reported the damaged index.
            if error.errno != errno.EROFS:
                self._report(Damage(self.index_path, 0, None, f"the index can't be written: {error}"))


def is_intact(content: bytes, position: int, length: int) -> bool:
    """Return whether `content` is the complete, undamaged block that was written at `position`."""
    if len(content) != length or length < BLOCK.size:
        return False
    magic, size, checksum, _, _, _ = BLOCK.unpack_from(content)
    if magic != BLOCK_MAGIC or size != length:
        return False
    return bool(xxh3_64_intdigest(memoryview(content)[CHECKSUM_FROM:], seed=position) == checksum)


def is_sound(content: bytes, block: Block) -> bool:
    """Return whether `content` is this block, undamaged, with the rows that the index has.

    The checksum alone is not enough: another block with a valid checksum could have positions and lengths
    that do not fit this segment.
    """
    if not is_intact(content, block.position, block.length):
        return False
    _, _, _, first, count, _ = BLOCK.unpack_from(content)
    if (first, count) != (block.first, block.rows):
        return False
    rows = memoryview(content)[BLOCK.size : BLOCK.size + block.rows * ROW_BYTES]
    return bool(xxh3_64_intdigest(rows, seed=block.hash_before) == block.hash_after)


def _count_of(content: bytes, position: int) -> int:
    """Return the number of records in the head of the block at `position`."""
    return int(BLOCK.unpack_from(content, position)[4])


def _has_its_data(content: bytes, position: int, length: int) -> bool:
    """Return whether a block has rows, and all of them point to data inside the block."""
    count = _count_of(content, position)
    data_from = BLOCK.size + records.batch_bytes(count)
    if not count > 0 or data_from > length:
        return False
    rows = memoryview(content)[position + BLOCK.size : position + BLOCK.size + count * ROW_BYTES]
    extents = (records.extent(rows[row_at : row_at + ROW_BYTES]) for row_at in range(0, len(rows), ROW_BYTES))
    return all(position + data_from <= start and start + size <= position + length for start, size in extents)


def _only_digest_damaged(content: bytes, block: Block, by_index: bytes, number: int) -> bool:
    """Return whether the block is intact once the digest of this record is replaced by the right one."""
    row = by_index[number * ROW_BYTES : (number + 1) * ROW_BYTES]
    if not row:
        return False
    digest_at = BLOCK.size + block.rows * ROW_BYTES + number * DIGEST_BYTES
    digest = DIGEST.pack(records.digest(row, content, start=block.position))
    repaired = content[:digest_at] + digest + content[digest_at + DIGEST_BYTES :]
    return is_intact(repaired, block.position, block.length)


def _write_block(
    file: File, index: File, piece: Sequence[Batch], info: SegmentInfo, blocks: list[Block]
) -> SegmentInfo:
    """Write a block and its index rows, add it to `blocks`, and return the segment's new contents."""
    position = info.length_bytes
    rows, content = records.encode(piece, position=position + BLOCK.size)
    count = len(rows) // ROW_BYTES
    length = BLOCK.size + len(content)
    first = piece[0].first
    last = piece[-1].stop - 1
    checksum = xxh3_64(BLOCK.pack(BLOCK_MAGIC, length, 0, first, count, 0)[CHECKSUM_FROM:], seed=position)
    checksum.update(content)
    file.write(BLOCK.pack(BLOCK_MAGIC, length, checksum.intdigest(), first, count, 0), position)
    file.write(content, position + BLOCK.size)
    index.write(rows, _index_size(info))
    flags = rows[FLAGS_BYTE::ROW_BYTES]
    hashed = xxh3_64_intdigest(rows, seed=info.index_hash)
    blocks.append(Block(first, last, position, length, info.rows, count, info.index_hash, hashed))
    return info._replace(
        length_bytes=position + length,
        rows=info.rows + count,
        last=last,
        transient=info.transient + len(flags.translate(None, PERSISTENT_FLAGS)),
        oldest_us=info.oldest_us or piece[0].time_us,
        newest_us=piece[-1].time_us,
        index_hash=hashed,
        settled_us=0,
    )


def _blocks_of(table: bytes, info: SegmentInfo) -> list[Block] | None:
    """Return the blocks that the index rows describe, or None if the rows are damaged."""
    if len(table) != info.rows * ROW_BYTES:
        return None
    starts = [match.start() for match in _first_rows.finditer(table[FLAGS_BYTE::ROW_BYTES])]
    if starts[:1] != [0]:
        return None if info.rows else []
    blocks = []
    hashed = 0
    view = memoryview(table)
    for start, stop in zip(starts, [*starts[1:], info.rows], strict=True):
        rows = view[start * ROW_BYTES : stop * ROW_BYTES]
        before, hashed = hashed, xxh3_64_intdigest(rows, seed=hashed)
        data_from, _ = records.extent(rows[:ROW_BYTES])
        last_from, size = records.extent(rows[-ROW_BYTES:])
        first = ROW.unpack_from(rows)[0]
        last = ROW.unpack_from(rows, len(rows) - ROW_BYTES)[0]
        count = stop - start
        head = BLOCK.size + records.batch_bytes(count)
        length = head + last_from + size - data_from
        blocks.append(Block(first, last, data_from - head, length, start, count, before, hashed))
    return blocks if hashed == info.index_hash else None


def _walk(content: bytes, lost: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Yield position and length of each intact block in a segment; call `lost` where one is missing."""
    position = expected = HEADER_BYTES
    while 0 <= position < len(content):
        length = int.from_bytes(content[position + 4 : position + 8], "little")
        whole = is_intact(content[position : position + length], position, length)
        if whole and _has_its_data(content, position, length):
            if position != expected:
                lost(expected)
            yield position, length
            position = expected = position + length
        else:
            position = content.find(BLOCK_MAGIC, position + 1)
    if expected < len(content):
        lost(expected)


def _index_size(info: SegmentInfo) -> int:
    return HEADER_BYTES + info.rows * ROW_BYTES


def _cut_back(file: File, size: int) -> None:
    """Undo a failed write if possible. Bytes that stay do not count: they are beyond the contents."""
    try:
        file.truncate(size)
    except OSError:
        return
