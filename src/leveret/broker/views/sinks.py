"""Views of sinks: Spark queries that write batches, with their staged rows and committed batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.queries.staged_batch_notes import StageNote

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queries.staged_batch_notes import CommitNote
    from leveret.broker.vhosts.vhost import VirtualHost


class SinkView(NamedTuple):
    vhost: str
    name: str
    """Name of the query."""
    owner: str
    committed: int | None
    """Number of the last committed batch, or None."""
    staged: int
    """Number of rows that are hidden because their batch is not committed."""
    due_us: int | None
    """Time at which the first staged rows expire, or None."""


def each_sink(broker: Broker, vhosts: Collection[str]) -> Iterator[SinkView]:
    return (sink for vhost in vhosts for sink in _sinks(broker.vhosts[vhost]))


def one_sink(broker: Broker, vhost: str, name: str) -> SinkView | None:
    return next((sink for sink in _sinks(broker.vhosts[vhost]) if sink.name == name), None)


def _sinks(vhost: VirtualHost) -> Iterable[SinkView]:
    sinks: dict[str, SinkView] = {}
    for note in () if vhost.stages is None else vhost.stages.notes():
        sink = sinks.get(note.query) or SinkView(vhost.name, note.query, note.owner, None, 0, None)
        sinks[note.query] = _with_note(sink, note)
    return sinks.values()


def _with_note(sink: SinkView, note: StageNote | CommitNote) -> SinkView:
    if not isinstance(note, StageNote):
        return sink._replace(committed=note.batch)
    due_us = note.due_us if sink.due_us is None else min(sink.due_us, note.due_us)
    return sink._replace(staged=sink.staged + note.rows, due_us=due_us)
