"""What is written down of batches: the parts of their stages, and the last batch that was committed.

`stages` writes these notes and reads them at the next start. `docs/formats/notes.md` describes them.
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
    """A part of a stage: rows that were appended together."""

    query: str
    batch: int
    stage: str
    part: int
    rows: int
    places: list[tuple[int, int, int]]
    """For each queue: the id of its log, and the first offset and the one behind the last."""
    due_us: int
    owner: str = ownership.NOBODY
    """The user who wrote first with the name of the query."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("stage", self.query, self.batch, self.stage, self.part)

    @property
    def name(self) -> StageName:
        return StageName(self.query, self.batch, self.stage)


class CommitNote(msgspec.Struct, frozen=True, tag="commit", array_like=True):
    """The last batch of a query that was committed."""

    query: str
    batch: int
    number: int
    """Grows with every commit of any query: the lowest is forgotten first."""
    owner: str = ownership.NOBODY
    """As in `StageNote`."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("commit", self.query)
