"""The notes of queries over a queue, and the present state of each query.

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
    """Number of earlier returns, by offset, of messages that were returned before."""
    expired: bool = False
    """Whether the messages returned to the queue because the query sent no request in time."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("lease", self.query, self.number)

    @property
    def messages(self) -> int:
        return total(self.ranges)


class FloorNote(msgspec.Struct, frozen=True, tag="floor", array_like=True):
    """The highest epoch and lease number of forgotten queries; new queries begin above both."""

    epoch: int = 0
    lease: int = 0

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("floor",)


Note: TypeAlias = QueryNote | LeaseNote | FloorNote


@dataclass(slots=True)
class Query:
    """The present state of one query over a queue."""

    name: str
    epoch: int = 0
    settled: int = 0
    """The number up to which leases are settled."""
    last: int = 0
    timeout_us: int = 0
    void: frozenset[int] = frozenset()
    """Numbers of leases that expired before any run worked on them; later leases hold their messages."""
    began: int = 0
    """The number above which the query's leases begin; lower numbers belong to a query that was ended."""
    owner: str = ownership.NOBODY
    """The user who opened the query first."""
    leases: dict[int, LeaseNote] = field(default_factory=dict)
    expired: dict[int, LeaseNote] = field(default_factory=dict)
    """Expired leases by number: their messages went back, but the query may still ask for them."""
    seen_us: int = 0
    runs: Runs = field(default_factory=Runs)

    def note(self) -> QueryNote:
        void = sorted(number for number in self.void if number > self.settled)
        return QueryNote(
            self.name, self.epoch, self.settled, self.last, self.timeout_us, void, self.began, self.owner
        )

    @property
    def messages(self) -> int:
        return sum(lease.messages for lease in self.leases.values())

    @property
    def label(self) -> bytes:
        return b"query " + self.name.encode()
