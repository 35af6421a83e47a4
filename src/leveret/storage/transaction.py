"""Several changes that become durable together, or not at all: one WAL round holds them.

    transaction = store.transaction()
    transaction.append(dead_letters, copies)
    transaction.settle(cursor, ranges, Outcome.DEAD_LETTERED)
    ticket = transaction.commit()

Applying the changes is left to the store. The rule: everything is checked before anything changes, so a
commit that raises has changed nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from leveret.storage.cursor import Cursor
from leveret.storage.errors import BadRequest
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.log import APPEND_BYTES_MAX, Log, measure
from leveret.storage.offset_set import Range
from leveret.storage.records import Message


class Target(Protocol):
    """The part of the store that a transaction uses."""

    def prepare(self, log: Log, count: int, *, undoing: bool) -> None:
        """Reserve `count` offsets of a log; raise if nothing can be appended."""

    def apply(self, transaction: Transaction) -> int:
        """Apply a checked transaction under the lock and return its ticket."""


@dataclass(slots=True)
class Transaction:
    """Collects changes until `commit` applies them."""

    _store: Target
    appends: list[tuple[Log, Sequence[Message]]] = field(default_factory=list)
    entries: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Changes of messages in flight."""
    drops: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Settlements of ready or delayed messages."""
    holds: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Leases of ready or delayed messages."""
    offsets: list[Range] = field(default_factory=list)
    """Offsets of the appended messages, one range for each append; filled by `commit`."""
    held: dict[int, tuple[Cursor, bytes]] = field(default_factory=dict)
    """Cursor and lease holder of each append that is leased at once, by the append's index."""
    measured: list[tuple[int, bool]] = field(default_factory=list)
    """Size, and whether all messages are persistent, of each append: see `log.measure`."""
    undoing: bool = False
    """Whether the transaction undoes part of a failed round: then it is allowed although writing fails."""
    _done: bool = False

    def append(self, log: Log, messages: Sequence[Message]) -> None:
        self.appends.append((log, messages))

    def append_held(self, cursor: Cursor, messages: Sequence[Message], *, who: bytes = b"") -> None:
        """Append messages to the cursor's log and lease them at once, hidden until their release."""
        self.held[len(self.appends)] = (cursor, who)
        self.append(cursor.log, messages)

    def settle(
        self, cursor: Cursor, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"", why: bytes = b""
    ) -> None:
        """Settle messages in flight."""
        self.entries.append((cursor, Entry(Kind.SETTLED, ranges, outcome, who, why=why)))

    def give_back(
        self,
        cursor: Cursor,
        ranges: Sequence[Range],
        *,
        not_before_us: int = 0,
        counted: bool = True,
        why: bytes = b"",
    ) -> None:
        """Requeue messages in flight at their place, delayed until `not_before_us`."""
        entry = Entry(Kind.RETURNED, ranges, int(counted), b"", not_before_us, why=why)
        self.entries.append((cursor, entry))

    def release(self, cursor: Cursor, ranges: Sequence[Range]) -> None:
        """Make leased messages ready again, without counting an attempt."""
        self.entries.append((cursor, Entry(Kind.RELEASED, ranges)))

    def drop(
        self, cursor: Cursor, ranges: Sequence[Range], outcome: Outcome, *, who: bytes = b"", why: bytes = b""
    ) -> None:
        """Settle ready or delayed messages, for example expired ones that are dead-lettered."""
        self.drops.append((cursor, Entry(Kind.SETTLED, ranges, outcome, who, why=why)))

    def hold(self, cursor: Cursor, ranges: Sequence[Range], *, who: bytes = b"") -> None:
        """Lease these messages, which must be ready or delayed."""
        self.holds.append((cursor, Entry(Kind.LEASED, ranges, who=who)))

    def commit(self) -> int:
        """Apply the changes and return the ticket under which they become durable."""
        if self._done:
            raise BadRequest("the transaction is already committed", hint="Begin a new one.")
        self._check()
        self._done = True
        return self._store.apply(self)

    def _check(self) -> None:
        counts: dict[int, int] = defaultdict(int)
        self.measured = [measure(messages) for _, messages in self.appends]
        if sum(size for size, _ in self.measured) > APPEND_BYTES_MAX:
            raise BadRequest("a transaction has more than 1 GiB of messages", hint="Commit less at once.")
        for log, messages in self.appends:
            counts[log.id] += len(messages)
            self._store.prepare(log, counts[log.id], undoing=self.undoing)
        for cursor, entry in (*self.entries, *self.drops, *self.holds):
            cursor.check(entry.who, entry.not_before_us, entry.why)
        for cursor, who in self.held.values():
            cursor.check(who)
        for cursor, ranges in _by_cursor(self.entries):
            cursor.progress.check_in_flight(ranges)
        for cursor, entry in self.entries:
            if entry.kind is Kind.RELEASED:
                cursor.progress.check_leased(entry.ranges)
        for cursor, ranges in _by_cursor([*self.drops, *self.holds]):
            cursor.progress.check_waiting(ranges)


def _by_cursor(entries: Sequence[tuple[Cursor, Entry]]) -> Iterable[tuple[Cursor, list[Range]]]:
    """Return the ranges of the entries by cursor: each offset may occur only once in them."""
    ranges: dict[Cursor, list[Range]] = defaultdict(list)
    for cursor, entry in entries:
        ranges[cursor].extend(entry.ranges)
    return ranges.items()
