"""Writing what was consumed: as lines to a file, a pipe or a terminal, or as a file for each message.

The rule: what `write` has returned for is safe to ack. In a file that means synced, and a write that fails
half-way is taken back. In a directory it means synced and named, where no file had that name before. A
pipe can't be synced, so what counts there is that the reader has taken it: the first messages are handed
over one by one, each when the one before was read, so that `| head -3` takes three and the fourth goes back
to the queue; later ones go by the batch, for speed. These functions block, and are called in the background.
"""

from __future__ import annotations

import errno
import fcntl
import mimetypes
import os
import secrets
import select
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import Final, Protocol

from leveret.cli.message_json import ENVELOPE_START, BadEnvelope, json_line, of_delivery, parse_json
from leveret.client import Delivery

_ONE_BY_ONE: Final = 1000
"""So many are handed over singly through a pipe: some 7,000 a second."""
_TAIL_BYTES: Final = 1 << 20
_LINE_ENDS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_WAIT_S: Final = 0.00005
_WAITS: Final = 40
_POLL_MS: Final = 2


class WritingStopped(Exception):
    """No more can be written; the first `done` of the batch are safe."""

    def __init__(self, sentence: str, done: int, *, reader_gone: bool = False) -> None:
        super().__init__(sentence)
        self.done = done
        self.reader_gone = reader_gone
        """Whoever read has had enough, which is no failure."""


class Output(Protocol):
    """Where messages go."""

    ambiguous: int
    """Bodies that can't be told apart any more, because they have line ends in them."""

    def write(self, deliveries: Sequence[Delivery]) -> None:
        """All of them, safely; or `WritingStopped`."""

    def give_up(self) -> None:
        """Waits for nobody any more (called by another thread)."""

    def close(self) -> None: ...


# --- as lines --------------------------------------------------------------------------------------------


def as_text(delivery: Delivery) -> bytes:
    return delivery.body


def as_json(delivery: Delivery) -> bytes:
    """The body as one line: JSON as it is, text as a JSON string.

    Within JSON's strings line ends are escaped: those that are seen are space between its parts.
    """
    try:
        parse_json(delivery.body)
    except BadEnvelope:
        try:
            return json_line(delivery.body.decode())
        except UnicodeDecodeError:
            raise BadEnvelope(
                f"{delivery!r} is neither JSON nor text: --format envelope writes anything"
            ) from None
    return delivery.body.translate(_LINE_ENDS_TO_SPACES)


RENDERERS: Final[dict[str, Callable[[Delivery], bytes]]] = {
    "lines": as_text,
    "jsonl": as_json,
    "envelope": of_delivery,
}


class Lines:
    """A line for each message, to a descriptor of one's own: of a file, a pipe, a terminal."""

    def __init__(self, descriptor: int, name: str, form: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._render = RENDERERS[form]
        mode = os.fstat(descriptor).st_mode
        self._is_file = S_ISREG(mode)
        self._is_pipe = S_ISFIFO(mode)
        self._singly = _ONE_BY_ONE if self._is_pipe else 0
        self._given_up = False
        self.ambiguous = 0
        os.set_blocking(descriptor, True)

    @classmethod
    def to_file(cls, path: Path, form: str) -> Lines:
        """At the end of the file: what an earlier run has written, and acked, must not be lost."""
        is_new = not path.exists()
        if path.is_file():
            mend(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if is_new:
            _sync_directory(path.resolve().parent)
        return cls(descriptor, str(path), form)

    def give_up(self) -> None:
        """Waits for no reader any more (called by another thread)."""
        self._given_up = True

    def close(self) -> None:
        os.close(self._descriptor)

    def write(self, deliveries: Sequence[Delivery]) -> None:
        done = 0
        size = 1 if self._singly else len(deliveries)
        while done < len(deliveries):
            if self._singly:
                self._singly -= 1
            else:
                size = len(deliveries) - done
            self._write_batch(deliveries[done : done + size], done)
            done += size

    def _write_batch(self, deliveries: Sequence[Delivery], done: int) -> None:
        lines: list[bytes] = []
        unwritable: BadEnvelope | None = None
        for delivery in deliveries:
            try:
                line = self._render(delivery)
                self.ambiguous += b"\n" in line
                lines.append(line + b"\n")
            except BadEnvelope as error:
                unwritable = error
                break
        try:
            self._put(b"".join(lines))
        except OSError as error:
            gone = error.errno == errno.EPIPE
            what = "the reader has gone" if gone else f"{self._name} can't be written: {error.strerror}"
            raise WritingStopped(what, done, reader_gone=gone) from error
        if unwritable is not None:
            raise WritingStopped(str(unwritable), done + len(lines))

    def _put(self, data: bytes) -> None:
        if self._is_file:
            start = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, data)
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, start)
                raise
        else:
            _write_all(self._descriptor, data)
            if self._is_pipe:
                self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        """Until the pipe is empty; nothing tells when that is, so it is looked at."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # an error is reported always: the other end is closed
        looks = 0
        while _unread_bytes(self._descriptor):
            looks += 1
            if looks <= _WAITS:
                time.sleep(_WAIT_S)
            elif (poll.poll(_POLL_MS) or self._given_up) and _unread_bytes(self._descriptor):
                raise BrokenPipeError(errno.EPIPE, "the reader has gone")  # and has not read all before


def _unread_bytes(descriptor: int) -> int:
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(answer, "little")


def _sync_directory(path: Path) -> None:
    """So that the name of a new file in it lasts, as its content does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def mend(path: Path) -> None:
    """Ends the last line of a file, if it has no end.

    Half an envelope is cut off instead: whoever wrote it was killed, its message was not acked and comes
    again.
    """
    with path.open("r+b") as file:
        size = start = file.seek(0, os.SEEK_END)
        tail = b""
        while start and b"\n" not in tail:
            step = min(start, _TAIL_BYTES)
            start -= step
            tail = os.pread(file.fileno(), step, start) + tail
        line = tail[tail.rfind(b"\n") + 1 :]
        if line.startswith(ENVELOPE_START) and not _is_json(line):
            file.truncate(size - len(line))
        elif line:
            file.write(b"\n")


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except BadEnvelope:
        return False
    return True


# --- a file for each -------------------------------------------------------------------------------------


class Directory:
    """Files `00000001.json`, ...: the body alone, named by content type; numbers go on where they ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ambiguous = 0
        path.mkdir(parents=True, exist_ok=True)
        taken = (entry.name.partition(".")[0] for entry in os.scandir(path))
        self._number = max((int(name) for name in taken if name.isdecimal()), default=0)
        self._descriptor = os.open(path, os.O_RDONLY)

    def write(self, deliveries: Sequence[Delivery]) -> None:
        written = 0
        failure: OSError | None = None
        try:
            for delivery in deliveries:
                self._write_file(delivery)
                written += 1
        except OSError as error:
            failure = error
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            written, failure = 0, error
        if failure is not None:
            raise WritingStopped(f"{self._path} can't be written: {failure.strerror}", written) from failure

    def give_up(self) -> None:
        """There is nobody to wait for."""

    def close(self) -> None:
        os.close(self._descriptor)

    def _write_file(self, delivery: Delivery) -> None:
        kind = (delivery.content_type or "").partition(";")[0].strip()
        begun = self._path / f".{secrets.token_hex(8)}.part"
        try:
            with begun.open("xb") as file:
                file.write(delivery.body)
                file.flush()
                os.fsync(file.fileno())
            self._name(begun, mimetypes.guess_extension(kind) or ".bin")
        finally:
            begun.unlink(missing_ok=True)

    def _name(self, begun: Path, ending: str) -> None:
        """By the next number that is free: others may write here too. A link replaces nothing."""
        while True:
            self._number += 1
            with suppress(FileExistsError):
                (self._path / f"{self._number:08d}{ending}").hardlink_to(begun)
                return
