"""Write consumed messages: as lines to a file, a pipe or a terminal, or as one file for each message.

The rule: messages for which `write` has returned are safe to ack. In a file, safe means synced, and a write
that fails half-way is taken back. In a directory, safe means synced and under a new name. A pipe can't be
synced, so safe means that the reader has taken the message. The first messages go through a pipe one by
one, each when the previous one was read. So `| head -3` takes three messages, and the fourth returns to the
queue. Later messages go in batches, for speed. These functions block, and run in the background.
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

_SINGLE_WRITES: Final = 1000
"""How many messages go through a pipe one by one, at about 7,000 per second."""
_TAIL_BYTES: Final = 1 << 20
_LINE_ENDS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_SHORT_WAIT_S: Final = 0.00005
_SHORT_WAITS: Final = 40
_POLL_MS: Final = 2


class WritingStopped(Exception):
    """Nothing more can be written; the first `done` messages of the batch are safe."""

    def __init__(self, sentence: str, done: int, *, reader_gone: bool = False) -> None:
        super().__init__(sentence)
        self.done = done
        self.reader_gone = reader_gone
        """The reader closed the pipe, which is not a failure."""


class Output(Protocol):
    """A destination of messages."""

    ambiguous: int
    """Number of bodies that contain line breaks, so that their ends can't be found in the output."""

    def write(self, deliveries: Sequence[Delivery]) -> None:
        """Write all messages safely, or raise `WritingStopped`."""

    def give_up(self) -> None:
        """Stop waiting for the reader. Another thread calls this."""

    def close(self) -> None: ...


def as_text(delivery: Delivery) -> bytes:
    return delivery.body


def as_json(delivery: Delivery) -> bytes:
    """Return the body as one line: JSON as it is, text as a JSON string.

    Line breaks become spaces. Strings in JSON escape theirs, so only space between tokens changes.
    """
    try:
        parse_json(delivery.body)
    except BadEnvelope:
        try:
            return json_line(delivery.body.decode())
        except UnicodeDecodeError:
            raise BadEnvelope(
                f"{delivery!r} is neither JSON nor text: --format envelope can write it"
            ) from None
    return delivery.body.translate(_LINE_ENDS_TO_SPACES)


RENDERERS: Final[dict[str, Callable[[Delivery], bytes]]] = {
    "lines": as_text,
    "jsonl": as_json,
    "envelope": of_delivery,
}


class Lines:
    """Writes one line for each message to a file, a pipe or a terminal; owns the descriptor."""

    def __init__(self, descriptor: int, name: str, form: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._render = RENDERERS[form]
        mode = os.fstat(descriptor).st_mode
        self._is_file = S_ISREG(mode)
        self._is_pipe = S_ISFIFO(mode)
        self._single_writes_left = _SINGLE_WRITES if self._is_pipe else 0
        self._given_up = False
        self.ambiguous = 0
        os.set_blocking(descriptor, True)

    @classmethod
    def to_file(cls, path: Path, form: str) -> Lines:
        """Append to the file, because messages written by an earlier run were acked."""
        is_new = not path.exists()
        if path.is_file():
            repair_last_line(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if is_new:
            _sync_directory(path.resolve().parent)
        return cls(descriptor, str(path), form)

    def give_up(self) -> None:
        self._given_up = True

    def close(self) -> None:
        os.close(self._descriptor)

    def write(self, deliveries: Sequence[Delivery]) -> None:
        done = 0
        while done < len(deliveries):
            size = 1 if self._single_writes_left else len(deliveries) - done
            self._single_writes_left = max(0, self._single_writes_left - 1)
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
            self._write_safely(b"".join(lines))
        except OSError as error:
            reader_gone = error.errno == errno.EPIPE
            reason = f"{self._name} can't be written: {error.strerror}"
            if reader_gone:
                reason = "the reader has gone"
            raise WritingStopped(reason, done, reader_gone=reader_gone) from error
        if unwritable is not None:
            raise WritingStopped(str(unwritable), done + len(lines))

    def _write_safely(self, data: bytes) -> None:
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
        """Poll until the pipe is empty; the system does not notify writers of that."""
        poll = select.poll()
        # Without flags only an error is reported: the reader has closed its end.
        poll.register(self._descriptor, 0)
        checks = 0
        while _unread_bytes(self._descriptor):
            checks += 1
            if checks <= _SHORT_WAITS:
                time.sleep(_SHORT_WAIT_S)
            elif (poll.poll(_POLL_MS) or self._given_up) and _unread_bytes(self._descriptor):
                raise BrokenPipeError(errno.EPIPE, "the reader has gone")


def _unread_bytes(descriptor: int) -> int:
    answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(answer, "little")


def _sync_directory(path: Path) -> None:
    """Sync a directory, so that the name of a new file survives a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def repair_last_line(path: Path) -> None:
    """Append a missing line break to the last line of a file.

    An incomplete envelope is cut off instead: its writer was killed, so its message was not acked and will be
    redelivered.
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


class Directory:
    """Writes each body to a file `00000001.json`, …; numbers continue after the existing files.

    The ending of a name follows the content type.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ambiguous = 0
        path.mkdir(parents=True, exist_ok=True)
        used_numbers = (entry.name.partition(".")[0] for entry in os.scandir(path))
        self._number = max((int(name) for name in used_numbers if name.isdecimal()), default=0)
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
        """Do nothing: a directory has no reader to wait for."""

    def close(self) -> None:
        os.close(self._descriptor)

    def _write_file(self, delivery: Delivery) -> None:
        content_type = (delivery.content_type or "").partition(";")[0].strip()
        partial_file = self._path / f".{secrets.token_hex(8)}.part"
        try:
            with partial_file.open("xb") as file:
                file.write(delivery.body)
                file.flush()
                os.fsync(file.fileno())
            self._publish(partial_file, mimetypes.guess_extension(content_type) or ".bin")
        finally:
            partial_file.unlink(missing_ok=True)

    def _publish(self, partial_file: Path, suffix: str) -> None:
        """Link the file under the next free number; unlike a rename, a link never replaces a file."""
        while True:
            self._number += 1
            with suppress(FileExistsError):
                (self._path / f"{self._number:08d}{suffix}").hardlink_to(partial_file)
                return
