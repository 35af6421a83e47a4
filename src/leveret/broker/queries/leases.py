"""Leases: messages of a queue that a query holds, exactly and durably, until it commits them.

A query is one more consumer, known by its name. It asks for the next *lease*: a number, and the offsets that
belong to it. A number always means the offsets it had first, for any run and after a restart, until the query
says that everything up to a number is committed; then those messages are acked. Each run of a query has an
epoch. A request with an older epoch is refused, because another run has taken over.

Messages of a lease are in flight in the cursor, and leased (`Cursor.lease`); the numbers are notes beside it.
The rule: a lease is answered when its note is durable, and a note is changed or removed in the transaction
that settles, returns or leases its messages again.

A query that sends no request before its timeout loses its messages to other consumers. Its leases are
remembered as expired. When the query comes back, messages that no other consumer has taken are acked, or
leased under the old number again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from leveret.broker import auxiliary_logs
from leveret.broker.access import ownership
from leveret.broker.access.accounts import User
from leveret.broker.errors import AccessRefused, PreconditionFailed, QueryRefused
from leveret.broker.note_log import Notes
from leveret.broker.queries.fencing import fenced_error
from leveret.broker.queries.lease_notes import FloorNote, LeaseNote, Note, Query
from leveret.broker.queries.lease_repair import hold_again
from leveret.broker.queues import message_sizes
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.vhosts.destination import Destination
from leveret.storage.errors import StorageError
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_ranges import total
from leveret.storage.offset_set import OffsetSet, Range

_QUERY_BYTES_MAX: Final = 200
_RETRY_US: Final = 1_000_000
_DEAD_MAX: Final = 4_096
"""Dead messages that one request skips at most: other clients wait meanwhile."""
_SWEPT: Final = 256
"""Messages checked at once where the next ones are dead, however few are asked for."""


class Leases:
    """All queries of one queue: `leases.open("nightly", user=ann, timeout_us=...)`."""

    def __init__(self, queue: Destination, deliverer: Deliverer, log: Log | None = None) -> None:
        """Read the queries and their leases from `log`, which an earlier run of the broker wrote."""
        self.queue = queue
        self._deliverer = deliverer
        self.queries: dict[str, Query] = {}
        label = auxiliary_logs.label(auxiliary_logs.LEASES, queue.log.id)
        self._floor = FloorNote()
        self._notes: Notes[Note] = Notes(
            queue.broker.store,
            Note,  # type: ignore[arg-type]
            label=label,
            log=log,
        )
        leases: list[LeaseNote] = []
        for note in self._notes:
            if isinstance(note, LeaseNote):
                leases.append(note)
            elif isinstance(note, FloorNote):
                self._floor = note
            else:
                self.queries[note.name] = Query(
                    note.name,
                    note.epoch,
                    settled=note.settled,
                    last=note.last,
                    timeout_us=note.timeout_us,
                    void=frozenset(note.void),
                    began=note.began,
                    owner=note.owner,
                )
        for lease in sorted(leases, key=lambda lease: lease.number):
            query = self.queries.get(lease.query)
            if query is None or lease.number > query.last:
                # The query is unknown after damage, and the lease's number will be used again.
                self._write(removed=[lease])
            else:
                (query.expired if lease.expired else query.leases)[lease.number] = lease
        for query in self.queries.values():
            for lease in query.leases.values():
                hold_again(queue, lease.ranges, who=query.label)
            self._trim(query)
            self._restart_timeout(query)

    @property
    def log(self) -> Log:
        return self._notes.log

    def __bool__(self) -> bool:
        """Whether a query holds a lease."""
        return any(query.leases for query in self.queries.values())

    def held(self) -> Iterable[Range]:
        """Yield the ranges of all leases."""
        for query in self.queries.values():
            for lease in query.leases.values():
                yield from lease.ranges

    # requests of queries

    def open(self, name: str, *, user: User, timeout_us: int, run: str = "") -> Query:
        """Begin a run of the query; from now on earlier runs are refused. A repeated request begins no run.

        The user becomes the owner of a query without an owner.
        """
        if not name or not name.isprintable() or len(name.encode()) > _QUERY_BYTES_MAX:
            raise PreconditionFailed(
                f"{name!r} can't be the name of a query: it has 1 to {_QUERY_BYTES_MAX} printable bytes"
            )
        self.check_operate(name, user)
        self._check_free()
        query = self.queries.get(name)
        if query is not None and (epoch := query.runs.epoch_of(run)) is not None:
            return self.check(name, epoch)
        if query is None:
            floor_lease = self._floor.lease
            query = Query(name, self._floor.epoch, settled=floor_lease, last=floor_lease, began=floor_lease)
        owner = query.owner or ownership.owner_name(user)
        self._write(replace(query, epoch=query.epoch + 1, timeout_us=timeout_us, owner=owner).note())
        query.epoch += 1
        query.timeout_us, query.owner = timeout_us, owner
        query.runs.remember(run, query.epoch)
        self.queries[name] = query
        self._restart_timeout(query)
        return query

    def next(
        self, query: Query, start: int, *, max_messages: int | None = None, max_bytes: int | None = None
    ) -> int:
        """Return the number of the first lease above `start`, or `start` if no message is ready.

        No run has used a lease above `start`. So expired leases are skipped: their messages are in the queue
        or in a later lease.
        """
        # The query's checkpoint lacks messages that were acked since; it must be told.
        if start < query.settled:
            raise self._lost(query, start + 1)
        self._check_begun(query, start)
        following = min((number for number in query.leases if number > start), default=None)
        if following is not None:
            return following
        passed = [lease for number, lease in query.expired.items() if number > start]
        void = query.void | frozenset(range(start + 1, query.last + 1))
        self._check_free()
        ranges = self._take(query, max_messages, max_bytes)
        if not ranges:
            return start
        returns = self.queue.cursor.returns
        counts = returns.counts_in(ranges)
        lease = LeaseNote(query.name, query.last + 1, ranges, returns.redelivered_below, counts)
        try:
            self._write(replace(query, last=lease.number, void=void).note(), lease, removed=passed)
        except StorageError:
            self._put_back(ranges)
            raise
        query.last, query.void = lease.number, void
        for expired in passed:
            del query.expired[expired.number]
        query.leases[lease.number] = lease
        return lease.number

    def settle(self, query: Query, through: int) -> None:
        """Ack the messages of all leases up to `through`, which the query has committed.

        Messages of expired leases are acked, too, as soon as no other consumer holds them.
        """
        if through > query.last:
            raise QueryRefused(
                "gone",
                f"query '{query.name}' has committed lease {through}, but {self.queue} has given it no more "
                f"than {query.last}",
                hint="The broker's data are older than the checkpoint: start the query with a new one.",
            )
        self._check_begun(query, through)
        live = [lease for number, lease in query.leases.items() if number <= through]
        expired = [lease for number, lease in query.expired.items() if number <= through]
        taken_ranges = {
            lease.number: self.queue.cursor.in_flight.offsets_in(lease.ranges) for lease in expired
        }
        expired = [
            lease for lease in expired if not lease.ranges or lease.ranges != taken_ranges[lease.number]
        ]
        if through <= query.settled and not (live or expired):
            return
        settled = max(query.settled, through)
        settlement = LeaseSettlement(self.queue, self._notes, query.label)
        for lease in (*live, *expired):
            settlement.add(lease, lease.ranges, Outcome.ACKED)
        change = settlement.change
        change.remove(lease.key for lease in (*live, *expired) if not taken_ranges.get(lease.number))
        remaining = [msgspec.structs.replace(lease, ranges=taken_ranges[lease.number]) for lease in expired]
        remaining = [lease for lease in remaining if lease.ranges]
        for lease in remaining:
            change.put(lease)
        change.put(replace(query, settled=settled).note())
        settlement.commit()
        query.settled = settled
        query.void = frozenset(number for number in query.void if number > settled)
        for lease in live:
            del query.leases[lease.number]
        for lease in expired:
            del query.expired[lease.number]
        query.expired.update((lease.number, lease) for lease in remaining)

    def reject(self, name: str, ranges: Sequence[Range], *, why: bytes = b"") -> None:
        """Settle messages that the query has published among its rejects, and remove them from its leases."""
        query = self.queries.get(name)
        if query is None:
            return
        settlement = LeaseSettlement(self.queue, self._notes, query.label)
        changed = []
        for lease in (*query.leases.values(), *query.expired.values()):
            remaining = OffsetSet(lease.ranges)
            rejected = remaining.members_in(ranges)
            if rejected:
                remaining.remove_many(rejected)
                changed.append(msgspec.structs.replace(lease, ranges=list(remaining.ranges())))
                settlement.add(lease, rejected, Outcome.SENT_TO_REJECTS, why=why)
                settlement.change.put(changed[-1])
        if changed:
            settlement.commit()
            for lease in changed:
                (query.expired if lease.expired else query.leases)[lease.number] = lease

    def plan(self, query: Query, start: int, end: int) -> list[LeaseNote]:
        """Return the leases above `start` up to `end`, exactly as they were given."""
        self._check_begun(query, end)
        # An older checkpoint plans its first batch, but a later checkpoint has gone on.
        if end < start:
            raise self._lost(query, end)
        leases = []
        for number in range(start + 1, end + 1):
            if number in query.expired and number > query.settled:
                self._take_again(query, query.expired[number])
            if number in query.leases:
                leases.append(query.leases[number])
            elif number not in query.void:
                raise self._lost(query, number)
        return leases

    def release(self, name: str) -> None:
        """End a query: return its messages to the queue and forget it, except for its last numbers."""
        query = self.queries.get(name)
        if query is not None:
            self._give_back(query, forget=True)
            del self.queries[name]
            self.queue.broker.timers.cancel((self, name))

    def close(self) -> None:
        """Cancel the timeouts of all queries, because the queue was deleted."""
        for name in self.queries:
            self.queue.broker.timers.cancel((self, name))

    def check_operate(self, name: str, user: User) -> None:
        """Raise `AccessRefused` if a query has this name and the user may not operate it."""
        query = self.queries.get(name)
        if query is not None:
            vhost = self.queue.vhost.name
            ownership.check_operate(user, vhost, ownership.QUERY, name, owner=query.owner)

    def check(self, name: str, epoch: int) -> Query:
        """Return the query; raise `QueryRefused` if `epoch` is not its present run."""
        query = self.queries.get(name)
        over_text = f"run {epoch} of query '{name}' over {self.queue} is over"
        if query is None:
            raise QueryRefused(
                "forgotten",
                f"{over_text}: the query was ended at the broker, and its messages went back",
                hint="Start it with a new checkpoint.",
            )
        if query.epoch != epoch:
            raise fenced_error(over_text, present=query.epoch)
        self._restart_timeout(query)
        return query

    def _check_free(self) -> None:
        queue, consumers = self.queue, self._deliverer.consumers
        if consumers.exclusive is not None:
            raise AccessRefused(f"{queue} in exclusive use")
        if queue.settings.single_active_consumer and consumers:
            raise AccessRefused(f"{queue} has a single active consumer, and a query would be a second one")

    def _take(self, query: Query, max_messages: int | None, max_bytes: int | None) -> list[Range]:
        """Lease ready messages for the query, within its limits and its share."""
        queue, deliverer = self.queue, self._deliverer
        queue.broker.bring_up_to_date(queue)
        deliverer.catch_up()
        skipped = 0
        while skipped < _DEAD_MAX:
            waiting = queue.ready + queue.delayed
            share = -(-queue.ready // (1 + len(deliverer.consumers)))
            count = share if max_messages is None else min(max_messages, share)
            # Messages of a queue with priorities are looked up one by one.
            if deliverer.prioritised:
                count = min(count, message_sizes.COUNT_MAX)
            if max_bytes is not None:
                count = message_sizes.fitting(
                    queue.log, queue.cursor.waiting.ready_ranges(), count, max_bytes
                )
            ranges = deliverer.lease(count, who=query.label) if count else []
            if ranges or not count:
                return ranges
            if queue.ready + queue.delayed == waiting:
                raise QueryRefused(
                    "busy",
                    f"the next messages of {queue} can't be taken or dead-lettered before earlier changes "
                    "are written",
                    hint="If this error persists, check whether the broker's disk is full.",
                )
            living = deliverer.lease(min(queue.ready, _SWEPT), who=query.label) if queue.ready else []
            if living:
                # The dead messages among them are settled now.
                self._put_back(living)
            skipped += waiting - queue.ready - queue.delayed
        raise QueryRefused(
            "busy",
            f"the next messages of {queue} had all expired or exceeded the delivery limit",
            hint="There may be other messages behind them: ask again.",
        )

    def _put_back(self, ranges: Sequence[Range]) -> None:
        """Make messages ready again that were taken but given to no run."""
        self.queue.release(ranges)
        if self.queue.cursor.audited:
            self.queue.cursor.note_withheld(ranges)

    def _take_again(self, query: Query, lease: LeaseNote) -> None:
        """Lease the messages of an expired lease again; raise `QueryRefused` if some are gone."""
        self._check_free()
        waiting = self.queue.cursor.waiting.offsets_in(lease.ranges)
        if total(waiting) < lease.messages:
            raise self._lost(query, lease.number)
        renewed = msgspec.structs.replace(lease, expired=False)
        size_bytes = self.queue.account.bytes_of(lease.ranges)
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        if lease.ranges:
            transaction.hold(self.queue.cursor, lease.ranges, who=query.label)
        change.put(renewed)
        transaction.commit()
        change.done()
        self.queue.account.dropped(size_bytes)
        del query.expired[lease.number]
        query.leases[lease.number] = renewed

    def _check_begun(self, query: Query, number: int) -> None:
        """Raise `QueryRefused` for a lease that was passed over: another checkpoint works on it."""
        if number in query.void:
            raise self._lost(query, number)

    def _lost(self, query: Query, number: int) -> QueryRefused:
        name = f"lease {number} of query '{query.name}' over {self.queue}"
        if number <= query.began:
            return QueryRefused(
                "forgotten",
                f"{name} is forgotten: the query was ended at the broker, and its messages went back",
                hint="Start it with a new checkpoint.",
            )
        if number <= query.settled:
            return QueryRefused(
                "settled",
                f"{name} is settled: its messages were acked, and can't be read again",
                hint="The checkpoint is older than the acks: was it restored, or is progress tracked "
                "asynchronously? Start the query with a new checkpoint.",
            )
        if number <= query.last:
            taken = ", and not all of them are still there" if number in query.expired else ""
            return QueryRefused(
                "expired",
                f"{name} has expired: its messages went back to the queue{taken}",
                hint="Start the query with a new checkpoint, and allow more time with leaseTimeout.",
            )
        return QueryRefused(
            "gone",
            f"{name} was never given",
            hint="The checkpoint belongs to another broker.",
        )

    def _trim(self, query: Query) -> None:
        """Remove transient messages, which a restart has lost, from the leases of a query."""
        in_flight = self.queue.cursor.in_flight
        for lease in list(query.leases.values()):
            remaining = in_flight.leased_within(lease.ranges)
            if remaining != lease.ranges:
                query.leases[lease.number] = msgspec.structs.replace(lease, ranges=remaining)
                self._write(query.note(), query.leases[lease.number])

    def _write(self, *notes: Note, removed: Iterable[LeaseNote] = ()) -> None:
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        for note in notes:
            change.put(note)
        change.remove(lease.key for lease in removed)
        transaction.commit()
        change.done()

    def _give_back(self, query: Query, *, forget: bool = False) -> None:
        leases = list(query.leases.values())
        expired = {
            lease.number: msgspec.structs.replace(lease, expired=True) for lease in (() if forget else leases)
        }
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        for lease in leases:
            if lease.ranges:
                transaction.give_back(self.queue.cursor, lease.ranges)
        for lease in expired.values():
            change.put(lease)
        floor = self._floor
        if forget:
            for lease in (*leases, *query.expired.values()):
                change.remove([lease.key])
            went_back = any(number > query.settled for number in (*query.leases, *query.expired))
            # A query that has committed the last lease is told that its messages went back.
            floor_lease = query.last + 1 if went_back else query.last
            floor = FloorNote(max(floor.epoch, query.epoch), max(floor.lease, floor_lease))
            change.remove([query.note().key])
            change.put(floor)
        transaction.commit()
        change.done()
        self._floor = floor
        query.leases.clear()
        query.expired.update(expired)
        self.queue.shown([range_ for lease in leases for range_ in lease.ranges])

    def _restart_timeout(self, query: Query) -> None:
        """Restart the timeout of a query that sent a request."""
        broker = self.queue.broker
        query.seen_us = broker.now_us()
        self.queue.used()
        if query.timeout_us:
            due_us = query.seen_us + query.timeout_us
            broker.timers.set((self, query.name), due_us, lambda: self._expire(query))

    def _expire(self, query: Query) -> None:
        """Return the messages of a query to the queue; try again later if that can't be written."""
        if self.queue.deleted or not query.leases:
            return
        try:
            self._give_back(query)
        except StorageError:
            broker = self.queue.broker
            broker.timers.set((self, query.name), broker.now_us() + _RETRY_US, lambda: self._expire(query))


class LeaseSettlement:
    """The settlement of leases, live and expired ones, in one transaction: `add`, then `commit`."""

    def __init__(self, queue: Destination, notes: Notes[Note], who: bytes) -> None:
        self._transaction = queue.broker.store.transaction()
        self.change = notes.change(self._transaction)
        self._queue = queue
        self._who = who
        self._dropped_bytes = 0

    def add(self, lease: LeaseNote, ranges: Sequence[Range], outcome: Outcome, *, why: bytes = b"") -> None:
        """Settle messages of a lease; of an expired lease, only those that wait in the queue."""
        cursor = self._queue.cursor
        if not lease.expired:
            if ranges:
                self._transaction.settle(cursor, ranges, outcome, who=self._who, why=why)
        elif waiting := cursor.waiting.offsets_in(ranges):
            self._dropped_bytes += self._queue.account.bytes_of(waiting)
            self._transaction.drop(cursor, waiting, outcome, who=self._who, why=why)

    def commit(self) -> None:
        self._transaction.commit()
        self.change.done()
        self._queue.account.dropped(self._dropped_bytes)
