"""The notes of staged batches: the parts of their stages, and the last committed batch of each query.

`staged_batches` writes these notes and reads them at the next start. `docs/formats/notes.md` describes them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from leveret.broker.access import ownership


class StageName(NamedTuple):
    query: str
    batch: int
    stage: str


class StageNote(msgspec.Struct, frozen=True, tag="stage", array_like=True):
    """A part of a stage: rows that were appended in one transaction."""

    query: str
    batch: int
    stage: str
    part: int
    rows: int
    places: list[tuple[int, int, int]]
    """For each queue: the id of its log, the first offset, and the offset behind the last row."""
    due_us: int
    owner: str = ownership.NOBODY
    """The user who first wrote with the name of the query."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("stage", self.query, self.batch, self.stage, self.part)

    @property
    def name(self) -> StageName:
        return StageName(self.query, self.batch, self.stage)


class CommitNote(msgspec.Struct, frozen=True, tag="commit", array_like=True):
    """The last committed batch of a query."""

    query: str
    batch: int
    number: int
    """Number of the commit, counted over all queries; the query with the lowest is forgotten first."""
    owner: str = ownership.NOBODY
    """As in `StageNote`."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("commit", self.query)
