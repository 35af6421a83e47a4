"""Syncs, and files that are written completely or not at all.

A failed sync becomes `StorePoisoned`. Any other OSError is a failed write, which the caller undoes. Snapshots
and checkpoints are *whole files*: written under a draft name, synced, renamed, and their directory synced.

    file header 64 B | length u64 | checksum u64 (xxh3 of the content) | content
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from leveret.storage import formats
from leveret.storage.errors import StorePoisoned
from leveret.storage.files import File, Files
from leveret.storage.formats import HEADER_BYTES, FileHeader

_LENGTHS = Struct("<QQ")


class WholeFile(NamedTuple):
    """A file to be written completely or not at all."""

    path: str
    header: FileHeader
    content: bytes

    @property
    def draft(self) -> str:
        return self.path + ".new"

    def encode(self) -> bytes:
        lengths = _LENGTHS.pack(len(self.content), xxh3_64_intdigest(self.content))
        return self.header.encode() + lengths + self.content


def sync_file(file: File, path: str) -> None:
    try:
        file.sync()
    except OSError as error:
        raise StorePoisoned(path, error) from error


def sync_all(files: Files, paths: Sequence[str]) -> None:
    try:
        files.sync_all(paths)
    except OSError as error:
        raise StorePoisoned(", ".join(paths[:3]), error) from error


def write_whole(files: Files, whole: Sequence[WholeFile]) -> None:
    """Write files. After a crash, each has either its new or its old content."""
    for whole_file in whole:
        with files.open(whole_file.draft, create=True) as file:
            file.truncate(0)
            file.write(whole_file.encode(), 0)
    sync_all(files, [whole_file.draft for whole_file in whole])
    for whole_file in whole:
        files.rename(whole_file.draft, whole_file.path)
    sync_all(files, sorted({whole_file.path.rpartition("/")[0] for whole_file in whole}))


def read_whole(files: Files, path: str, kind: bytes) -> bytes | None:
    """Return a file's content, or None if the file is missing or damaged."""
    try:
        with files.open(path) as file:
            data = file.read(file.size(), 0)
    except FileNotFoundError:
        return None
    start = HEADER_BYTES + _LENGTHS.size
    if formats.read_header(data, path, kind) is None or len(data) < start:
        return None
    length, checksum = _LENGTHS.unpack_from(data, HEADER_BYTES)
    content = data[start:]
    return content if len(content) == length and xxh3_64_intdigest(content) == checksum else None
