"""Repair of a WAL frame in which one byte has changed, by trying every possible byte.

It matters most for the last frame of the WAL, which looks like a write that a power cut has torn. A torn
round must not count in part, so without repair one changed byte there would cost the round. Frames that can't
be repaired are left to `recovery.py`.

The rule: a repaired frame matches its checksum, so it is what was written.
"""

from __future__ import annotations

from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from leveret.storage import records
from leveret.storage.frames import HEAD_BYTES, Frame
from leveret.storage.records import DIGEST, DIGEST_BYTES, ROW_BYTES

ROW_TRIED_BYTES = 64 << 10
"""Size of the largest record whose row is repaired."""
DATA_TRIED_BYTES = 2 << 10
"""Size of the largest record whose data is repaired: half a million attempts, about 0.3 s."""


def repair(frame: Frame) -> tuple[Frame, int] | None:
    """Return the repaired frame and the file position of the change, or None if it can't be repaired."""
    content = frame.content.ljust(frame.head.length, b"\0")
    frame = frame._replace(content=content)
    groups = frame.groups_copy()
    if groups is None:
        return None
    groups_at = 2 * HEAD_BYTES
    repaired = _changed(frame, groups_at, groups + groups)
    if repaired.is_intact:
        return repaired, frame.position + groups_at
    table, count = frame.head.rows_from, frame.head.records
    _, lost = records.sort_out(content, table=table, count=count)
    if len(lost) == 1:
        for position, data in _changes(content, table, count, lost[0]):
            repaired = _changed(frame, position, data)
            if repaired.is_intact:
                return repaired, frame.position + position
    return None


def _changed(frame: Frame, position: int, data: bytes) -> Frame:
    content = frame.content
    return frame._replace(content=content[:position] + data + content[position + len(data) :])


def _changes(content: bytes, table: int, count: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield changes of the digest or of one byte of a record, after which both match again."""
    row_at = table + number * ROW_BYTES
    row = content[row_at : row_at + ROW_BYTES]
    digest_at = table + count * ROW_BYTES + number * DIGEST_BYTES
    expected = DIGEST.unpack_from(content, digest_at)[0]
    digest = records.digest(row, content, start=0)
    if digest >= 0:
        yield digest_at, DIGEST.pack(digest)
    for index, byte in _byte_changes(row):
        changed = row[:index] + byte + row[index + 1 :]
        small = records.extent(changed)[1] <= ROW_TRIED_BYTES
        if small and records.digest(changed, content, start=0) == expected:
            yield row_at + index, byte
    position, size = records.extent(row)
    if size <= DATA_TRIED_BYTES:
        data = bytearray(content[position : position + size])
        seed = xxh3_64_intdigest(row)
        for index, byte in _byte_changes(bytes(data)):
            before, data[index] = data[index], byte[0]
            if xxh3_64_intdigest(data, seed) == expected:
                yield position + index, byte
            data[index] = before


def _byte_changes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return every index of `data` with every possible byte."""
    return ((index, bytes((byte,))) for index in range(len(data)) for byte in range(256))
