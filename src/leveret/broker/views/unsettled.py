"""The unsettled map of a queue or of a group's partition: where its unsettled messages are, and who has them.

The map divides a span of offsets into cells, each with the number of its messages in each state. Lists name
the oldest deliveries, the soonest delays, the leases of queries and the rows of batches under way. A view is
a dictionary; offsets are numbers, times milliseconds since 1970. The rule: counts come from the sets of the
cursor, and every list has a limit, so a map is cheap however many messages there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.broker.queries.staged_batch_notes import StageNote
from leveret.broker.views.readers import (
    STATES,
    Reader,
    Steps,
    holder_of,
    leases_of,
    oldest_deliveries,
    reason_of,
)

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.unacked import Run
    from leveret.storage.offset_set import OffsetSet

CELLS: Final = 64
CELLS_MAX: Final = 512
LIMIT: Final = 20
LIMIT_MAX: Final = 200
_CELLS_AT_ONCE: Final = 32
"""Number of cells that are counted in one step: up to 40 us each."""


def unsettled_map(
    broker: Broker,
    reader: Reader,
    *,
    cells: int = CELLS,
    limit: int = LIMIT,
    start: int | None = None,
    stop: int | None = None,
) -> Steps[dict[str, object]]:
    """Return the map of the offsets [start, stop), by default from the lowest unsettled one to the end."""
    reader.check()
    cursor, queue = reader.cursor, reader.queue
    now_us = broker.now_us()
    end = queue.log.next
    stop = end if stop is None else min(stop, end)
    start = min(cursor.settled.low if start is None else start, stop)
    deliveries = yield from oldest_deliveries(broker, reader, limit)
    counted = yield from _cells(reader, start, stop, cells)
    hidden = reader.hidden()
    return {
        "vhost": queue.vhost.name,
        "queue": queue.name,
        "group": reader.group,
        "groups": list(reader.groups),
        "now_ms": now_us // 1000,
        "low": cursor.settled.low,
        "highest": cursor.settled.highest_taken,
        "end": end,
        "holes": cursor.settled.hole_count(),
        "totals": reader.counts(cursor.settled.low, end, hidden),
        "start": start,
        "stop": stop,
        "cells": counted,
        "in_flight": [item for run in deliveries for item in _delivery(reader, run, now_us)][:limit],
        "delayed": _delays(reader, limit),
        "leased": list(islice(_leases(reader), limit)),
        "hidden": list(islice(_staged_rows(reader), limit)),
    }


# cells


def _cells(reader: Reader, start: int, stop: int, cells: int) -> Steps[list[dict[str, object]]]:
    """Return the cells; neighbours whose messages are all in one state are one cell."""
    if not cells:
        return []
    size = max(1, -(-(stop - start) // cells))
    found: list[dict[str, object]] = []
    hidden = reader.hidden()
    for number, first in enumerate(range(start, stop, size)):
        cell = _cell(reader, first, min(stop, first + size), hidden)
        before = found[-1] if found else cell
        if found and len(cell) == len(before) == _UNIFORM and cell.keys() == before.keys():
            state = next(reversed(cell))
            before["stop"] = cell["stop"]
            before[state] = int(before[state]) + int(cell[state])  # type: ignore[call-overload]
        else:
            found.append(cell)
        if number % _CELLS_AT_ONCE == _CELLS_AT_ONCE - 1:
            yield
            reader.check()
            hidden = reader.hidden()
    return found


_UNIFORM: Final = 3
"""Number of fields of a cell whose messages are all in one state: start, stop and that state."""


def _cell(reader: Reader, start: int, stop: int, hidden: OffsetSet) -> dict[str, object]:
    counts = reader.counts(start, stop, hidden)
    return {"start": start, "stop": stop, **{state: counts[state] for state in STATES if counts[state]}}


# lists


def _delivery(reader: Reader, run: Run[Consumer], now_us: int) -> Iterator[dict[str, object]]:
    """Yield a delivery once for each number of earlier returns of its messages."""
    for returns, ranges in reader.cursor.returns.by_count([run.offsets]).items():
        for first, after in ranges:
            yield {
                "first": first,
                "last": after - 1,
                "messages": after - first,
                "returns": returns,
                "since_ms": run.since_us // 1000,
                "age_ms": max(0, now_us - run.since_us) // 1000,
                "holder": holder_of(run.holder)._asdict(),
            }


def _delays(reader: Reader, limit: int) -> list[dict[str, object]]:
    cursor = reader.cursor
    return [
        {
            "offset": offset,
            "due_ms": due_us // 1000,
            "returns": cursor.returns.count(offset),
            "reason": reason_of(cursor, offset),
        }
        for offset, due_us in islice(cursor.waiting.delays(), limit)
    ]


def _leases(reader: Reader) -> Iterator[dict[str, object]]:
    for query, lease in leases_of(reader):
        yield {
            "query": query.name,
            "owner": query.owner,
            "epoch": query.epoch,
            "lease": lease.number,
            "first": lease.ranges[0][0] if lease.ranges else None,
            "last": lease.ranges[-1][1] - 1 if lease.ranges else None,
            "messages": lease.messages,
            "seen_ms": query.seen_us // 1000,
        }


def _staged_rows(reader: Reader) -> Iterator[dict[str, object]]:
    """Yield the rows of batches under way: nobody can read them until their batch is committed."""
    stages = reader.vhost.stages
    for note in () if stages is None else stages.notes():
        if not isinstance(note, StageNote):
            continue
        for log_id, first, after in note.places:
            if log_id == reader.queue.log.id:
                yield {
                    "query": note.query,
                    "owner": note.owner,
                    "batch": note.batch,
                    "first": first,
                    "last": after - 1,
                    "messages": after - first,
                    "expires_ms": note.due_us // 1000,
                }
