"""Leases: what queries hold of a queue, exactly and durably, until they have committed it somewhere else.

A query is one more consumer, known by its name. It asks for the next *lease*: a number, and the offsets that
go with it. The same number gives the same offsets, whoever asks, however often, also after a restart, until
the query says that everything up to a number is committed: then those messages are acked. Each run of a
query has an epoch; who comes with an older one is refused, because another run has taken over.

What a lease holds is in flight in the cursor, and leased (`Cursor.lease`); the numbers are notes beside it.
The rule: a lease is answered when its note is durable, and a note is changed or removed in the transaction
that settles, gives back or takes again what it names.

A query that is not heard of for too long loses its messages to whoever takes them first. Its leases are
remembered as expired: when it comes back, what nobody has taken is acked, or the same lease again.
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
from leveret.broker.queries.fencing import fenced
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
_AGAIN_US: Final = 1_000_000
_DEAD_MAX: Final = 4_096
"""Behind so many messages that turn out to be dead no lease is looked for: all others wait meanwhile."""
_SWEPT: Final = 256
"""Where the next are dead, so many are looked at, however few are asked for."""


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
        for lease in sorted(leases, key=lambda each: each.number):
            query = self.queries.get(lease.query)
            if query is None or lease.number > query.last:
                self._forget(lease)
            else:
                (query.expired if lease.expired else query.leases)[lease.number] = lease
        for query in self.queries.values():
            for lease in query.leases.values():
                hold_again(queue, lease.ranges, who=query.label)
            self._trim(query)
            self._seen(query)

    @property
    def log(self) -> Log:
        return self._notes.log

    def __bool__(self) -> bool:
        """Whether a query holds something."""
        return any(query.leases for query in self.queries.values())

    def held(self) -> Iterable[Range]:
        """Everything that is in a lease."""
        for query in self.queries.values():
            for lease in query.leases.values():
                yield from lease.ranges

    # what queries ask for

    def open(self, name: str, *, user: User, timeout_us: int, run: str = "") -> Query:
        """A run of the query begins: earlier ones are refused from now on. One that asks again is not new.

        The user owns the query if nobody does yet.
        """
        if not name or not name.isprintable() or len(name.encode()) > _QUERY_BYTES_MAX:
            raise PreconditionFailed(
                f"{name!r} can't be the name of a query: it has 1 to {_QUERY_BYTES_MAX} printable bytes"
            )
        self.check_operate(name, user)
        self._check_free()
        query = self.queries.get(name)
        if query is not None and (known := query.runs.epoch_of(run)) is not None:
            return self.check(name, known)
        if query is None:
            above = self._floor.lease
            query = Query(name, self._floor.epoch, settled=above, last=above, began=above)
        owner = query.owner or ownership.owner_name(user)
        self._write(replace(query, epoch=query.epoch + 1, timeout_us=timeout_us, owner=owner))
        query.epoch += 1
        query.timeout_us, query.owner = timeout_us, owner
        query.runs.remember(run, query.epoch)
        self.queries[name] = query
        self._seen(query)
        return query

    def next(
        self, query: Query, start: int, *, max_messages: int | None = None, max_bytes: int | None = None
    ) -> int:
        """The number of the first lease above `start`; `start` if nothing is ready.

        Who asks for the next one has not begun with it. So one that has expired is passed over: its messages
        are in the queue, or in a later one.
        """
        if start < query.settled:  # what was acked since is not in what the query has: never silently
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
        counts = returns.within(ranges)
        lease = LeaseNote(query.name, query.last + 1, ranges, returns.redelivered_below, counts)
        try:
            self._write(replace(query, last=lease.number, void=void), lease, gone=passed)
        except StorageError:
            self._put_back(ranges)
            raise
        query.last, query.void = lease.number, void
        for each in passed:
            del query.expired[each.number]
        query.leases[lease.number] = lease
        return lease.number

    def settle(self, query: Query, through: int) -> None:
        """Everything up to this lease is committed: its messages are acked.

        So are those that had gone back to the queue: at once, or when who has taken them returns them.
        """
        if through > query.last:
            raise QueryRefused(
                "gone",
                f"query '{query.name}' has committed lease {through}, but {self.queue} has given it no more "
                f"than {query.last}",
                hint="The broker's data are older than the checkpoint: start the query with a new one.",
            )
        self._check_begun(query, through)
        done = [lease for number, lease in query.leases.items() if number <= through]
        late = [lease for number, lease in query.expired.items() if number <= through]
        away = {lease.number: self.queue.cursor.in_flight.within(lease.ranges) for lease in late}
        late = [lease for lease in late if not lease.ranges or lease.ranges != away[lease.number]]
        if through <= query.settled and not (done or late):
            return
        settled = max(query.settled, through)
        settlement = Settlement(self.queue, query.label)
        change = self._notes.change(settlement.transaction)
        for lease in (*done, *late):
            settlement.add(lease, lease.ranges, Outcome.ACKED)
        change.remove(lease.key for lease in (*done, *late) if not away.get(lease.number))
        left = [msgspec.structs.replace(lease, ranges=away[lease.number]) for lease in late]
        left = [lease for lease in left if lease.ranges]
        for lease in left:
            change.put(lease)
        change.put(replace(query, settled=settled).note())
        settlement.commit()
        change.done()
        query.settled = settled
        query.void = frozenset(number for number in query.void if number > settled)
        for lease in done:
            del query.leases[lease.number]
        for lease in late:
            del query.expired[lease.number]
        query.expired.update((lease.number, lease) for lease in left)

    def reject(self, name: str, ranges: Sequence[Range], *, why: bytes = b"") -> None:
        """What the query has of these is among its rejects: settled as that, and in no lease any more."""
        query = self.queries.get(name)
        if query is None:
            return
        settlement = Settlement(self.queue, query.label)
        change = self._notes.change(settlement.transaction)
        changed = []
        for lease in (*query.leases.values(), *query.expired.values()):
            left = OffsetSet(lease.ranges)
            rejected = left.within(ranges)
            if rejected:
                left.remove_many(rejected)
                changed.append(msgspec.structs.replace(lease, ranges=list(left.ranges())))
                settlement.add(lease, rejected, Outcome.SENT_TO_REJECTS, why=why)
                change.put(changed[-1])
        if changed:
            settlement.commit()
            change.done()
            for lease in changed:
                (query.expired if lease.expired else query.leases)[lease.number] = lease

    def plan(self, query: Query, start: int, end: int) -> list[LeaseNote]:
        """The leases above `start` up to `end`, exactly as they were given."""
        self._check_begun(query, end)
        if end < start:  # the first batch of a checkpoint, and others have begun since
            raise self._lost(query, end)
        found = []
        for number in range(start + 1, end + 1):
            if number in query.expired and number > query.settled:
                self._take_again(query, query.expired[number])
            if number in query.leases:
                found.append(query.leases[number])
            elif number not in query.void:
                raise self._lost(query, number)
        return found

    def release(self, name: str) -> None:
        """The query is over: what it holds goes back, and it is forgotten, but for how far it had come."""
        query = self.queries.get(name)
        if query is not None:
            self._give_back(query, forget=True)
            del self.queries[name]
            self.queue.broker.timers.cancel((self, name))

    def close(self) -> None:
        """The queue is gone: nobody waits for its queries."""
        for name in self.queries:
            self.queue.broker.timers.cancel((self, name))

    def check_operate(self, name: str, user: User) -> None:
        """Raise `AccessRefused` if there is a query of this name that the user may not operate."""
        query = self.queries.get(name)
        if query is not None:
            vhost = self.queue.vhost.name
            ownership.check_operate(user, vhost, ownership.QUERY, name, owner=query.owner)

    def check(self, name: str, epoch: int) -> Query:
        """The query, if this is its present run."""
        query = self.queries.get(name)
        over = f"run {epoch} of query '{name}' over {self.queue} is over"
        if query is None:
            raise QueryRefused(
                "forgotten",
                f"{over}: the query was ended at the broker, and its messages went back",
                hint="Start it with a new checkpoint.",
            )
        if query.epoch != epoch:
            raise fenced(over, present=query.epoch)
        self._seen(query)
        return query

    # inside

    def _check_free(self) -> None:
        queue, consumers = self.queue, self._deliverer.consumers
        if consumers.exclusive is not None:
            raise AccessRefused(f"{queue} in exclusive use")
        if queue.settings.single_active_consumer and consumers:
            raise AccessRefused(f"{queue} has a single active consumer, and a query would be a second one")

    def _take(self, query: Query, max_messages: int | None, max_bytes: int | None) -> list[Range]:
        """What the query gets of what is ready: within its limits, and no more than its share."""
        queue, deliverer = self.queue, self._deliverer
        queue.broker.bring_up_to_date(queue)
        deliverer.catch_up()
        looked = 0
        while looked < _DEAD_MAX:
            waiting = queue.ready + queue.delayed
            share = -(-queue.ready // (1 + len(deliverer.consumers)))
            count = share if max_messages is None else min(max_messages, share)
            if deliverer.prioritised:  # each is found by itself
                count = min(count, message_sizes.COUNT_MAX)
            if max_bytes is not None:
                count = message_sizes.count_within(
                    queue.log, queue.cursor.waiting.ready_ranges(), count, max_bytes
                )
            ranges = deliverer.lease(count, who=query.label) if count else []
            if ranges or not count:
                return ranges
            if queue.ready + queue.delayed == waiting:
                raise QueryRefused(
                    "busy",
                    f"the next messages of {queue} can't be taken, nor buried, before something is written",
                    hint="If it stays so: is the broker's disk full?",
                )
            living = deliverer.lease(min(queue.ready, _SWEPT), who=query.label) if queue.ready else []
            if living:
                self._put_back(living)  # the dead ones among them are gone
            looked += waiting - queue.ready - queue.delayed
        raise QueryRefused(
            "busy",
            f"the next messages of {queue} had all expired, or been returned too often",
            hint="There may be others behind them: ask again.",
        )

    def _put_back(self, ranges: Sequence[Range]) -> None:
        """Taken, and given to nobody."""
        self.queue.release(ranges)
        if self.queue.cursor.audited:
            self.queue.cursor.note_withheld(ranges)

    def _take_again(self, query: Query, lease: LeaseNote) -> None:
        """An expired lease holds its messages again, if all of them are still there."""
        self._check_free()
        waiting = self.queue.cursor.waiting.within(lease.ranges)
        if total(waiting) < lease.messages:
            raise self._lost(query, lease.number)
        again = msgspec.structs.replace(lease, expired=False)
        size_bytes = self.queue.account.bytes_of(lease.ranges)
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        if lease.ranges:
            transaction.hold(self.queue.cursor, lease.ranges, who=query.label)
        change.put(again)
        transaction.commit()
        change.done()
        self.queue.account.dropped(size_bytes)
        del query.expired[lease.number]
        query.leases[lease.number] = again

    def _check_begun(self, query: Query, number: int) -> None:
        """Who works on a lease has got it. One that was passed over was got by another checkpoint."""
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
            left = ", and not all are there any more" if number in query.expired else ""
            return QueryRefused(
                "expired",
                f"{name} has expired: its messages went back to the queue{left}",
                hint="Start the query with a new checkpoint, and allow more time with leaseTimeout.",
            )
        return QueryRefused(
            "gone",
            f"{name} was never given",
            hint="The checkpoint belongs to another broker.",
        )

    def _forget(self, lease: LeaseNote) -> None:
        """After damage: the query that had it is not known any more, and its numbers come again."""
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        change.remove([lease.key])
        transaction.commit()
        change.done()

    def _trim(self, query: Query) -> None:
        """After a restart: what was transient is gone, and in no lease any more."""
        in_flight = self.queue.cursor.in_flight
        for lease in list(query.leases.values()):
            left = in_flight.leased_within(lease.ranges)
            if left != lease.ranges:
                query.leases[lease.number] = msgspec.structs.replace(lease, ranges=left)
                self._write(query, query.leases[lease.number])

    def _write(self, query: Query, *leases: LeaseNote, gone: Iterable[LeaseNote] = ()) -> None:
        transaction = self.queue.broker.store.transaction()
        change = self._notes.change(transaction)
        change.put(query.note())
        for lease in leases:
            change.put(lease)
        for lease in gone:
            change.remove([lease.key])
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
            above = query.last + 1 if went_back else query.last  # who has committed the last of them is told
            floor = FloorNote(max(floor.epoch, query.epoch), max(floor.lease, above))
            change.remove([query.note().key])
            change.put(floor)
        transaction.commit()
        change.done()
        self._floor = floor
        query.leases.clear()
        query.expired.update(expired)
        self.queue.shown([each for lease in leases for each in lease.ranges])

    def _seen(self, query: Query) -> None:
        """It is alive: its leases have their whole time again."""
        broker = self.queue.broker
        query.seen_us = broker.now_us()
        self.queue.used()
        if query.timeout_us:
            due_us = query.seen_us + query.timeout_us
            broker.timers.set((self, query.name), due_us, lambda: self._expire(query))

    def _expire(self, query: Query) -> None:
        """Its messages go back; if that can't be written now, a little later."""
        if self.queue.deleted or not query.leases:
            return
        try:
            self._give_back(query)
        except StorageError:
            broker = self.queue.broker
            broker.timers.set((self, query.name), broker.now_us() + _AGAIN_US, lambda: self._expire(query))


class Settlement:
    """Leases that end, live ones and expired ones, in one transaction: `add`, then `commit`."""

    def __init__(self, queue: Destination, who: bytes) -> None:
        self.transaction = queue.broker.store.transaction()
        self._queue = queue
        self._who = who
        self._waited_bytes = 0

    def add(self, lease: LeaseNote, ranges: Sequence[Range], outcome: Outcome, *, why: bytes = b"") -> None:
        """These of the lease; of one that has expired what nobody has taken."""
        cursor = self._queue.cursor
        if not lease.expired:
            if ranges:
                self.transaction.settle(cursor, ranges, outcome, who=self._who, why=why)
        elif waiting := cursor.waiting.within(ranges):
            self._waited_bytes += self._queue.account.bytes_of(waiting)
            self.transaction.drop(cursor, waiting, outcome, who=self._who, why=why)

    def commit(self) -> None:
        self.transaction.commit()
        self._queue.account.dropped(self._waited_bytes)
