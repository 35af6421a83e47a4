"""The store: the logs and cursors of one data directory, with a write-ahead log and checkpoints.

Changes are collected into the current WAL round and applied in memory. `sync()` makes them durable and
returns the ticket up to which they are. `checkpoint()` writes what is in memory to segments and journals,
syncs them, deletes what retention allows, and frees the WAL. One thread makes all changes; `sync` and
`checkpoint` may run on others. This file puts the steps in order and leaves each step to its own file.

The rule: nothing in a file counts unless a checkpoint names it, and a checkpoint names only what is synced
and covered by a durable round. So recovery needs only the last checkpoint and the rounds after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from leveret.storage.catalog import CATALOG_LOG, LogImage, LogSpec, change
from leveret.storage.checkpointer import Checkpointer, plan_messages
from leveret.storage.cursor import Cursor, check_name
from leveret.storage.errors import (
    BadName,
    BadRequest,
    Damage,
    OffsetOutOfRange,
    StorageFull,
    UnknownCursor,
    UnknownLog,
    write_failed,
)
from leveret.storage.files import Files, Lock
from leveret.storage.journal import ENTRY_BYTES, Entry, Kind, Outcome
from leveret.storage.log import BlockCache, Log, measure
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.progress import Progress
from leveret.storage.records import Batch, Message
from leveret.storage.recovery import Recovered, load_progress, recover, remove_drafts, remove_strays
from leveret.storage.retention import Retention
from leveret.storage.space_reserve import Reserve
from leveret.storage.transaction import Transaction
from leveret.storage.wal import Wal, Written

RESERVE_AHEAD = 1 << 20
ROUND_BYTES_MAX = 1 << 30
"""Size of a round above which an append begins a new one, because frames have a largest size."""
PRIORITIES_MAX = 255
RESERVE = "reserve"
"""File that reserves space for a checkpoint on a full disk."""
LOST_AHEAD = 1 << 24
"""Offsets, ids and tickets skipped when rounds may be lost: more than the rounds of a WAL file can have."""


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of a store. The defaults suit a broker; tests use small ones."""

    wal_bytes: int = 64 << 20
    """Size of a WAL file."""
    segment_bytes: int = 64 << 20
    memory_bytes: int = 64 << 20
    """Bytes of messages in memory at which a checkpoint is due."""
    snapshot_bytes: int = 1 << 20
    """Journal entries after which a cursor is written down whole."""
    state_bytes: int = 2048
    """A cursor whose progress takes no more is part of each checkpoint: its journal need not be read."""
    reserve_ahead: int = RESERVE_AHEAD
    reserve_bytes: int = 1 << 20
    """Disk space reserved for a checkpoint on a full disk; 0 for none."""


class Store:
    """Logs and cursors in one data directory: `store = Store(OsFiles("/var/lib/leveret"), ...)`."""

    def __init__(
        self,
        files: Files,
        *,
        clock: Callable[[], int],
        entropy: Callable[[], int],
        options: Options = Options(),  # noqa: B008  (frozen)
        first_id: int = 1,
    ) -> None:
        """Open and lock the directory, and recover its contents.

        `clock` returns microseconds, `entropy` random 64-bit numbers. In an empty directory, ids of logs
        begin with `first_id`.
        """
        self._files = files
        self._clock = clock
        self._options = options
        self._cache = BlockCache()
        self._logs: dict[int, Log] = {}
        self._cursors: dict[int, dict[str, Cursor]] = {}
        """Cursors by the ids of their logs, then by name."""
        self._deleted: list[str] = []
        self._next_id = first_id
        self._pending_bytes = 0
        self._retention_due = False
        self.damage: list[Damage] = []
        """Damage found since the store was opened."""
        self._spare = Reserve(files, RESERVE, options.reserve_bytes)
        self._opening = threading.Lock()
        self.is_opening = True
        """Whether this process has not written anything yet, because the disk is full."""
        self._lock = _lock(files)
        self._wal = Wal(files, file_bytes=options.wal_bytes, clock=clock, entropy=entropy)
        try:
            recovered = recover(files, self._wal, self._note, first_id=first_id)
            self._checkpointer = Checkpointer(
                files,
                self._wal,
                recovered.checkpoint,
                snapshot_bytes=options.snapshot_bytes,
                state_bytes=options.state_bytes,
                clock=clock,
                replaced=recovered.replaced,
            )
            self._goes_on = self._begin_wal(recovered)
            """Whether the WAL goes on, because the store was closed and nothing is damaged."""
            self.is_new = not recovered.checkpoint.number
            """Whether the directory held nothing."""
            self._load(recovered)
            self._begin(recovered)
            self._recount()
            remove_drafts(files)
            self._goes_on = self._goes_on and not self.damage
            with suppress(StorageFull):  # all of it is in memory, and nothing is written before this works
                self._finish_opening()
        except BaseException as error:
            self._wal.close()
            self._lock.release()
            if isinstance(error, OSError):
                raise write_failed(error, "the data directory") from error
            raise

    # logs and cursors

    @property
    def logs(self) -> Mapping[int, Log]:
        """Logs of messages by id, without journals."""
        return {id_: log for id_, log in self._logs.items() if not log.spec.parent}

    def log(self, id_: int) -> Log:
        log = self._logs.get(id_)
        if log is None or log.spec.parent:
            raise UnknownLog(f"there is no log {id_}")
        return log

    def cursors(self, log_id: int) -> Mapping[str, Cursor]:
        return self._cursors.get(log_id, {})

    def create_log(self, *, label: str = "", retention: Retention = Retention()) -> Log:  # noqa: B008
        """Create an empty log with an id that was never used. It is durable when the current ticket is.

        Its first offsets are reserved in the same round, so a crash loses both or neither.
        """
        with self._wal.lock:
            log = self._create(LogSpec(self._new_id(), label=label, retention=retention))
            log.reserved = self._options.reserve_ahead
            self._change(reserve=[log.id, log.reserved])
        return log

    def create_cursor(
        self,
        log: Log,
        name: str,
        *,
        start: int | None = None,
        priorities: int = 0,
        audit_us: int = 0,
        label: str = "",
        visible_to: Cursor | None = None,
    ) -> Cursor:
        """Create a cursor that begins at `start`; without `start`, at the first message of the log.

        The cursor skips messages that all other cursors have settled, because they may be deleted at any
        moment, and those that `visible_to` has settled. Journal entries are kept for `audit_us` longer than
        the cursor needs them.
        """
        self._check_alive(log)
        check_name(name)
        if not 0 <= priorities <= PRIORITIES_MAX:
            raise BadRequest(f"{priorities} priorities", hint=f"Use 0 to {PRIORITIES_MAX}.")
        others = self._cursors[log.id]
        if name in others:
            raise BadName(f"log {log.id} has a cursor {name!r} already", hint="Use it, or another name.")
        start = log.first if start is None else start
        if not 0 <= start <= log.next:
            raise OffsetOutOfRange(f"a cursor at {start} of a log that ends at {log.next}")
        kept = Retention(audit_us=audit_us)
        spec = LogSpec(self._new_id(), log.id, name, label, priorities, kept)
        with self._wal.lock:
            journal = self._create(spec)
            cursor = Cursor(self, log, journal, Progress(start=start, priorities=priorities))
            cursor.progress.open(log.present(), log.next)
            if priorities:
                cursor.progress.prioritise(log.priorities())
            dead = log.dead_ranges([each.progress for each in others.values()])
            others[name] = cursor
            cursor.start()
            unseen = [r for a, b in dead for r in cursor.progress.ready_within(a, b)]
            if unseen:
                cursor.drop(unseen, Outcome.SKIPPED)
            if visible_to is not None:
                cursor.leave_out_settled(visible_to)
        return cursor

    def set_retention(self, log: Log, retention: Retention) -> int:
        """Change how long a log keeps messages, from the next checkpoint on; return the ticket."""
        self._check_alive(log)
        with self._wal.lock:
            log.spec = log.spec._replace(retention=retention)
            log.touched = True
            return self._change(alter=log.spec)

    def skip_ids(self, last: int) -> None:
        """Give no new log an id up to `last`, even if no log with such an id is known."""
        if last >= self._next_id:
            self._next_id = last + 1

    def delete_log(self, log: Log) -> int:
        """Delete a log with its cursors; return the ticket."""
        self._check_alive(log)
        with self._wal.lock:
            for cursor in list(self._cursors[log.id].values()):
                self.delete_cursor(cursor)
            del self._cursors[log.id]
            return self._delete(log)

    def delete_cursor(self, cursor: Cursor) -> int:
        """Delete a cursor; return the ticket. Messages that only this cursor kept may be deleted then."""
        if self.cursors(cursor.log.id).get(cursor.name) is not cursor:
            raise UnknownCursor(f"log {cursor.log.id} has no cursor {cursor.name!r} like this one")
        with self._wal.lock:
            cursor.deleted = True
            del self._cursors[cursor.log.id][cursor.name]
            return self._delete(cursor.journal)

    # changes

    def append(self, log: Log, messages: Sequence[Message]) -> Range:
        """Append a batch and return its offsets [start, stop). It is durable when the current ticket is."""
        measured = measure(messages)
        self.prepare(log, len(messages))
        with self._wal.lock:
            return self._append(log, messages, measured, now_us=self._clock())

    def transaction(self, *, undoing: bool = False) -> Transaction:
        """Return a transaction: several changes in one round. `undoing` allows it while writing fails."""
        return Transaction(self, undoing=undoing)

    @property
    def ticket(self) -> int:
        """Ticket of the last change: all changes so far are durable when `safe_ticket` has reached it."""
        return self._wal.ticket_so_far

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Lock held during a change, and while a checkpoint freezes the state."""
        return self._wal.lock

    @property
    def safe_ticket(self) -> int:
        """Ticket up to which all changes are durable."""
        return self._wal.synced

    def now_us(self) -> int:
        return self._clock()

    # durability

    def sync(self) -> int:
        """Make all changes so far durable; return the ticket up to which they are. Any thread may call."""
        self._finish_opening()
        return self._wal.sync()

    def checkpoint(self) -> None:
        """Write a checkpoint and free the WAL. Any thread may call; only one checkpoint runs at a time."""
        self._finish_opening()
        self._checkpoint()

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of messages that the next sync writes."""
        return self._wal.collected_bytes

    @property
    def records_read(self) -> int:
        """Number of records that were read from disk since the store was opened."""
        return self._cache.records_read

    @property
    def written(self) -> Written:
        """What was written to the WAL and synced since the store was opened."""
        return self._wal.written

    @property
    def memory_bytes(self) -> int:
        """Bytes of messages and entries that the next checkpoint writes."""
        return self._pending_bytes

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint should run, because of memory, the WAL or retention."""
        return (
            self._retention_due
            or self._pending_bytes >= self._options.memory_bytes
            or self._wal.written_bytes >= self._options.wal_bytes
        )

    def retire(self, log: Log) -> None:
        """Settle messages over the log's limits of age and bytes; the next checkpoint deletes them.

        A message that a cursor has leased stays for all cursors: it may not be visible to them yet.
        """
        self._check_alive(log)
        with self._wal.lock:
            cursors = self._cursors[log.id].values()
            plan = plan_messages(log, [cursor.progress for cursor in cursors], self._clock())
            for info in plan.expire:
                first, stop = info.first, info.last + 1
                leased = [r for cursor in cursors for r in cursor.progress.leased.ranges(first, stop)]
                for cursor in cursors:
                    waiting = OffsetSet(cursor.progress.never_taken(first, stop))
                    waiting.remove_many(leased)
                    if waiting:
                        cursor.drop(list(waiting.ranges()), Outcome.RETENTION)
                        self._retention_due = True
            self._retention_due |= bool(plan.delete)

    def hurry(self) -> None:
        """Make a checkpoint due, even if there is little to write."""
        self._retention_due = True

    def flush(self, log: Log) -> None:
        """Write a log's messages in memory to segments, for other processes. Any thread may call."""
        self._check_alive(log)
        self._finish_opening()
        self._checkpointer.flush(log, self.cursors(log.id))
        self._recount()

    def close(self) -> None:
        """Write a checkpoint and release the directory. After a failed sync, only release it."""
        try:
            if not self._wal.stopped:
                self._finish_opening()
                self._checkpoint(clean=True)
        finally:
            self._wal.close()
            self._lock.release()

    # for cursors and transactions

    def record(self, cursor: Cursor, entry: Entry) -> int:
        """Append an entry to a cursor's journal and return its ticket."""
        message = entry.message()
        size = len(message.body) + len(message.routing_key) + len(message.header)
        journal = cursor.journal
        with self._wal.lock:
            batch = Batch(journal.next, self._clock(), (message,), size)
            ticket = self._wal.collect(journal.id, batch)
            journal.add(batch)
            cursor.log.touched = True
            cursor.unsnapped_bytes += size + ENTRY_BYTES
            self._pending_bytes += size
        return ticket

    def prepare(self, log: Log, count: int, *, undoing: bool = False) -> None:
        """Reserve `count` offsets of a log; raise if nothing can be appended.

        Nobody waits for a reservation. It is written in the round that needs it or an earlier one, so a crash
        leaves no message above the reservation. Messages that may have been delivered are below a mark.
        """
        self._check_alive(log)
        if not undoing:
            if self._wal.failed:
                # Without a reset, the traceback would grow with every raise.
                raise self._wal.failed.with_traceback(None)
            if self._wal.round_bytes > ROUND_BYTES_MAX:
                self._wal.begin_round()
        if log.next + count > log.reserved - self._options.reserve_ahead // 2:
            with self._wal.lock:
                log.reserved = log.next + count + self._options.reserve_ahead
                log.touched = True
                self._change(reserve=[log.id, log.reserved])

    def apply(self, transaction: Transaction) -> int:
        """Apply a checked transaction in one round and return its ticket."""
        with self._wal.lock:
            now_us = self._clock()
            for (log, messages), each in zip(transaction.appends, transaction.measured, strict=True):
                transaction.offsets.append(self._append(log, messages, each, now_us=now_us))
            for position, (cursor, who) in transaction.held.items():
                cursor.hold([transaction.offsets[position]], who=who)
            for cursor, entry in transaction.entries:
                if entry.kind is Kind.SETTLED:
                    cursor.progress.settle(entry.ranges)
                elif entry.kind is Kind.RELEASED:
                    cursor.progress.release(entry.ranges)
                else:
                    cursor.progress.give_back(
                        entry.ranges,
                        not_before_us=entry.not_before_us,
                        counted=bool(entry.outcome),
                        why=entry.why,
                    )
                self.record(cursor, entry)
            for cursor, entry in transaction.drops:
                cursor.progress.drop(entry.ranges)
                if entry.outcome == Outcome.RETENTION:
                    cursor.progress.retire(entry.ranges)
                self.record(cursor, entry)
            for cursor, entry in transaction.holds:
                cursor.progress.hold(entry.ranges)
                self.record(cursor, entry)
            return self._wal.ticket_so_far

    # inside

    def _append(
        self, log: Log, messages: Sequence[Message], measured: tuple[int, bool], *, now_us: int
    ) -> Range:
        size, persistent = measured
        start, stop = log.next, log.next + len(messages)
        batch = Batch(start, now_us, messages, size)
        if persistent:
            self._wal.collect(log.id, batch)
        else:
            for part in batch.persistent_parts():
                self._wal.collect(log.id, part)
        log.add(batch)
        log.appended_bytes += size
        self._pending_bytes += size
        for cursor in self._cursors[log.id].values():
            cursor.progress.extend(start, stop, messages)
        return start, stop

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _create(self, spec: LogSpec) -> Log:
        with self._wal.lock:
            self._change(create=spec)
            return self._open_log(LogImage(spec, 0, 0))

    def _delete(self, log: Log) -> int:
        del self._logs[log.id]
        self._deleted.append(log.spec.directory + "/")
        return self._change(delete=log.id)

    def _change(self, **what: Any) -> int:
        message = change(**what)
        twice = (message, message)
        return self._wal.collect(CATALOG_LOG, Batch(0, self._clock(), twice, 2 * len(message.body)))

    def _note(self, damage: Damage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)

    def _open_log(self, image: LogImage) -> Log:
        log = self._logs[image.spec.id] = Log(
            self._files,
            image,
            report=self._note,
            cache=self._cache,
            segment_bytes=self._options.segment_bytes,
        )
        if not image.spec.parent:
            self._cursors[log.id] = {}
        return log

    def _check_alive(self, log: Log) -> None:
        if self._logs.get(log.id) is not log:
            raise UnknownLog(f"log {log.id} has been deleted")

    def _checkpoint(self, *, clean: bool = False, opening: bool = False) -> None:
        """Write one checkpoint. If the WAL has no space for the round, the checkpoint replaces it.

        After messages are settled or deleted, a checkpoint needs little space, which the reserve has.
        """
        self._retention_due = False
        superseding = opening or self._wal.failed is not None
        while True:
            try:
                self._checkpointer.run(
                    self._logs,
                    self._cursors,
                    next_id=lambda: self._next_id,
                    deleted=self._deleted,
                    clean=clean,
                    superseding=superseding,
                )
            except StorageFull:
                # The files that the checkpoint wrote are removed again.
                if self._spare.give_way():
                    continue
                self._spare.hold()
                raise
            finally:
                self._recount()
            self._spare.hold()
            return

    def _recount(self) -> None:
        with self._wal.lock:
            self._pending_bytes = sum(log.pending_bytes for log in self._logs.values())

    # opening

    def _begin_wal(self, recovered: Recovered) -> bool:
        """Begin to collect; return whether rounds may follow those of another process.

        They may after a clean stop: then there are none. What a killed process left may never become durable:
        after a failed sync the kernel takes for clean what is not on the disk. After damage tickets go on
        above all under which a round may have been tried and given up.
        """
        if recovered.damaged:
            self._wal.begin(recovered.ticket + LOST_AHEAD)
            return False
        few = self._wal.begin(recovered.ticket, covered=recovered.covered)
        return few and recovered.clean and recovered.checkpoint.number > 0 and not self.damage

    def _load(self, recovered: Recovered) -> None:
        """Logs and cursors as they were at the last durable ticket."""
        self._deleted += [LogSpec(id_).directory + "/" for id_ in recovered.checkpoint.deleted]
        images = recovered.checkpoint.logs
        for id_, image in images.items():
            log = self._open_log(image)
            log.touched = False
            for batch in recovered.pending.get(id_, ()):
                log.add(batch)
        for id_, image in images.items():
            if image.spec.parent:
                journal, parent = self._logs[id_], self._logs[image.spec.parent]
                parent.touched |= journal.touched
                progress, snapshot, size = load_progress(self._files, journal, image, report=self._note)
                cursor = self._cursors[parent.id][image.spec.name] = Cursor(
                    self, parent, journal, progress, snapshots=(snapshot, image.snapshot_before)
                )
                cursor.unsnapped_bytes = size
                if self._options.state_bytes and not image.state and progress.is_brief:
                    journal.touched = True  # an older version wrote the checkpoint: the next one has a state

    def _begin(self, recovered: Recovered) -> None:
        """Set the next offsets and ids, and return messages in flight.

        After an unclean stop, offsets continue above all reservations and all marks of cursors. A message
        that was neither synced nor delivered was seen by nobody, so another message may get its offset.
        """
        skipped = LOST_AHEAD if recovered.damaged else 0
        self._next_id = recovered.checkpoint.next_id + skipped
        for log in self.logs.values():
            if not recovered.clean:
                marks = [cursor.progress.mark for cursor in self._cursors[log.id].values()]
                log.next = max(log.next, log.reserved, *marks)
                log.touched = True
            log.opened_at = log.next = log.next + skipped
            transient = log.transient_ranges()
            for cursor in self._cursors[log.id].values():
                intact = bool(recovered.checkpoint.logs[cursor.journal.id].state) and not self.damage
                cursor.reopen(clean=recovered.clean, intact=intact, transient=transient)

    def _finish_opening(self) -> None:
        """Write a round, so that the next start knows that this process was there.

        After a kill, after damage, or where the WAL is long, two checkpoints replace what another process
        left. On a full disk that may have to wait until what is in memory has become less.
        """
        if not self.is_opening:
            return
        with self._opening:
            if not self.is_opening:
                return
            if self._goes_on:
                self._goes_on = False  # where the round can't be written, checkpoints may need less space
                self._wal.sync_with(lambda: None, lambda: None)
            else:
                self._checkpoint(opening=True)
                first = self._checkpointer.last
                # The last two must not reach back into what another process left.
                self._checkpoint(opening=True)
                last = self._checkpointer.last
                remove_strays(self._files, first.files().keys() | last.files().keys(), last.logs.values())
            self.is_opening = False


def _lock(files: Files) -> Lock:
    try:
        files.make_directory("")
        return files.lock("lock")
    except OSError as error:
        raise write_failed(error, "lock") from error
