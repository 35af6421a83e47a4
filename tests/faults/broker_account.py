"""A check that every change of a broker's queues has an explanation.

`Account` looks at the queues whenever the store is about to change (see `watched_store`). So the difference
of two looks is one change: an append, a settlement or a transaction. A message that leaves a queue must have
been acked, purged, deleted with its queue, or dead-lettered for a valid reason. If its queue dead-letters,
the copies must appear in the same change. A new message must have been published or dead-lettered elsewhere.
The contents are kept for each closed round of the WAL: after a crash the broker must have one of them.

The rule: this file does not know how the broker works, only what queues hold and what clients requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from leveret.amqp.properties import headers_of, peek
from leveret.broker.broker import Broker
from leveret.broker.queues.queue import Queue
from leveret.storage.records import PERSISTENT, Record
from leveret.storage.store import Store
from tests.faults.watched_store import watch

FAN, DEAD_FAN = "fan", "dead-fan"
REASONS = ("rejected", "expired", "maxlen", "delivery_limit")

Key = tuple[int, int]
"""A message in a queue: the id of the queue's log, and the offset."""
Lineage = tuple[str, str]
"""The message id of a publish, and the queue that the message was routed to."""
Deaths = tuple[tuple[str, str, int], ...]
"""Entries of `x-death`, the last death first: queue, reason, count."""


class Kept(NamedTuple):
    """The properties of a message that do not change while it is in a queue."""

    lineage: Lineage
    queue: str
    deaths: Deaths
    persistent: bool
    time_us: int
    expiration_ms: int | None
    priority: int
    body: bytes


class State(NamedTuple):
    """The properties of a message that change while it is in a queue."""

    in_flight: bool
    count: int
    due_us: int


Content = dict[int, tuple[Kept, State]]
"""The messages of a queue, by offset."""


@dataclass(slots=True)
class Group:
    """The effects of one `tx.commit`, which must all happen in one change or not at all."""

    added: set[tuple[str, str]]
    removed: set[Key]


@dataclass(slots=True)
class Intents:
    """The requests of clients, which explain changes."""

    published: set[tuple[str, str]] = field(default_factory=set)
    """(id, queue) of publishes that may appear once."""
    acked: set[Key] = field(default_factory=set)
    rejected: set[Key] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)
    """Names of queues that are being purged."""
    deleted: set[int] = field(default_factory=set)
    """Logs of queues that are being deleted."""
    fetched: Counter[str] = field(default_factory=Counter)
    """Number of messages that may leave each queue as deliveries without ack."""
    groups: list[Group] = field(default_factory=list)
    undone_after: int | None = None
    """While a failed write is undone: the look after which messages appeared that may disappear again."""


class Account:
    """`look` at every change; `rounds[ticket]` is what a broker that recovers that round must hold."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.intents = Intents()
        self.broker: Broker | None = None
        self.contents: dict[int, Content] = {}
        """Contents of the existing queues, by log."""
        self.names: dict[int, str] = {}
        """Names of all queues that ever existed, by log."""
        self.durable: set[int] = set()
        """Logs of durable queues."""
        self.rounds: dict[int, dict[int, Content]] = {}
        self.looks = 0
        self.round_looks: dict[int, int] = {}
        """Number of the look at which each round was closed."""
        self.appeared: dict[Lineage, int] = {}
        """Number of the look at which each message was first in a queue."""
        self.ends: Counter[str] = Counter()
        """Number of messages by the way in which they left."""
        self.handed: Counter[tuple[str, Lineage]] = Counter()
        """(queue, lineage) of possible deliveries without ack that no client has received yet."""
        self.disk_failed = False
        """Whether a write has failed in this run: settlements of a failed commit may happen one by one."""
        self.dues_us: dict[Key, int] = {}
        """End of the last delay of each message."""
        self._seen: dict[int, tuple[int, int]] = {}
        self._records: dict[Key, Kept] = {}

    # a run of the broker

    def watch(self, store: Store, look: Callable[[], None]) -> None:
        """Look at every change of the store from now on, and keep its rounds."""
        watch(store, look, closing=self.look, closed=lambda ticket, _: self._keep_round(ticket))

    def begin(self, broker: Broker) -> None:
        """Begin with a recovered broker, and take its contents as they are."""
        self.intents = Intents()
        self.broker = broker
        self.handed.clear()
        self._seen.clear()
        self.contents = {queue.log.id: self.content(queue) for queue in self._queues()}
        self.names |= {queue.log.id: queue.name for queue in self._queues()}
        self.durable |= set(self.contents)
        self.dues_us = {
            (log, offset): state.due_us
            for log, content in self.contents.items()
            for offset, (_, state) in content.items()
        }
        self.rounds.clear()
        self.round_looks.clear()
        self._keep_round(broker.store.safe_ticket)

    def _keep_round(self, ticket: int) -> None:
        self.rounds[ticket] = {log: dict(content) for log, content in self.contents.items()}
        self.round_looks[ticket] = self.looks

    def safe_look(self, safe_ticket: int) -> int:
        """Return the number of the look up to which all new messages are durable."""
        return max((look for ticket, look in self.round_looks.items() if ticket <= safe_ticket), default=-1)

    # looking

    def _queues(self) -> Iterator[Queue]:
        assert self.broker is not None
        yield from self.broker.vhosts["/"].queues.values()

    def look(self) -> None:
        """Check that the changes since the last look have an explanation."""
        if self.broker is None:
            return
        self.looks += 1
        removed: dict[Key, tuple[Kept, State]] = {}
        added: dict[Key, Kept] = {}
        queues = {queue.log.id: queue for queue in self._queues()}
        for log in [log for log in self.contents if log not in queues]:
            assert log in self.intents.deleted, f"queue {self.names[log]} is gone, but no client deleted it"
            del self.contents[log], self._seen[log]
        for log, queue in queues.items():
            seen = (queue.log.next, queue.cursor.journal.next)
            if self._seen.get(log) == seen:
                continue
            self._seen[log] = seen
            self.names[log] = queue.name
            if queue.durable:
                self.durable.add(log)
            before, now = self.contents.get(log, {}), self.content(queue)
            self.contents[log] = now
            removed |= {(log, offset): before[offset] for offset in before if offset not in now}
            added |= {(log, offset): now[offset][0] for offset in now if offset not in before}
            for offset in before.keys() & now.keys():
                self._check_kept((log, offset), before[offset], now[offset])
        if removed or added:
            self._explain(removed, added)

    def content(self, queue: Queue) -> Content:
        progress = queue.cursor.progress
        delays = dict(progress.delays())
        waiting = [*progress.ready_ranges(), *progress.delayed.ranges()]
        found: Content = {}
        for in_flight, ranges in ((False, waiting), (True, list(progress.in_flight.ranges()))):
            for start, stop in ranges:
                for offset in range(start, stop):
                    state = State(in_flight, queue.cursor.returns.count(offset), delays.get(offset, 0))
                    found[offset] = (self._record(queue, offset), state)
        return found

    def _record(self, queue: Queue, offset: int) -> Kept:
        key = queue.log.id, offset
        if key not in self._records:
            (record,) = queue.log.read([(offset, offset + 1)])
            self._records[key] = kept_of(queue, record)
        return self._records[key]

    def forget_records(self) -> None:
        """Read all records from the disk again."""
        self._records.clear()

    def _check_kept(self, key: Key, before: tuple[Kept, State], now: tuple[Kept, State]) -> None:
        """Check that a message is unchanged, and that each return raises its count by one.

        On a full disk, a message that could not be sent is returned without a count.
        """
        was, is_ = before[1], now[1]
        returned = was.in_flight and not is_.in_flight
        counted = is_.count - was.count
        assert counted == returned or (self.disk_failed and returned and not counted), (
            f"{now[0].lineage} was returned {was.count} times, now {is_}"
        )
        if is_.in_flight and not was.in_flight:
            due_us = self.dues_us.pop(key, 0)
            assert due_us <= self._clock(), f"{now[0].lineage} was delivered before the end of its delay"
        if is_.due_us:
            self.dues_us[key] = is_.due_us
        if not is_.in_flight:
            self.intents.acked.discard(key)
            self.intents.rejected.discard(key)

    # explaining

    def _explain(self, removed: dict[Key, tuple[Kept, State]], added: dict[Key, Kept]) -> None:
        self._check_groups(removed, added)
        arrived = {(kept.queue, kept.lineage): kept for kept in added.values()}
        assert len(arrived) == len(added), "a message was added to a queue twice in one change"
        for key, (kept, state) in removed.items():
            self._explain_removed(key, kept, state, arrived)
        for kept in arrived.values():
            self._explain_added(kept)
        for kept in added.values():
            self.appeared.setdefault(kept.lineage, self.looks)

    def _explain_removed(
        self, key: Key, kept: Kept, state: State, arrived: dict[tuple[str, Lineage], Kept]
    ) -> None:
        intents = self.intents
        fetched = bool(intents.fetched[kept.queue]) and state.in_flight
        self.handed[kept.queue, kept.lineage] += fetched
        copied = any(lineage == kept.lineage for _, lineage in arrived)
        if key in intents.acked and state.in_flight and not copied:
            intents.acked.discard(key)
            self.ends["acked"] += 1
            return
        if kept.queue in intents.purged and not state.in_flight:
            self.ends["purged"] += 1
            return
        if intents.undone_after is not None and not state.in_flight:
            assert self.appeared[kept.lineage] > intents.undone_after, f"{kept} was synced, but was undone"
            self.ends["undone"] += 1
            return
        reasons = [reason for reason in REASONS if self._may_die(key, kept, state, reason)]
        for reason in reasons:
            if self._copies_arrived(kept, reason, arrived):
                intents.rejected.discard(key)
                self.ends[reason] += 1
                return
        assert fetched or not reasons, (
            f"{kept} was dead-lettered ({' or '.join(reasons)}), but copies are missing"
        )
        assert fetched, f"{kept} left its queue for no reason: {state}"
        self.ends["fetched"] += 1

    def _may_die(self, key: Key, kept: Kept, state: State, reason: str) -> bool:
        arguments = self._arguments(kept.queue)
        if reason == "rejected":
            late = arguments.consumer_timeout_ms and arguments.consumer_timeout_action == "dead-letter"
            return state.in_flight and (key in self.intents.rejected or bool(late))
        if reason == "expired":
            times = [ms for ms in (kept.expiration_ms, arguments.message_ttl_ms) if ms is not None]
            return bool(times) and kept.time_us + 1000 * min(times) <= self._clock()
        if reason == "delivery_limit":
            limit = arguments.delivery_limit
            return limit is not None and state.count >= limit and state.in_flight
        limited = arguments.max_length is not None or arguments.max_length_bytes is not None
        return limited and arguments.overflow == "drop-head" and not state.in_flight

    def _copies_arrived(self, kept: Kept, reason: str, arrived: dict[tuple[str, Lineage], Kept]) -> bool:
        """Return whether all copies of a dead letter have arrived, and remove them from `arrived` if so."""
        deaths = died(kept.deaths, kept.queue, reason)
        targets = [target for target in self._targets(kept.queue) if not is_cycle(deaths, target, reason)]
        copies = [(target, kept.lineage) for target in targets]
        for copy in copies:
            if copy not in arrived or arrived[copy].deaths != deaths or arrived[copy].body != kept.body:
                return False
            assert arrived[copy].expiration_ms is None, f"{arrived[copy]} still expires"
            assert arrived[copy].persistent <= kept.persistent
        for copy in copies:
            del arrived[copy]
        return True

    def _targets(self, queue: str) -> list[str]:
        arguments = self._arguments(queue)
        existing = {queue.name for queue in self._queues()}
        if arguments.dead_letter_exchange == "":
            return [key] if (key := arguments.dead_letter_routing_key) in existing else []
        return bound_to(self.broker, DEAD_FAN) if arguments.dead_letter_exchange == DEAD_FAN else []

    def _explain_added(self, kept: Kept) -> None:
        id_, origin = kept.lineage
        published = (id_, origin) in self.intents.published
        assert published, f"{kept} was never published, or was added twice"
        self.intents.published.discard((id_, origin))
        if kept.deaths:
            # The queue rejected the publish and dead-lettered the message.
            assert self._arguments(origin).overflow == "reject-publish-dlx", f"{kept} was never published"
            assert kept.deaths == ((origin, "maxlen", 1),)
            # Each copy is a change of its own, because the publish is nacked.
            if len(self._targets(origin)) > 1:
                self.intents.published.add((id_, origin))

    def _check_groups(self, removed: dict[Key, tuple[Kept, State]], added: dict[Key, Kept]) -> None:
        arrived = {(kept.lineage[0], kept.queue) for kept in added.values() if not kept.deaths}
        for group in list(self.intents.groups):
            gone = group.removed & removed.keys()
            if group.added <= arrived and group.removed == gone:
                self.intents.groups.remove(group)
                continue
            assert not group.added & arrived, (
                f"a transaction is incomplete: {group.added - arrived} is missing"
            )
            # A failed commit requeues its settlements, and messages over the delivery limit leave the queue.
            failed = group.added or self.disk_failed
            assert not gone or failed, f"a transaction is incomplete: of {group.removed} only {gone} left"

    def _arguments(self, queue: str):  # type: ignore[no-untyped-def]
        assert self.broker is not None
        return self.broker.vhosts["/"].queues[queue].settings


def bound_to(broker: Broker | None, exchange: str) -> list[str]:
    """Return the names of the queues bound to a fanout exchange."""
    assert broker is not None
    vhost = broker.vhosts["/"]
    fanout = vhost.exchanges.get(exchange)
    return [] if fanout is None else sorted(queue.name for queue in vhost.route(fanout, "", {}))


def kept_of(queue: Queue, record: Record) -> Kept:
    headers = headers_of(record.header)
    x_death = headers.get("x-death")
    deaths = tuple(
        (str(death["queue"]), str(death["reason"]), int(death["count"]))  # type: ignore[index, call-overload]
        for death in (x_death if isinstance(x_death, list) else ())
    )
    origin = str(headers.get("x-first-death-queue", queue.name))
    own = peek(record.header).expiration
    persistent = bool(record.flags & PERSISTENT)
    id_ = record.body.split(b" ", 1)[0].decode()
    expiration_ms = None if own is None else int(own)
    return Kept(
        (id_, origin),
        queue.name,
        deaths,
        persistent,
        record.time_us,
        expiration_ms,
        record.priority,
        record.body,
    )


def died(deaths: Deaths, queue: str, reason: str) -> Deaths:
    """Return `x-death` after one more death."""
    before = next((count for where, why, count in deaths if (where, why) == (queue, reason)), 0)
    others = tuple(death for death in deaths if death[:2] != (queue, reason))
    return ((queue, reason, before + 1), *others)


def is_cycle(deaths: Deaths, target: str, reason: str) -> bool:
    """Return whether a dead letter would return to a queue without a reject since it was there."""
    if reason == "rejected":
        return False
    with suppress(StopIteration):
        back = next(n for n, death in enumerate(deaths) if death[0] == target)
        return all(why != "rejected" for _, why, _ in deaths[: back + 1])
    return False
