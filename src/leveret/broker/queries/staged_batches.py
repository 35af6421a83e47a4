"""Batches that are written as a whole: rows that nobody sees until their batch is committed, once.

The tasks of a batch write *stages*. Their rows are routed like any publish and appended to the queues they
reach, leased at once: in the log, in no consumer's sight. The commit of a batch names the stages that count;
in one transaction their notes go, all others of the batch are dropped, and the batch is noted, so that the
same batch written again is dropped and never doubled. When that is on the disk, the rows become ready. Stages
that nobody commits expire. Of a stream rows are hidden in its own cursor: groups read no further than the
first of them (`Stream.readable`), and those that are dropped are dropped for the groups too.

The rule: a row is hidden in the same round in which it is appended, and noted there; so after any crash it
is hidden, or visible because its batch was committed, or was never there. What is leased and in no note
becomes ready at the next start (`lease_repair.show_strays`): a crash behind the commit shows its rows, too.
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
from leveret.broker.queries.row_routing import Row, Terms, route_rows
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
"""Of so many queries the last committed batch is remembered."""
_AGAIN_US: Final = 1_000_000


class Stages:
    """All batches of one virtual host that are under way."""

    def __init__(self, vhost: Topology, log: Log | None = None) -> None:
        """With what a log from before says of them; the queues must be there."""
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
        """Those that stages have rows of, by the ids of their logs."""
        self._stages: dict[StageName, list[StageNote]] = {}
        self._hidden: dict[int, OffsetSet] = {}
        """What their parts hold, by the ids of logs."""
        self._committed: dict[str, CommitNote] = {}
        self._showing: dict[int, list[StageNote]] = {}
        """What was committed, by the number of the commit, and is ready when that is on the disk."""
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
        """Return what is staged, part by part, and the last commit of each query."""
        return list(self._notes)

    def hidden(self, queue: Destination) -> OffsetSet:
        """What of a queue nobody may see yet."""
        hidden = self._hidden.get(queue.log.id, OffsetSet())
        return OffsetSet(queue.cursor.in_flight.leased_within(list(hidden.ranges())))

    # writing

    def write(self, name: StageName, rows: Sequence[Row], terms: Terms, *, before: int = 0) -> None:
        """Appends rows to a stage that has so many; all of them, or none and an error.

        Safe when the store's ticket is. Without rows it is only seen whether all those before are there.
        """
        owner = self._check_owner(name.query, terms.user)
        if name.batch <= self._last(name.query):
            return  # it was committed before: what is written again is not needed
        if sum(part.rows for part in self._stages.get(name, ())) != before:
            raise self._not_there(name)
        if not rows:
            return
        routed = route_rows(self._vhost, rows, terms)
        refusing = [queue for queue in routed if queue.settings.refuses_publishes]
        written = self._places(self._stages.get(name, ())) if refusing else {}
        for queue in refusing:
            many = len(routed[queue]) + total(written.get(queue, ()))
            _check_room(queue, many, sum(len(message.body) for message in routed[queue]))
        transaction = self._store.transaction()
        places = []
        routed = {queue: list(queue.as_kept(messages)) for queue, messages in routed.items()}
        for queue, kept in routed.items():
            places.append((queue.log.id, queue.log.next, queue.log.next + len(kept)))
            transaction.append_held(queue.cursor, kept, who=_label(name))
        part = len(self._stages.get(name, ()))
        due_us = self._vhost.broker.now_us() + terms.timeout_us
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

    # ending

    def commit(self, query: str, batch: int, stages: Iterable[str], *, user: User) -> int | None:
        """Shows what these stages hold; how many rows, or None if the batch was committed before.

        Nobody gets a row before the commit is durable: one that a crash undoes would be seen, and come again.
        """
        owner = self._check_owner(query, user)
        self._check_making(query, user)
        if batch <= self._last(query):
            self._check_committed(query, batch, user)
            self._drop([name for name in self._stages if name.query == query and name.batch <= batch])
            return None
        chosen = [StageName(query, batch, stage) for stage in dict.fromkeys(stages)]
        for name in chosen:
            if name not in self._stages:
                raise self._not_there(name)
        shown = [part for name in chosen for part in self._stages[name]]
        self._check_rooms(shown)
        known = set(chosen)
        others = [
            name for name in self._stages if name.query == query and name.batch <= batch and name not in known
        ]
        transaction = self._store.transaction()
        change = self._notes.change(transaction)
        change.remove(part.key for part in shown)
        dropped = self._write_drop(transaction, change, others)
        note = CommitNote(query, batch, self._commits + 1, owner)
        change.put(note)
        forgotten = self._forgotten(note)
        change.remove(self._committed[each].key for each in forgotten)
        transaction.commit()
        change.done()
        self._commits += 1
        self._committed[query] = note
        for each in forgotten:
            del self._committed[each]
        self._showing[note.number] = shown
        self._vhost.broker.ledger.when_durable(lambda: self._show(note.number))
        for name in others:
            self._uncover(self._stages[name])
        self._forget([*chosen, *others])
        for queue in dropped:
            queue.wake()
        rows = sum(part.rows for part in shown)
        self._vhost.broker.counters.published += rows
        return rows

    def _check_rooms(self, shown: Sequence[StageNote]) -> None:
        """Whether queues that refuse have room for these, and for what was committed and is not ready yet."""
        refusing = [queue for queue in self._places(shown) if queue.settings.refuses_publishes]
        soon = self._places([*chain.from_iterable(self._showing.values()), *shown]) if refusing else {}
        for queue in refusing:
            _check_room(queue, total(soon[queue]), queue.account.bytes_of(soon[queue]))

    def _show(self, number: int) -> None:
        """A commit is durable: its rows are ready, in all queues at once."""
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
        """Drops these stages of a batch, or all of them if none is named."""
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
        """The queues that have less to wait for afterwards: readers of a stream stood before those rows."""
        parts = [part for name in names for part in self._stages[name]]
        places = self._places(parts)
        for queue, ranges in places.items():
            transaction.settle(queue.cursor, ranges, Outcome.DROPPED, who=well_known_names.ABORTED.encode())
            for cursor, untaken in queue.untaken(ranges):
                transaction.drop(cursor, untaken, Outcome.DROPPED)
        change.remove(part.key for part in parts)
        return places

    # inside

    def _check_owner(self, query: str, user: User) -> str:
        """The owner of the sink, who came first with its name; raises where the user may not operate it."""
        owner = self._owner(query) or ownership.NOBODY
        ownership.check_operate(user, self._vhost.name, ownership.SINK, query, owner=owner)
        return owner or ownership.owner_name(user)

    def _check_making(self, query: str, user: User) -> None:
        """A commit without rows makes a sink too: not for a user who could never write a row."""
        vhost = self._vhost.name
        if self._owner(query) is None and user.may_nothing("write", vhost):
            raise AccessRefused(
                f"access to {ownership.SINK} '{query}' in vhost '{vhost}' refused for user '{user.name}'"
            )

    def _owner(self, query: str) -> str | None:
        """The owner of a sink; None if there is no sink of this name."""
        if (note := self._committed.get(query)) is not None:
            return note.owner
        return next((parts[0].owner for name, parts in self._stages.items() if name.query == query), None)

    def _check_committed(self, query: str, batch: int, user: User) -> None:
        """Whoever goes on with the query of another user is told of batches that it never heard of.

        The last one may come again, after a crash. A user who finds earlier ones committed would lose rows to
        a name that somebody else has used up.
        """
        note = self._committed[query]
        if batch < note.batch and note.owner not in (ownership.NOBODY, ownership.owner_name(user)):
            raise QueryRefused(
                "taken",
                f"another user has committed batch {note.batch} of query '{query}' in vhost "
                f"'{self._vhost.name}', and batch {batch} comes before it",
                hint="Write with another queryName.",
            )

    def _not_there(self, name: StageName) -> QueryRefused:
        return QueryRefused(
            "expired",
            f"stage '{name.stage}' of batch {name.batch} of query '{name.query}' is not there, or not whole",
            hint="It has expired, or was aborted. Run the batch again, with a longer stageTimeout.",
        )

    def _last(self, query: str) -> int:
        note = self._committed.get(query)
        return -1 if note is None else note.batch

    def _places(self, parts: Iterable[StageNote]) -> dict[Destination, list[Range]]:
        """What they hold of queues that are still there."""
        found: dict[Destination, list[Range]] = {}
        for part in parts:
            for log, start, stop in part.places:
                queue = self._queues.get(log)
                if queue is not None and not queue.deleted:
                    held = queue.cursor.in_flight.leased_within([(start, stop)])
                    if held:  # transient rows do not survive a restart
                        found.setdefault(queue, []).extend(held)
        return {queue: joined(ranges) for queue, ranges in found.items()}

    def _add(self, note: StageNote) -> None:
        self._stages.setdefault(note.name, []).append(note)
        for log, start, stop in note.places:
            self._hidden.setdefault(log, OffsetSet()).add(start, stop)
        timers = self._vhost.broker.timers
        timers.set((self, note.name), note.due_us, lambda: self._expire(note.name))

    def _uncover(self, parts: Iterable[StageNote]) -> None:
        """They hide nothing any more."""
        for part in parts:
            for log, start, stop in part.places:
                if log in self._hidden:
                    self._hidden[log].remove(start, stop)

    def _expire(self, name: StageName) -> None:
        if name not in self._stages:
            return
        try:
            self._drop([name])
        except StorageError:  # a full disk: a little later
            broker = self._vhost.broker
            broker.timers.set((self, name), broker.now_us() + _AGAIN_US, lambda: self._expire(name))

    def _forget(self, names: Iterable[StageName]) -> None:
        for name in names:
            del self._stages[name]
            self._vhost.broker.timers.cancel((self, name))

    def _forgotten(self, new: CommitNote) -> list[str]:
        """Of too many queries the one that has not committed for longest, of the user who has most.

        Those of a single batch go first: nobody runs them again.
        """
        if new.query in self._committed or len(self._committed) < QUERIES_MAX:
            return []
        counts = Counter(note.owner for note in self._committed.values())
        most = max(counts, key=lambda owner: (counts[owner], owner == new.owner))
        notes = (note for note in self._committed.values() if note.owner == most)
        return [min(notes, key=lambda note: (note.batch > 0, note.number)).query]


def _check_room(queue: Destination, count: int, size_bytes: int) -> None:
    """Consumers that are waiting make some first."""
    if queue.has_room(count, size_bytes):
        return
    queue.runs.run()
    if not queue.has_room(count, size_bytes):
        raise QueryRefused(
            "full",
            f"{queue} is full, and refuses what is published",
            hint="Let its consumers catch up, or raise its limit.",
        )


def _label(name: StageName) -> bytes:
    return f"{well_known_names.STAGE}{name.query} {name.batch}".encode()[:255]
