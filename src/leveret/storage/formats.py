"""The header of every file in a data directory: 64 bytes with the file's kind and format version.

    magic 8 B "LEVERET\\0" | version u32 | kind 4 B | id u64 | number u64 | 24 B zero | checksum u64

The checksum is xxh3 of the 56 bytes before it. An intact header of another version is refused with
`UnknownFormat`. A damaged header is left to the caller, which reports it and continues: the rest of each file
has checksums of its own.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from leveret.storage.errors import UnknownFormat

assert sys.byteorder == "little", (
    "the formats are little-endian, and columns are written as they stand in memory"
)

VERSION = 4
READABLE = (2, 3, 4)
"""Version 3 has no states of cursors in checkpoints.

Version 2 has no postponed offsets, no reasons and no kinds of entries above 9; else it is version 3.
"""
MAGIC = b"LEVERET\x00"
HEADER_BYTES = 64

SEGMENT = b"SEGM"
INDEX = b"INDX"
WAL = b"WAL\x00"
CHECKPOINT = b"CHKP"
SNAPSHOT = b"SNAP"

_FIELDS = Struct("<8sI4sQQ24x")
_CHECKSUM = Struct("<Q")


class FileHeader(NamedTuple):
    """`id` is the log's, `number` the first offset, the generation, or whatever the kind of file counts."""

    kind: bytes
    id: int
    number: int

    def encode(self) -> bytes:
        fields = _FIELDS.pack(MAGIC, VERSION, self.kind, self.id, self.number)
        return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))


def read_header(data: bytes, path: str, kind: bytes) -> FileHeader | None:
    """Return the header of `data`, or None if it is damaged. Raise `UnknownFormat` for other files."""
    fields = data[: _FIELDS.size]
    if len(data) < HEADER_BYTES or _CHECKSUM.unpack_from(data, _FIELDS.size)[0] != xxh3_64_intdigest(fields):
        return None
    magic, version, found, id_, number = _FIELDS.unpack(fields)
    if magic != MAGIC or version not in READABLE or found != kind:
        ours = magic == MAGIC and version not in READABLE
        raise UnknownFormat(path, found=version if ours else None, supported=VERSION)
    return FileHeader(found, id_, number)
