"""A WAL frame in which one byte has changed, put right by trying.

What matches the frame's checksum again is what was written: no guess survives that. It matters most for the
last frame of the WAL, which can't be told from a write that was torn by a power cut. A torn round must not
count in part, so without this a single flipped byte there would cost the round. Records larger than the
limits below are not tried; what becomes of them is left to `recovery.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from leveret.storage import records
from leveret.storage.frames import HEAD_BYTES, Frame
from leveret.storage.records import DIGEST, DIGEST_BYTES, ROW_BYTES

ROW_TRIED_BYTES = 64 << 10
"""The largest record whose row is tried."""
DATA_TRIED_BYTES = 2 << 10
"""The largest record whose data is tried: half a million changes, about 0.3 s."""


def mend(frame: Frame) -> tuple[Frame, int] | None:
    """The frame as it was, and where in the file the changed byte is; None when it was more than one."""
    content = frame.content.ljust(frame.head.length, b"\0")
    frame = frame._replace(content=content)
    groups = frame.groups_copy()
    if groups is None:
        return None
    at = 2 * HEAD_BYTES
    mended = _changed(frame, at, groups + groups)
    if mended.is_intact:
        return mended, frame.position + at
    table, count = frame.head.rows_from, frame.head.records
    _, lost = records.sort_out(content, table=table, count=count)
    if len(lost) == 1:
        for position, data in _changes(content, table, count, lost[0]):
            mended = _changed(frame, position, data)
            if mended.is_intact:
                return mended, frame.position + position
    return None


def _changed(frame: Frame, position: int, data: bytes) -> Frame:
    content = frame.content
    return frame._replace(content=content[:position] + data + content[position + len(data) :])


def _changes(content: bytes, table: int, count: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Changes after which a record matches its digest again: of the digest, or of one byte of the record."""
    row_at = table + number * ROW_BYTES
    row = content[row_at : row_at + ROW_BYTES]
    digest_at = table + count * ROW_BYTES + number * DIGEST_BYTES
    wanted = DIGEST.unpack_from(content, digest_at)[0]
    found = records.digest(row, content, start=0)
    if found >= 0:
        yield digest_at, DIGEST.pack(found)
    for place, byte in _bytes_of(row):
        changed = row[:place] + byte + row[place + 1 :]
        small = records.extent(changed)[1] <= ROW_TRIED_BYTES
        if small and records.digest(changed, content, start=0) == wanted:
            yield row_at + place, byte
    position, size = records.extent(row)
    if size <= DATA_TRIED_BYTES:
        data = bytearray(content[position : position + size])
        seed = xxh3_64_intdigest(row)
        for place, byte in _bytes_of(bytes(data)):
            before, data[place] = data[place], byte[0]
            if xxh3_64_intdigest(data, seed) == wanted:
                yield position + place, byte
            data[place] = before


def _bytes_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every place in it, with every byte that might have stood there."""
    return ((place, bytes((byte,))) for place in range(len(data)) for byte in range(256))
