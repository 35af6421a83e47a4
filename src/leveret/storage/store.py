"""The store: logs and cursors over one data directory, one write-ahead log, and checkpoints.

Everything that changes is collected into the current WAL round and applied in memory; `sync()` makes it
durable and says up to which ticket. `checkpoint()` writes what is in memory to segments and journals, syncs
them, deletes what retention lets go, and frees the WAL behind it. Both may run on other threads than the one
that changes things, which must be one thread. The parts have their own files; this one puts them in order.

The rule: nothing in a file counts unless a checkpoint names it, and a checkpoint names only what is synced
and covered by a durable round. That is all of recovery: the last checkpoint, and the rounds after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import groupby
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
from leveret.storage.records import PERSISTENT, Batch, Message
from leveret.storage.recovery import Recovered, load_progress, recover, remove_drafts, remove_strays
from leveret.storage.retention import Retention
from leveret.storage.space_reserve import Reserve
from leveret.storage.transaction import Transaction
from leveret.storage.wal import Wal

RESERVE_AHEAD = 1 << 20
ROUND_BYTES_MAX = 1 << 30
"""Nothing more is appended to a round that has grown larger than this: a frame has its limits."""
PRIORITIES_MAX = 255
RESERVE = "reserve"
"""The file that keeps space free for a checkpoint on a full disk."""
LOST_AHEAD = 1 << 24
"""Offsets and ids that are skipped when rounds may be lost: more than those of a WAL file can have used."""


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes. The defaults suit a broker; tests use small ones."""

    wal_bytes: int = 64 << 20
    """Of one WAL file."""
    segment_bytes: int = 64 << 20
    memory_bytes: int = 64 << 20
    """Messages kept in memory before `checkpoint_due` says that they should be written."""
    snapshot_bytes: int = 1 << 20
    """Journal entries after which a cursor is written down whole."""
    state_bytes: int = 2048
    """A cursor whose progress takes no more is part of each checkpoint: its journal need not be read."""
    reserve_ahead: int = RESERVE_AHEAD
    reserve_bytes: int = 1 << 20
    """Of the disk, for a checkpoint that makes room when there is no space left; 0 for none."""


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
        """Opens the directory, recovers what is in it, and has it to itself until `close`.

        `clock` gives microseconds, `entropy` random 64-bit numbers; ids of logs begin with `first_id` where
        the directory is empty.
        """
        self._files = files
        self._clock = clock
        self._options = options
        self._cache = BlockCache()
        self._logs: dict[int, Log] = {}
        self._cursors: dict[int, dict[str, Cursor]] = {}
        """By the ids of their logs, then by name."""
        self._deleted: list[str] = []
        self._pending_bytes = 0
        self._retention_due = False
        self.damage: list[Damage] = []
        """What was found damaged since the store was opened."""
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
        """The logs of messages, by id."""
        return {id_: log for id_, log in self._logs.items() if not log.spec.parent}

    def log(self, id_: int) -> Log:
        found = self._logs.get(id_)
        if found is None or found.spec.parent:
            raise UnknownLog(f"there is no log {id_}")
        return found

    def cursors(self, log_id: int) -> Mapping[str, Cursor]:
        """The cursors of a log, by name."""
        return self._cursors.get(log_id, {})

    def create_log(self, *, label: str = "", retention: Retention = Retention()) -> Log:  # noqa: B008
        """A new, empty log under an id that was never used. Durable when the current ticket is.

        Its first offsets are reserved in the same round: if that is lost, so is the log, and they with it.
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
        """A cursor that begins at `start`: the first message of the log unless said otherwise.

        What all other cursors have settled may be gone at any moment, so it does not see that, nor what
        `visible_to` has settled. What its journal says is kept for `audit_us` after nothing needs it any
        more.
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
        """Changes how long a log keeps messages, from the next checkpoint on."""
        self._check_alive(log)
        with self._wal.lock:
            log.spec = log.spec._replace(retention=retention)
            log.touched = True
            return self._change(alter=log.spec)

    def delete_log(self, log: Log) -> int:
        """Deletes a log with its cursors and all that is in them."""
        self._check_alive(log)
        with self._wal.lock:
            for cursor in list(self._cursors[log.id].values()):
                self.delete_cursor(cursor)
            del self._cursors[log.id]
            return self._delete(log)

    def delete_cursor(self, cursor: Cursor) -> int:
        """Deletes a cursor: what only it had not settled is free to go."""
        if self.cursors(cursor.log.id).get(cursor.name) is not cursor:
            raise UnknownCursor(f"log {cursor.log.id} has no cursor {cursor.name!r} like this one")
        with self._wal.lock:
            cursor.deleted = True
            del self._cursors[cursor.log.id][cursor.name]
            return self._delete(cursor.journal)

    # changes

    def append(self, log: Log, messages: Sequence[Message]) -> Range:
        """Appends a batch; returns the offsets [start, stop) it got. Durable when `ticket` is safe."""
        measured = measure(messages)
        self.prepare(log, len(messages))
        with self._wal.lock:
            return self._append(log, messages, measured, now_us=self._clock())

    def transaction(self, *, undoing: bool = False) -> Transaction:
        """Several changes in one round; `undoing` a part of one that could not be written."""
        return Transaction(self, undoing=undoing)

    @property
    def ticket(self) -> int:
        """What has been changed so far is durable when `safe_ticket` has reached this."""
        return self._wal.ticket_so_far

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Held while something changes, and while a checkpoint looks at what there is."""
        return self._wal.lock

    @property
    def safe_ticket(self) -> int:
        """Everything changed under this ticket or a lower one is durable."""
        return self._wal.synced

    def now_us(self) -> int:
        return self._clock()

    # durability

    def sync(self) -> int:
        """Makes everything changed so far durable; returns the ticket up to which it is. Any thread."""
        self._finish_opening()
        return self._wal.sync()

    def checkpoint(self) -> None:
        """Writes what is in memory to the files and frees the WAL. Any thread; one at a time."""
        self._finish_opening()
        self._checkpoint()

    @property
    def unsynced_bytes(self) -> int:
        """What the next sync has to write."""
        return self._wal.collected_bytes

    @property
    def memory_bytes(self) -> int:
        """What the next checkpoint has to write."""
        return self._pending_bytes

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough is in memory, in the WAL, or to be deleted, that a checkpoint should run."""
        return (
            self._retention_due
            or self._pending_bytes >= self._options.memory_bytes
            or self._wal.written_bytes >= self._options.wal_bytes
        )

    def retire(self, log: Log) -> None:
        """Settles what is older, or more, than the log is to keep; what can go then goes soon.

        What a cursor has leased stays for all of them: it may not be theirs yet.
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
        """A checkpoint should come soon, though there is little to write."""
        self._retention_due = True

    def flush(self, log: Log) -> None:
        """Writes what one log has in memory, for readers in other processes. Any thread."""
        self._check_alive(log)
        self._finish_opening()
        self._checkpointer.flush(log, self.cursors(log.id))
        self._recount()

    def close(self) -> None:
        """Checkpoints, and lets go of the directory. A store that can't write any more is let go as it is."""
        try:
            if not self._wal.stopped:
                self._finish_opening()
                self._checkpoint(clean=True)
        finally:
            self._wal.close()
            self._lock.release()

    # for cursors and transactions

    def record(self, cursor: Cursor, entry: Entry) -> int:
        """Appends an entry to a cursor's journal."""
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
        """Makes sure that so many offsets can be issued; raises when nothing can be appended.

        Nobody waits for a reservation. It is in the round of what it is for, or in an earlier one, so that a
        crash leaves nothing of a log above its reservation. What may have been delivered is below a mark.
        """
        self._check_alive(log)
        if not undoing:
            if self._wal.failed:
                raise self._wal.failed.with_traceback(None)  # or it would grow with every raise
            if self._wal.round_bytes > ROUND_BYTES_MAX:
                self._wal.begin_round()
        if log.next + count > log.reserved - self._options.reserve_ahead // 2:
            with self._wal.lock:
                log.reserved = log.next + count + self._options.reserve_ahead
                log.touched = True
                self._change(reserve=[log.id, log.reserved])

    def apply(self, transaction: Transaction) -> int:
        """Applies a checked transaction in one round."""
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
        start = log.next
        stop = start + len(messages)
        batch = Batch(start, now_us, messages, size)
        if persistent:
            self._wal.collect(log.id, batch)
        else:
            for part in _persistent_parts(batch):
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
        """One checkpoint; it takes the place of the round where the WAL has no space for that.

        Once messages have been settled or deleted it needs little space: the reserve is for that.
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
            except StorageFull:  # what it had written is removed again
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
                journal = self._logs[id_]
                parent = self._logs[image.spec.parent]
                parent.touched |= journal.touched
                progress, snapshot, size = load_progress(self._files, journal, image, report=self._note)
                cursor = self._cursors[parent.id][image.spec.name] = Cursor(
                    self, parent, journal, progress, snapshots=(snapshot, image.snapshot_before)
                )
                cursor.unsnapped_bytes = size
                if self._options.state_bytes and not image.state and progress.is_brief:
                    journal.touched = True  # an older version wrote the checkpoint: the next one has a state

    def _begin(self, recovered: Recovered) -> None:
        """Numbering goes on, what was in flight comes back, and checkpoints say so.

        It goes on above all that was reserved, and above all that may have been delivered: a message that was
        neither synced nor delivered has been seen by nobody, so another one may have its offset.
        """
        skipped = LOST_AHEAD if recovered.damaged else 0
        self._next_id = recovered.checkpoint.next_id + skipped
        for log in self.logs.values():
            if not recovered.clean:
                marks = [cursor.progress.mark for cursor in self._cursors[log.id].values()]
                log.next = max(log.next, log.reserved, *marks)
                log.touched = True
            log.next += skipped
            log.opened_at = log.next
            transient = log.transient_ranges()
            for cursor in self._cursors[log.id].values():
                state = recovered.checkpoint.logs[cursor.journal.id].state
                intact = bool(state) and not self.damage
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


def _persistent_parts(batch: Batch) -> Iterator[Batch]:
    """The parts of a batch that go to the WAL, where not all of it does."""
    offset = batch.first
    for persistent, group in groupby(message.flags & PERSISTENT for message in batch.messages):
        count = len(list(group))
        if persistent:
            yield batch.slice(offset, offset + count)
        offset += count
