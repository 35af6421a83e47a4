"""The two kinds of failure, told apart: what could not be written, and what could not be synced.

`sync_file` and `sync_all` turn a failed sync into `StorePoisoned`; every other OSError is a failed write, for
the caller to undo. Also here: files that are written whole or not at all, used for snapshots and checkpoints:
written under another name, synced, renamed, and the directory synced.

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
    """A file to be written whole."""

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
    """Files and directories."""
    try:
        files.sync_all(paths)
    except OSError as error:
        raise StorePoisoned(", ".join(paths[:3]), error) from error


def write_whole(files: Files, whole: Sequence[WholeFile]) -> None:
    """After any crash, each of the files is the whole content or what it was before."""
    for each in whole:
        with files.open(each.draft, create=True) as file:
            file.truncate(0)
            file.write(each.encode(), 0)
    sync_all(files, [each.draft for each in whole])
    for each in whole:
        files.rename(each.draft, each.path)
    sync_all(files, sorted({each.path.rpartition("/")[0] for each in whole}))


def read_whole(files: Files, path: str, kind: bytes) -> bytes | None:
    """The content; None when the file is missing or damaged in any way."""
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
