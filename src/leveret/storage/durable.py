"""The two kinds of failure, told apart: what could not be written, and what could not be synced.

`sync_file` and `sync_directory` turn a failed sync into `StorePoisoned`; every other OSError is a failed
write, for the caller to undo. Also here: a file that is written whole or not at all, used for snapshots and
checkpoints: written under another name, synced, renamed, and the directory synced.

    file header 64 B | length u64 | checksum u64 (xxh3 of the content) | content
"""

from __future__ import annotations

from struct import Struct

from xxhash import xxh3_64_intdigest

from leveret.storage import formats
from leveret.storage.errors import StorePoisoned
from leveret.storage.files import File, Files
from leveret.storage.formats import HEADER_BYTES, FileHeader

_LENGTHS = Struct("<QQ")


def sync_file(file: File, path: str) -> None:
    try:
        file.sync()
    except OSError as error:
        raise StorePoisoned(path, error) from error


def sync_directory(files: Files, path: str) -> None:
    try:
        files.sync_directory(path)
    except OSError as error:
        raise StorePoisoned(path, error) from error


def make_directory(files: Files, path: str) -> None:
    """Made and durable. A directory that was made but could not be made durable poisons the store."""
    try:
        files.make_directory(path)
    except OSError as error:
        if files.exists(path):
            raise StorePoisoned(path, error) from error
        raise


def write_whole(files: Files, path: str, header: FileHeader, content: bytes) -> None:
    """After any crash, `path` is the whole content or what it was before."""
    draft = path + ".new"
    with files.open(draft, create=True) as file:
        file.truncate(0)
        file.write(header.encode() + _LENGTHS.pack(len(content), xxh3_64_intdigest(content)) + content, 0)
        sync_file(file, draft)
    files.rename(draft, path)
    sync_directory(files, path.rpartition("/")[0])


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
