"""Read the input of `leveret publish`: lines of files or of stdin, or whole files.

Input is streamed: memory holds one chunk and the line in which it ends. Data from a pipe is passed on as
soon as it arrives. Every piece knows its file and line, so that errors can name them. `Composer` turns
pieces into messages; the functions here block, and run in the background.
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
# RabbitMQ's default for max_message_size.
MESSAGE_BYTES_MAX: Final = 128 << 20
_STDIN: Final = "-"
_STDIN_DESCRIPTOR: Final = 0


class Piece(NamedTuple):
    """The input for one message: a line, or a whole file (then `line` is 0)."""

    body: bytes
    file: str
    line: int = 0

    @property
    def place(self) -> str:
        return f"{_display_name(self.file)}, line {self.line}" if self.line else _display_name(self.file)

    @property
    def guessed_type(self) -> str:
        """Return the content type that the file's name suggests."""
        return mimetypes.guess_type(self.file)[0] or "application/octet-stream"


def _display_name(file: str) -> str:
    return "stdin" if file == _STDIN else file


def is_interactive(files: Sequence[Path]) -> bool:
    """Return whether the input is typed at a terminal."""
    return Path(_STDIN) in files and os.isatty(_STDIN_DESCRIPTOR)


def total_bytes(files: Sequence[Path]) -> int | None:
    """Return the size of the input, or None if it is unknown, as for a pipe."""
    total = 0
    for path in files:
        with _open(path) as descriptor:
            state = os.fstat(descriptor)
        if not S_ISREG(state.st_mode):
            return None
        total += state.st_size
    return total


def read_files(files: Sequence[Path]) -> Iterator[list[Piece]]:
    """Yield each file as one piece."""
    for path in files:
        with _open(path) as descriptor:
            chunks: list[bytes] = []
            while chunk := _read(descriptor, path):
                _check_size(chunks, path, 0)
                chunks.append(chunk)
        yield [Piece(b"".join(chunks), str(path))]


def read_lines(files: Sequence[Path]) -> Iterator[list[Piece]]:
    """Yield each line, without its end, as one piece; lines that arrive together are one list."""
    for path in files:
        name = str(path)
        with _open(path) as descriptor:
            line_count = 0
            partial_line: list[bytes] = []
            while chunk := _read(descriptor, path):
                first, *more = chunk.split(b"\n")
                partial_line.append(first)
                if not more:
                    _check_size(partial_line, path, line_count + 1)
                    continue
                lines = [b"".join(partial_line), *more[:-1]]
                partial_line = [more[-1]]
                yield [Piece(line, name, number) for number, line in enumerate(lines, line_count + 1)]
                line_count += len(lines)
            if rest := b"".join(partial_line):
                yield [Piece(rest, name, line_count + 1)]


def _check_size(chunks: Sequence[bytes], path: Path, line: int) -> None:
    if len(chunks) * _CHUNK_BYTES > MESSAGE_BYTES_MAX and sum(map(len, chunks)) > MESSAGE_BYTES_MAX:
        place = Piece(b"", str(path), line).place
        raise ClientError(f"{place}: longer than {MESSAGE_BYTES_MAX:,} bytes, more than brokers accept")


def _read(descriptor: int, path: Path) -> bytes:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except OSError as error:
        raise ClientError(f"{_display_name(str(path))} can't be read: {error.strerror}") from error


@contextmanager
def _open(path: Path) -> Iterator[int]:
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
