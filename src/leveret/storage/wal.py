"""The write-ahead log: commit rounds, written and synced.

Batches of any number of logs are collected into the current round. `sync()`, on any thread, writes the round
as one frame, makes it durable with one `fdatasync`, and returns the ticket up to which everything is durable.
A round that is too large for one frame is followed by another. The meaning of batches and tickets is left to
`store.py`, the format of frames to `frames.py`.

Files are reused: syncing a file that is already written takes half as long as syncing one that grows. When
all rounds of a file are in a checkpoint, the file is written again from its start under a new generation. A
generation is a random number, so that no published message can look like a frame. A start begins a new
generation too, and never appends to an old file. The header of a file has the file's size as its id, which
shows whether the file was cut.

The rule: after a failed *write* the round stays collected, and the next sync writes it. A failed *sync*
poisons the log for good, because the contents of the disk are unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from leveret.storage import formats, frames
from leveret.storage.durable_io import sync_all, sync_file
from leveret.storage.errors import (
    BadRequest,
    Damage,
    StorageError,
    StorePoisoned,
    write_failed,
)
from leveret.storage.files import File, Files
from leveret.storage.formats import FileHeader
from leveret.storage.frames import SECTOR_BYTES, Frame, Head
from leveret.storage.records import Batch

DIRECTORY = "wal"
FREE_FILES_MAX = 3
_SEARCHED_BYTES = 1 << 20
FULL_FILES_MAX = 4
"""With so many files that no checkpoint covers a start makes a checkpoint: they all have to be read again."""


@dataclass(slots=True)
class Round:
    """The batches that were collected under one ticket."""

    ticket: int
    batches: dict[int, list[Batch]]
    size: int = 0
    frame_bytes: int = 0
    """Bytes of the frame that was written for the round."""

    @property
    def records(self) -> int:
        """Number of messages and journal entries."""
        return sum(len(batch.messages) for batches in self.batches.values() for batch in batches)


class Written(NamedTuple):
    """What was written to the WAL and synced since the start: `records` are messages and journal entries."""

    records: int
    bytes: int
    kept_bytes: int
    """Bytes since the last checkpoint: what a restart after a crash must read."""


@dataclass(slots=True)
class _WalFile:
    path: str
    size: int
    last_ticket: int = 0


class Wal:
    """The write-ahead log of a data directory. `lock` guards the current round; hold it to collect."""

    def __init__(
        self, files: Files, *, file_bytes: int, clock: Callable[[], int], entropy: Callable[[], int]
    ) -> None:
        self._files = files
        self._entropy = entropy
        self._file_bytes = file_bytes
        self._clock = clock
        self._syncing = threading.Lock()
        self._round = Round(1, {})
        self._full: list[Round] = []
        """Closed rounds that wait for the next sync, oldest first. They are rare."""
        self._generation = 0
        self._numbers = 0
        self._current: _WalFile | None = None
        self._open_file: File | None = None
        self._position = 0
        self._full_files: list[_WalFile] = []
        self._free_files: list[_WalFile] = []
        self._synced_us = 0
        self.lock = threading.RLock()
        self.synced = 0
        """Ticket up to which everything collected is durable."""
        self.failed: StorageError | None = None
        """Error of the last sync; None if it succeeded. Stays set after the log is stopped."""
        self.stopped: StorageError | None = None
        """Error for every further call, after the log was poisoned or closed; otherwise None."""
        self.written_bytes = 0
        """Bytes written since the last call of `release`, and bytes of the rounds that were recovered."""
        self._total_records = self._total_bytes = 0

    # collecting

    @property
    def ticket(self) -> int:
        """Ticket of the current round: its batches are durable when `synced` has reached the ticket."""
        return self._round.ticket

    @property
    def ticket_so_far(self) -> int:
        """Ticket at which everything collected so far is durable."""
        round_ = self._round
        return round_.ticket if round_.batches else round_.ticket - 1

    @property
    def round_bytes(self) -> int:
        """Bytes of messages in the current round."""
        return self._round.size

    @property
    def collected_bytes(self) -> int:
        """Bytes of messages in all rounds that the next sync writes."""
        return self._round.size + sum(round_.size for round_ in self._full)

    @property
    def written(self) -> Written:
        return Written(self._total_records, self._total_bytes, self.written_bytes)

    def collect(self, log_id: int, batch: Batch) -> int:
        """Add a batch to the current round and return its ticket. The caller must hold the lock."""
        if self.stopped:
            raise self.stopped.with_traceback(None)
        self._round.size += batch.size
        batches = self._round.batches.get(log_id)
        if batches is None:
            self._round.batches[log_id] = [batch]
        else:
            batches.append(batch)
        return self._round.ticket

    def begin_round(self) -> None:
        """Close the current round and begin the next. The next sync writes both.

        Call it only between changes: after a crash the first round may be there without the second.
        """
        with self.lock:
            self._full.append(self._round)
            self._round = Round(self._round.ticket + 1, {})

    def _take(self) -> list[Round]:
        """Begin the next round and return the rounds before it, to be written. The caller holds the lock."""
        self.begin_round()
        rounds, self._full = self._full, []
        return rounds

    # syncing

    def sync(self) -> int:
        """Make everything collected so far durable, and return the ticket up to which it is durable.

        After a failed write, a round is written even if nothing was collected, to find out whether writing
        works again.
        """
        with self._syncing:
            with self.lock:
                self.check()
                if not self._round.batches and not self._full and not self.failed:
                    return self.synced
                rounds = self._take()
            self._write_all(rounds)
            return self.synced

    def sync_with(self, freeze: Callable[[], None], thaw: Callable[[], None]) -> int:
        """Does what `sync` does, and calls `freeze` under the lock at the very point up to which it syncs.

        A round is written even when nothing was collected. Where the write fails, `thaw` undoes the freeze.
        """
        with self._syncing:
            with self.lock:
                self.check()
                freeze()
                rounds = self._take()
            try:
                self._write_all(rounds)
            except Exception:
                with self.lock:
                    thaw()
                raise
            return self.synced

    @contextmanager
    def superseding(self, freeze: Callable[[], None]) -> Iterator[int]:
        """Close the round without writing it, and yield its ticket, for a checkpoint that replaces the round.

        When the block ends, the round counts as durable; when the block raises, the round stays collected.
        Used when the store opens, because frames of an earlier process may never have been synced, and when
        the disk has no space for rounds.
        """
        with self._syncing:
            with self.lock:
                self.check()
                freeze()
                rounds = self._take() if self._round.batches or self._full else []
            ticket = rounds[-1].ticket if rounds else self.synced
            try:
                yield ticket
            except Exception:
                self._put_back(rounds)
                raise
            self.synced = ticket

    def poison(self, error: StorePoisoned) -> None:
        """Stop the log after a failed sync here or elsewhere in the store."""
        self.stopped = self.failed = error

    def check(self) -> None:
        """Raise if the log is poisoned or closed."""
        if self.stopped:
            raise self.stopped.with_traceback(None)

    def _write_all(self, rounds: list[Round]) -> None:
        """Write rounds, each durable before the next one: recovery takes a torn frame for the end."""
        for position, round_ in enumerate(rounds):
            try:
                self._write(round_)
            except StorePoisoned:
                raise
            except Exception:
                # After any error the collected batches must not get lost.
                self._put_back(rounds[position:])
                raise

    def _write(self, round_: Round) -> None:
        self.check()
        try:
            file = self._append(round_)
        except OSError as error:
            failed = self.failed = write_failed(error, self._path)
            raise failed from error
        self._sync_file(file, self._path)
        self.failed = None
        self._synced_us = self._clock()
        self.synced = round_.ticket
        self._total_records += round_.records
        self._total_bytes += round_.frame_bytes

    def _append(self, round_: Round) -> File:
        """Write the frame of a round. The position moves only if that succeeds."""
        frame = self._encode(round_)
        if self._current is None or self._position + len(frame) > self._current.size:
            self._switch(len(frame))
            frame = self._encode(round_)
        assert self._open_file is not None
        assert self._current is not None
        self._open_file.write(frame, self._position)
        self._position += len(frame)
        self._current.last_ticket = round_.ticket
        self.written_bytes += len(frame)
        round_.frame_bytes = len(frame)
        return self._open_file

    def _encode(self, round_: Round) -> bytes:
        return frames.encode(
            round_.batches,
            generation=self._generation,
            ticket=round_.ticket,
            previous=self.synced,
            synced_us=self._synced_us,
        )

    def _put_back(self, rounds: list[Round]) -> None:
        """Collect rounds again, the last of them together with the current round."""
        if not rounds:
            return
        *full, last = rounds
        with self.lock:
            following = self._full[0] if self._full else self._round
            merged = last.batches
            for log_id, batches in following.batches.items():
                merged.setdefault(log_id, []).extend(batches)
            following.batches = merged
            following.size += last.size
            self._full[:0] = full

    def _sync_file(self, file: File, path: str) -> None:
        try:
            sync_file(file, path)
        except StorePoisoned as poisoned:
            self.poison(poisoned)
            raise

    @property
    def _path(self) -> str:
        return self._current.path if self._current else DIRECTORY

    # files

    def _switch(self, frame_bytes: int) -> None:
        """Continue in a free or new file, under a new generation."""
        needed = SECTOR_BYTES + frame_bytes
        free = [each for each in self._free_files if each.size >= needed]
        target = free[0] if free else self._create(max(needed, self._file_bytes))
        opened = self._files.open(target.path)
        try:
            generation = self._entropy()
            opened.write(FileHeader(formats.WAL, target.size, generation).encode(), 0)
        except OSError:
            opened.close()
            if target not in self._free_files:
                self._free_files.append(target)
            raise
        if target in self._free_files:
            self._free_files.remove(target)
        if self._current and self._open_file:
            self._open_file.close()
            self._full_files.append(self._current)
        self._current, self._open_file = target, opened
        self._generation = generation
        self._position = SECTOR_BYTES

    def _create(self, size: int) -> _WalFile:
        """Create a file with reserved space, so that later writes can't fail for lack of space.

        The file gets its name after its size. So a file that is shorter than its header says has been cut.
        """
        self._numbers += 1
        path = f"{DIRECTORY}/{self._numbers:08d}"
        draft = path + ".new"
        try:
            self._files.make_directory(DIRECTORY)
            with self._files.open(draft, create=True) as file:
                file.allocate(size)
                sync_file(file, draft)
            self._files.rename(draft, path)
            sync_all(self._files, ["", DIRECTORY])
        except StorePoisoned as poisoned:
            self.poison(poisoned)
            raise
        except OSError:
            # A draft that stays is removed at the next start.
            with suppress(OSError):
                self._files.unlink(draft)
            raise
        return _WalFile(path, size)

    def release(self, ticket: int) -> None:
        """Rounds up to this ticket are not needed any more: files that hold no others are free again."""
        with self._syncing:  # a sync on another thread chooses among the same files
            self.written_bytes = 0
            surplus = self._free(ticket)
        self._unlink(surplus)

    def _unlink(self, surplus: list[_WalFile]) -> None:
        for each in surplus:
            with suppress(OSError):  # what can't be removed now is free again at the next start
                self._files.unlink(each.path)

    def _free(self, ticket: int) -> list[_WalFile]:
        """Make the files free that hold no rounds above this ticket; return those that are not needed."""
        for each in [each for each in self._full_files if each.last_ticket <= ticket]:
            self._full_files.remove(each)
            self._free_files.append(each)
        self._free_files.sort(key=lambda each: each.size)
        surplus = []
        while self._free_files and (
            len(self._free_files) > FREE_FILES_MAX or self._free_files[-1].size > self._file_bytes
        ):
            surplus.append(self._free_files.pop())
        return surplus

    def close(self) -> None:
        if self._open_file:
            self._open_file.close()
            self._open_file = None
        self.stopped = self.failed = BadRequest("the store is closed", hint="Open it again.")

    # recovery

    def recover(self, report: Callable[[Damage], None], *, after: int) -> list[Frame]:
        """Return the frames of an earlier process with tickets above `after`, oldest first.

        Damaged frames are included. Their files stay untouched until they are released.
        """
        found: list[Frame] = []
        for name in self._files.names(DIRECTORY):
            if not name.isdecimal():
                continue
            path = f"{DIRECTORY}/{name}"
            self._numbers = max(self._numbers, int(name))
            last = 0
            with self._files.open(path) as file:
                size = file.size()
                for position, head in _heads_of(file, size, path, report):
                    last = max(last, head.ticket)
                    if head.ticket > after:
                        found.append(Frame(path, position, head, file.read(head.length, position)))
            self._full_files.append(_WalFile(path, size, last))
        self.written_bytes = sum(frame.head.length for frame in found)
        found.sort(key=lambda frame: frame.head.ticket)
        return found

    def begin(self, after: int, *, covered: int = 0) -> bool:
        """Start collecting: tickets go on above `after`. Files whose rounds are all `covered` are free.

        Return whether few files are in use, so that rounds may go on without a checkpoint.

        The files that were found will be used again, and the process that made them may have been killed
        before their names, or what it wrote last, were durable. What recovery has seen must stay: an older
        version of a sector would bring back a round that was tried and given up.
        """
        if self._full_files:
            sync_all(self._files, ["", DIRECTORY, *(each.path for each in self._full_files)])
        self.synced = after
        self._round = Round(after + 1, {})
        self._unlink(self._free(covered))
        return len(self._full_files) < FULL_FILES_MAX


def _heads_of(
    file: File, size: int, path: str, report: Callable[[Damage], None]
) -> Iterator[tuple[int, Head]]:
    """Where the frames of a file begin, and their heads. What lies between two frames is searched through."""
    generation = _generation_of(file.read(2 * SECTOR_BYTES, 0), size, path, report)
    position = SECTOR_BYTES
    while generation is not None and position < size:
        head = frames.read_head(file.read(2 * frames.HEAD_BYTES, position), 0, generation)
        if head is not None:
            yield position, head
            position += head.length + -head.length % SECTOR_BYTES
            continue
        # A head lies within one sector, so that no piece begins or ends in the middle of one.
        gap = frames.find(file.read(_SEARCHED_BYTES, position), 0, generation)
        position += gap if gap >= 0 else _SEARCHED_BYTES


def _generation_of(content: bytes, size: int, path: str, report: Callable[[Damage], None]) -> int | None:
    """The generation of a WAL file of this size, whose beginning is `content`.

    It is in the header or, when that is damaged, in the first frame.
    """
    header = formats.read_header(content, path, formats.WAL)
    if size < (header.id if header else SECTOR_BYTES):
        report(Damage(path, size, None, "a WAL file was cut here; rounds behind it are lost"))
    if header is not None:
        return header.number
    if not any(content[:SECTOR_BYTES]):
        return None
    for at in (SECTOR_BYTES, SECTOR_BYTES + frames.HEAD_BYTES):
        raw = content[at + 8 : at + 16]
        generation = int.from_bytes(raw, "little")
        head: Head | None = frames.read_head(content, SECTOR_BYTES, generation)
        if head is not None:
            report(Damage(path, 0, None, "the header of a WAL file is damaged; its frames were read"))
            return generation
    report(Damage(path, 0, None, "the header of a WAL file is damaged, and no frame follows it"))
    return None
