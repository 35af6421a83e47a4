"""Reading what is to be published: lines of files or of stdin, or whole files.

Reading is streamed: no more is in memory than a chunk and the line it ends in. What comes through a pipe is
handed on as soon as it is there. Every piece knows where it came from, so that errors can name the line.
Meaning is given to the pieces by `Composer`; these functions block, and are called in the background.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

from leveret.client import ClientError

_CHUNK_BYTES: Final = 64 << 10
MESSAGE_BYTES_MAX: Final = 128 << 20  # RabbitMQ's default of what it takes
_STDIN: Final = "-"
_STDIN_DESCRIPTOR: Final = 0


class Piece(NamedTuple):
    """A line, or a whole file (`line` is 0 then)."""

    body: bytes
    file: str
    line: int = 0

    @property
    def place(self) -> str:
        return f"{_name(self.file)}, line {self.line}" if self.line else _name(self.file)

    @property
    def guessed_type(self) -> str:
        """Of a whole file, by its name."""
        return mimetypes.guess_type(self.file)[0] or "application/octet-stream"


def _name(file: str) -> str:
    return "stdin" if file == _STDIN else file


def is_typed(files: Sequence[Path]) -> bool:
    """Whether somebody types what is read."""
    return Path(_STDIN) in files and os.isatty(_STDIN_DESCRIPTOR)


def total_bytes(files: Sequence[Path]) -> int | None:
    """How much there is to read; None if that can't be known."""
    total = 0
    for path in files:
        with _opened(path) as descriptor:
            state = os.fstat(descriptor)
        if not S_ISREG(state.st_mode):
            return None
        total += state.st_size
    return total


def read_files(files: Sequence[Path]) -> Iterator[list[Piece]]:
    """Each file as one piece."""
    for path in files:
        with _opened(path) as descriptor:
            chunks: list[bytes] = []
            while chunk := _read(descriptor, path):
                _check_size(chunks, path, 0)
                chunks.append(chunk)
        yield [Piece(b"".join(chunks), str(path))]


def read_lines(files: Sequence[Path]) -> Iterator[list[Piece]]:
    """Each line as one piece, without its end; in lists of what was there at once."""
    for path in files:
        name = str(path)
        with _opened(path) as descriptor:
            number = 0
            begun: list[bytes] = []
            while chunk := _read(descriptor, path):
                first, *more = chunk.split(b"\n")
                begun.append(first)
                if not more:
                    _check_size(begun, path, number + 1)
                    continue
                lines = [b"".join(begun), *more[:-1]]
                begun = [more[-1]]
                yield [Piece(line, name, at) for at, line in enumerate(lines, number + 1)]
                number += len(lines)
            if rest := b"".join(begun):
                yield [Piece(rest, name, number + 1)]


def _check_size(chunks: Sequence[bytes], path: Path, line: int) -> None:
    if len(chunks) * _CHUNK_BYTES > MESSAGE_BYTES_MAX and sum(map(len, chunks)) > MESSAGE_BYTES_MAX:
        place = Piece(b"", str(path), line).place
        raise ClientError(f"{place}: longer than {MESSAGE_BYTES_MAX:,} bytes, which no broker takes")


def _read(descriptor: int, path: Path) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError as error:
        raise ClientError(f"{_name(str(path))} can't be read: {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    if str(path) == _STDIN:
        yield _STDIN_DESCRIPTOR
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ClientError(f"{path} can't be read: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
