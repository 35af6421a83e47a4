"""Reads all objects of one kind for a page of metrics, in pieces, and adds up their figures.

Owns the pauses and the sums. What an object's figures are is left to `broker.views.metrics`, what they are
called to `metric_tables`. The rule: a piece takes about 1 ms, and between two pieces the event loop serves
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from leveret.broker.broker import Broker
from leveret.broker.views import metrics as views

Numbers: TypeAlias = tuple[int, ...]
_PIECE: Final = 100
"""Objects read without a pause: a queue takes 8 µs."""
_PAUSE_S: Final = 0.001
"""A pause of the length of a piece. With shorter ones the thread that syncs would wait for the interpreter's
lock during a whole scrape, 5 ms each time, and every confirm with it."""


class _Source(NamedTuple):
    """The names of the figures of one kind of objects, and a function that begins a walk over them."""

    fields: tuple[str, ...]
    walk: Callable[[Broker, Collection[str] | None], views.Walk[Any]]


def _without_deleted(rows: Iterator[views.Row[Any]]) -> views.Walk[Any]:
    return views.Walk({}, rows)


_SOURCES: Final[Mapping[str, _Source]] = {
    "queue": _Source(views.QueueFigures._fields, views.queue_rows),
    "exchange": _Source(views.ExchangeFigures._fields, views.exchange_rows),
    "channel": _Source(
        views.ChannelFigures._fields, lambda broker, _: _without_deleted(views.channel_rows(broker))
    ),
    "connection": _Source(
        views.ConnectionFigures._fields, lambda broker, _: _without_deleted(views.connection_rows(broker))
    ),
    "group": _Source(
        views.GroupFigures._fields, lambda broker, vhosts: _without_deleted(views.group_rows(broker, vhosts))
    ),
    "query": _Source(
        views.QueryFigures._fields, lambda broker, vhosts: _without_deleted(views.query_rows(broker, vhosts))
    ),
}
KINDS: Final = tuple(_SOURCES)


@dataclass(slots=True)
class Objects:
    """All objects of one kind: `queues.total("ready")`, and their rows if these are kept."""

    fields: tuple[str, ...]
    count: int = 0
    rows: list[views.Row[Any]] = field(default_factory=list)
    _sums: dict[str, Numbers] = field(default_factory=dict)
    """By type of queue or exchange."""
    _maxima: Numbers = ()

    def total(self, name: str) -> int:
        """Return the sum of a figure, with what deleted objects had counted."""
        column = self.fields.index(name)
        return sum(numbers[column] for numbers in self._sums.values())

    def total_of(self, kind: str, name: str) -> int:
        """Return the sum of a figure over the queues of one type."""
        numbers = self._sums.get(kind)
        return 0 if numbers is None else numbers[self.fields.index(name)]

    def most(self, name: str) -> int:
        return self._maxima[self.fields.index(name)] if self._maxima else 0

    def add(self, piece: Sequence[views.Row[Any]]) -> None:
        self.count += len(piece)
        figures = [row.figures for row in piece]
        self._maxima = tuple(map(max, zip(self._maxima or figures[0], *figures, strict=True)))
        for kind in {row.kind for row in piece}:
            self.add_figures(kind, (row.figures for row in piece if row.kind == kind))

    def add_figures(self, kind: str, figures: Iterable[Numbers]) -> None:
        before = self._sums.get(kind, (0,) * len(self.fields))
        self._sums[kind] = tuple(map(sum, zip(before, *figures, strict=True)))


async def read(
    kind: str, broker: Broker, vhosts: Collection[str] | None = None, *, keeps_rows: bool
) -> Objects:
    """Return the objects of one kind: queue, exchange, channel, connection, group or query."""
    source = _SOURCES[kind]
    objects, walk = Objects(source.fields), source.walk(broker, vhosts)
    for type_, figures in walk.deleted.items():
        objects.add_figures(type_, [figures])
    while piece := list(islice(walk.rows, _PIECE)):
        objects.add(piece)
        if keeps_rows:
            objects.rows += piece
        await pause()
    return objects


async def pause() -> None:
    """Let others run: turns of the broker, requests, the thread that syncs."""
    await asyncio.sleep(_PAUSE_S)
