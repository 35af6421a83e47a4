"""Several changes that become durable together, or not at all: one WAL round holds them.

    transaction = store.transaction()
    transaction.append(dead_letters, copies)
    transaction.settle(cursor, ranges, Outcome.DEAD_LETTERED)
    ticket = transaction.commit()

Everything is checked before anything changes: a commit that raises has changed nothing.
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
    """What a transaction needs of the store."""

    def prepare(self, log: Log, count: int, *, undoing: bool) -> None:
        """Makes sure that so many offsets can be issued; raises when nothing can be appended."""

    def apply(self, transaction: Transaction) -> int:
        """Applies a checked transaction under the lock; returns its ticket."""


@dataclass(slots=True)
class Transaction:
    """Collects changes; `commit` applies them. `offsets` are those of the appends, in their order."""

    _store: Target
    appends: list[tuple[Log, Sequence[Message]]] = field(default_factory=list)
    entries: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Of what is in flight."""
    drops: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Of what waits to be delivered."""
    holds: list[tuple[Cursor, Entry]] = field(default_factory=list)
    """Of what waits, too."""
    offsets: list[Range] = field(default_factory=list)
    held: dict[int, tuple[Cursor, bytes]] = field(default_factory=dict)
    """Appends, by their position, that nobody sees before they are released: the cursor, and who has them."""
    measured: list[tuple[int, bool]] = field(default_factory=list)
    """Of the appends: see `log.measure`."""
    undoing: bool = False
    """It takes back a part of a round that could not be written, and is not refused for the same reason."""
    _done: bool = False

    def append(self, log: Log, messages: Sequence[Message]) -> None:
        self.appends.append((log, messages))

    def append_held(self, cursor: Cursor, messages: Sequence[Message], *, who: bytes = b"") -> None:
        """Appends to the cursor's log what it leases at once: nobody sees it before it is released."""
        self.held[len(self.appends)] = (cursor, who)
        self.append(cursor.log, messages)

    def settle(
        self,
        cursor: Cursor,
        ranges: Sequence[Range],
        outcome: Outcome,
        *,
        who: bytes = b"",
        why: bytes = b"",
    ) -> None:
        """What was taken is done with."""
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
        """What was taken goes back to its place."""
        entry = Entry(Kind.RETURNED, ranges, int(counted), b"", not_before_us, why=why)
        self.entries.append((cursor, entry))

    def release(self, cursor: Cursor, ranges: Sequence[Range]) -> None:
        """What was leased is ready, as if nobody had had it."""
        self.entries.append((cursor, Entry(Kind.RELEASED, ranges)))

    def drop(
        self,
        cursor: Cursor,
        ranges: Sequence[Range],
        outcome: Outcome,
        *,
        who: bytes = b"",
        why: bytes = b"",
    ) -> None:
        """What nobody has taken is settled: an expired message, say, whose copy goes to the dead letters."""
        self.drops.append((cursor, Entry(Kind.SETTLED, ranges, outcome, who, why=why)))

    def hold(self, cursor: Cursor, ranges: Sequence[Range], *, who: bytes = b"") -> None:
        """What nobody has taken is leased: exactly these."""
        self.holds.append((cursor, Entry(Kind.LEASED, ranges, who=who)))

    def commit(self) -> int:
        """Applies everything; returns the ticket under which it will be durable."""
        if self._done:
            raise BadRequest("a transaction is committed twice", hint="Begin a new one.")
        self._check()
        self._done = True
        return self._store.apply(self)

    def _check(self) -> None:
        counts: dict[int, int] = defaultdict(int)
        self.measured = [measure(messages) for _, messages in self.appends]
        if sum(size for size, _ in self.measured) > APPEND_BYTES_MAX:
            raise BadRequest("a transaction of more than 1 GiB", hint="Commit less at once.")
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
    """All ranges that a transaction names for a cursor: each offset may be named once."""
    ranges: dict[Cursor, list[Range]] = defaultdict(list)
    for cursor, entry in entries:
        ranges[cursor].extend(entry.ranges)
    return ranges.items()
