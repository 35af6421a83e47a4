"""What is written down of queries over a queue, and what the broker knows of each at present.

`leases` writes these notes and reads them at the next start. `docs/formats/notes.md` describes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from leveret.broker.access import ownership
from leveret.broker.queries.fencing import Runs
from leveret.storage.offset_ranges import total
from leveret.storage.offset_set import Range


class QueryNote(msgspec.Struct, frozen=True, tag="query", array_like=True):
    name: str
    epoch: int
    settled: int
    last: int
    timeout_us: int
    void: list[int] = []
    began: int = 0
    owner: str = ownership.NOBODY

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("query", self.name)


class LeaseNote(msgspec.Struct, frozen=True, tag="lease", array_like=True):
    query: str
    number: int
    ranges: list[Range]
    redelivered_below: int
    counts: dict[int, int]
    """How often some of them had come back before."""
    expired: bool = False
    """They went back to the queue, because nobody heard of the query."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("lease", self.query, self.number)

    @property
    def messages(self) -> int:
        return total(self.ranges)


class FloorNote(msgspec.Struct, frozen=True, tag="floor", array_like=True):
    """Above this are the runs and leases of queries that begin: those of forgotten ones never come again."""

    epoch: int = 0
    lease: int = 0

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("floor",)


Note: TypeAlias = QueryNote | LeaseNote | FloorNote


@dataclass(slots=True)
class Query:
    """One query over a queue, as the broker sees it now."""

    name: str
    epoch: int = 0
    settled: int = 0
    """Leases up to this number are settled."""
    last: int = 0
    timeout_us: int = 0
    void: frozenset[int] = frozenset()
    """Leases that expired before anybody worked on them: their messages are in later ones."""
    began: int = 0
    """Its leases are above this: one up to this is of a query that was ended."""
    owner: str = ownership.NOBODY
    """The user who opened it first."""
    leases: dict[int, LeaseNote] = field(default_factory=dict)
    expired: dict[int, LeaseNote] = field(default_factory=dict)
    """Those whose messages went back, and which the query may still come back for."""
    seen_us: int = 0
    runs: Runs = field(default_factory=Runs)

    def note(self) -> QueryNote:
        void = sorted(number for number in self.void if number > self.settled)
        return QueryNote(
            self.name, self.epoch, self.settled, self.last, self.timeout_us, void, self.began, self.owner
        )

    @property
    def messages(self) -> int:
        """What it holds."""
        return sum(lease.messages for lease in self.leases.values())

    @property
    def label(self) -> bytes:
        return b"query " + self.name.encode()
