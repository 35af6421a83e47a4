"""Staged batches: rows that nobody can read until their batch is committed, exactly once.

The tasks of a batch write *stages*. Their rows are routed like publishes and appended to their queues, leased
at once: they are in the log, but no consumer gets them. The commit of a batch names the stages that count.
One transaction removes their notes, drops all other stages of the batch, and notes the batch, so that a
repeated batch is dropped. When this is durable, the rows become ready. Stages that are never committed
expire. Rows in a stream are hidden in the stream's own cursor: groups read only up to the first of them
(`Stream.readable`), and dropped rows are dropped for the groups too.

The rule: a row is hidden and noted in the round in which it is appended. So after any crash it is hidden, or
visible because its batch was committed, or was never stored. A leased row without a note becomes ready at the
next start (`lease_repair.show_strays`): it belongs to a batch whose commit was durable before a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from leveret.broker import auxiliary_logs
from leveret.broker.access import ownership
from leveret.broker.access.accounts import User
from leveret.broker.errors import AccessRefused, QueryRefused
from leveret.broker.note_log import Change, Notes
from leveret.broker.queries.lease_repair import hold_again
from leveret.broker.queries.row_routing import Row, RowOptions, route_rows
from leveret.broker.queries.staged_batch_notes import CommitNote, StageName, StageNote
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.topology import Topology
from leveret.storage import well_known_names
from leveret.storage.errors import StorageError
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import joined, total
from leveret.storage.offset_set import OffsetSet, Range
from leveret.storage.transaction import Transaction

QUERIES_MAX: Final = 10_000
"""Queries whose last committed batch is remembered."""
_RETRY_US: Final = 1_000_000


class Stages:
    """All batches of one virtual host that are under way, and the last commits of its queries."""

    def __init__(self, vhost: Topology, log: Log | None = None) -> None:
        """Read the notes of an earlier run from `log`; the queues must exist."""
        self._vhost = vhost
        self._store = vhost.broker.store
        label = auxiliary_logs.label(auxiliary_logs.STAGES, vhost.name)
        self._notes: Notes[StageNote | CommitNote] = Notes(
            self._store,
            StageNote | CommitNote,  # type: ignore[arg-type]
            label=label,
            log=log,
        )
        self._queues: dict[int, Destination] = {queue.log.id: queue for queue in vhost.queues.values()}
        """Queues that have rows of stages, by the ids of their logs."""
        self._stages: dict[StageName, list[StageNote]] = {}
        self._hidden: dict[int, OffsetSet] = {}
        """Offsets of the stages' rows, by the ids of logs."""
        self._committed: dict[str, CommitNote] = {}
        self._showing: dict[int, list[StageNote]] = {}
        """Committed parts whose rows become ready when the commit is durable, by the number of the commit."""
        for note in self._notes:
            if isinstance(note, CommitNote):
                self._committed[note.query] = note
            else:
                self._add(note)
                for log_id, start, stop in note.places:
                    if log_id in self._queues:
                        hold_again(self._queues[log_id], [(start, stop)], who=_label(note.name))
        self._commits = max((note.number for note in self._committed.values()), default=0)

    @property
    def log(self) -> Log:
        return self._notes.log

    def notes(self) -> list[StageNote | CommitNote]:
        """Return the notes of all parts and of each query's last commit."""
        return list(self._notes)

    def hidden(self, queue: Destination) -> OffsetSet:
        """Return the offsets of a queue that are hidden until a commit."""
        hidden = self._hidden.get(queue.log.id, OffsetSet())
        return OffsetSet(queue.cursor.in_flight.leased_within(list(hidden.ranges())))

    # writing

    def write(self, name: StageName, rows: Sequence[Row], options: RowOptions, *, before: int = 0) -> None:
        """Append rows to a stage that has `before` rows already; all of them, or raise an error.

        The rows are durable when the store's present ticket is. Without rows, only `before` is checked.
        """
        owner = self._check_owner(name.query, options.user)
        # A batch that was committed before needs no rows.
        if name.batch <= self._last(name.query):
            return
        if sum(part.rows for part in self._stages.get(name, ())) != before:
            raise self._incomplete(name)
        if not rows:
            return
        routed = route_rows(self._vhost, rows, options)
        refusing = [queue for queue in routed if queue.settings.refuses_publishes]
        written = self._places(self._stages.get(name, ())) if refusing else {}
        for queue in refusing:
            count = len(routed[queue]) + total(written.get(queue, ()))
            _check_room(queue, count, sum(len(message.body) for message in routed[queue]))
        transaction = self._store.transaction()
        places = []
        routed = {queue: list(queue.as_kept(messages)) for queue, messages in routed.items()}
        for queue, kept in routed.items():
            places.append((queue.log.id, queue.log.next, queue.log.next + len(kept)))
            transaction.append_held(queue.cursor, kept, who=_label(name))
        part = len(self._stages.get(name, ()))
        due_us = self._vhost.broker.now_us() + options.timeout_us
        note = StageNote(*name, part, len(rows), places, due_us, owner)
        change = self._notes.change(transaction)
        change.put(note)
        transaction.commit()
        change.done()
        if any(queue.log.id not in self._queues for queue in routed):
            self._queues = {id_: queue for id_, queue in self._queues.items() if not queue.deleted}
            self._hidden = {id_: rows for id_, rows in self._hidden.items() if id_ in self._queues}
            self._queues.update((queue.log.id, queue) for queue in routed)
        self._add(note)
        for queue, messages in routed.items():
            queue.hidden_appended(messages)

    # commits, aborts and expiry

    def commit(self, query: str, batch: int, stages: Iterable[str], *, user: User) -> int | None:
        """Commit these stages and return their number of rows; None if the batch was committed before.

        Rows become ready after the commit is durable, so that a crash can't undo rows that were read.
        """
        owner = self._check_owner(query, user)
        self._check_may_create(query, user)
        if batch <= self._last(query):
            self._check_batch_taken(query, batch, user)
            self._drop([name for name in self._stages if name.query == query and name.batch <= batch])
            return None
        chosen = [StageName(query, batch, stage) for stage in dict.fromkeys(stages)]
        for name in chosen:
            if name not in self._stages:
                raise self._incomplete(name)
        shown = [part for name in chosen for part in self._stages[name]]
        self._check_rooms(shown)
        chosen_names = set(chosen)
        others = [
            name
            for name in self._stages
            if name.query == query and name.batch <= batch and name not in chosen_names
        ]
        transaction = self._store.transaction()
        change = self._notes.change(transaction)
        change.remove(part.key for part in shown)
        dropped = self._write_drop(transaction, change, others)
        note = CommitNote(query, batch, self._commits + 1, owner)
        change.put(note)
        forgotten = self._forgotten(note)
        change.remove(self._committed[query_name].key for query_name in forgotten)
        transaction.commit()
        change.done()
        self._commits += 1
        self._committed[query] = note
        for query_name in forgotten:
            del self._committed[query_name]
        self._showing[note.number] = shown
        self._vhost.broker.ledger.when_durable(lambda: self._show(note.number))
        for name in others:
            self._uncover(self._stages[name])
        self._forget([*chosen, *others])
        for queue in dropped:
            queue.wake()
        rows = sum(part.rows for part in shown)
        for counters in (self._vhost.counters, self._vhost.broker.counters):
            counters.published += rows
        return rows

    def _check_rooms(self, shown: Sequence[StageNote]) -> None:
        """Raise `QueryRefused` if a queue has no room for these rows and those committed but not ready."""
        refusing = [queue for queue in self._places(shown) if queue.settings.refuses_publishes]
        awaited = self._places([*chain.from_iterable(self._showing.values()), *shown]) if refusing else {}
        for queue in refusing:
            _check_room(queue, total(awaited[queue]), queue.account.bytes_of(awaited[queue]))

    def _show(self, number: int) -> None:
        """Make the rows of a durable commit ready, in all queues at once."""
        shown = self._showing.pop(number)
        places = self._places(shown)
        transaction = self._store.transaction()
        for queue, ranges in places.items():
            transaction.release(queue.cursor, ranges)
        transaction.commit()
        self._uncover(shown)
        for queue, ranges in places.items():
            queue.shown(ranges)

    def abort(self, query: str, batch: int, stages: Iterable[str], *, user: User) -> None:
        """Drop these stages of a batch, or all its stages if none is named."""
        self._check_owner(query, user)
        named = {StageName(query, batch, stage) for stage in stages}
        of_batch = [name for name in self._stages if name[:2] == (query, batch)]
        self._drop([name for name in of_batch if not named or name in named])

    def _drop(self, names: Sequence[StageName]) -> None:
        if not names:
            return
        transaction = self._store.transaction()
        change = self._notes.change(transaction)
        dropped = self._write_drop(transaction, change, names)
        transaction.commit()
        change.done()
        for name in names:
            self._uncover(self._stages[name])
        self._forget(names)
        for queue in dropped:
            queue.wake()

    def _write_drop(
        self, transaction: Transaction, change: Change[StageNote | CommitNote], names: Sequence[StageName]
    ) -> Iterable[Destination]:
        """Write the removal of stages; return the queues to wake: readers of a stream waited at the rows."""
        parts = [part for name in names for part in self._stages[name]]
        places = self._places(parts)
        for queue, ranges in places.items():
            transaction.settle(queue.cursor, ranges, Outcome.DROPPED, who=well_known_names.ABORTED.encode())
            for cursor, untaken in queue.untaken(ranges):
                transaction.drop(cursor, untaken, Outcome.DROPPED)
        change.remove(part.key for part in parts)
        return places

    def close(self) -> None:
        """Cancel the timeouts of all stages, because the virtual host was deleted."""
        for name in self._stages:
            self._vhost.broker.timers.cancel((self, name))

    # inside

    def _check_owner(self, query: str, user: User) -> str:
        """Return the owner of the sink, or the user for a new one; raise if the user may not operate it."""
        owner = self._owner(query) or ownership.NOBODY
        ownership.check_operate(user, self._vhost.name, ownership.SINK, query, owner=owner)
        return owner or ownership.owner_name(user)

    def _check_may_create(self, query: str, user: User) -> None:
        """Raise `AccessRefused` if this commit would make a sink for a user who can't write any row."""
        vhost = self._vhost.name
        if self._owner(query) is None and user.may_nothing("write", vhost):
            raise AccessRefused(
                f"access to {ownership.SINK} '{query}' in vhost '{vhost}' refused for user '{user.name}'"
            )

    def _owner(self, query: str) -> str | None:
        """Return the owner of a sink, or None if no sink has this name."""
        if (note := self._committed.get(query)) is not None:
            return note.owner
        return next((parts[0].owner for name, parts in self._stages.items() if name.query == query), None)

    def _check_batch_taken(self, query: str, batch: int, user: User) -> None:
        """Raise `QueryRefused` for an old batch of a query whose last commit is another user's.

        The last batch may be repeated, after a crash. But a new user of the name, whose first batches count
        as committed before, would lose their rows.
        """
        note = self._committed[query]
        if batch < note.batch and note.owner not in (ownership.NOBODY, ownership.owner_name(user)):
            raise QueryRefused(
                "taken",
                f"another user has committed batch {note.batch} of query '{query}' in vhost "
                f"'{self._vhost.name}', and batch {batch} comes before it",
                hint="Write with another queryName.",
            )

    def _incomplete(self, name: StageName) -> QueryRefused:
        return QueryRefused(
            "expired",
            f"stage '{name.stage}' of batch {name.batch} of query '{name.query}' is missing or incomplete",
            hint="The stage has expired, or was aborted. Run the batch again, with a longer stageTimeout.",
        )

    def _last(self, query: str) -> int:
        note = self._committed.get(query)
        return -1 if note is None else note.batch

    def _places(self, parts: Iterable[StageNote]) -> dict[Destination, list[Range]]:
        """Return the ranges of rows that parts hold, by queue, for queues that still exist."""
        places: dict[Destination, list[Range]] = {}
        for part in parts:
            for log, start, stop in part.places:
                queue = self._queues.get(log)
                if queue is not None and not queue.deleted:
                    held = queue.cursor.in_flight.leased_within([(start, stop)])
                    # Transient rows do not survive a restart.
                    if held:
                        places.setdefault(queue, []).extend(held)
        return {queue: joined(ranges) for queue, ranges in places.items()}

    def _add(self, note: StageNote) -> None:
        self._stages.setdefault(note.name, []).append(note)
        for log, start, stop in note.places:
            self._hidden.setdefault(log, OffsetSet()).add(start, stop)
        timers = self._vhost.broker.timers
        timers.set((self, note.name), note.due_us, lambda: self._expire(note.name))

    def _uncover(self, parts: Iterable[StageNote]) -> None:
        """Mark the rows of parts as no longer hidden."""
        for part in parts:
            for log, start, stop in part.places:
                if log in self._hidden:
                    self._hidden[log].remove(start, stop)

    def _expire(self, name: StageName) -> None:
        if name not in self._stages:
            return
        try:
            self._drop([name])
        except StorageError:
            # The disk is full: try again later.
            broker = self._vhost.broker
            broker.timers.set((self, name), broker.now_us() + _RETRY_US, lambda: self._expire(name))

    def _forget(self, names: Iterable[StageName]) -> None:
        for name in names:
            del self._stages[name]
            self._vhost.broker.timers.cancel((self, name))

    def _forgotten(self, note: CommitNote) -> list[str]:
        """Return the query to forget, in a list, if too many queries are remembered.

        It is the one without a commit for longest among the queries of the user who has most. Queries with a
        single batch go first, because they do not run again.
        """
        if note.query in self._committed or len(self._committed) < QUERIES_MAX:
            return []
        counts = Counter(note.owner for note in self._committed.values())
        owner_with_most = max(counts, key=lambda owner: (counts[owner], owner == note.owner))
        notes = (committed for committed in self._committed.values() if committed.owner == owner_with_most)
        return [min(notes, key=lambda committed: (committed.batch > 0, committed.number)).query]


def _check_room(queue: Destination, count: int, size_bytes: int) -> None:
    """Raise `QueryRefused` if a queue has no room, after waiting consumers had the chance to make some."""
    if queue.has_room(count, size_bytes):
        return
    queue.runs.run()
    if not queue.has_room(count, size_bytes):
        raise QueryRefused(
            "full",
            f"{queue} is full and refuses new messages",
            hint="Let its consumers catch up, or raise its limit.",
        )


def _label(name: StageName) -> bytes:
    return f"{well_known_names.STAGE}{name.query} {name.batch}".encode()[:255]
