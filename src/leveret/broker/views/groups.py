"""Views of consumer groups, for HTTP and the command line.

This module decides which figures a group's view has and what they are called. A view is a dictionary, because
the HTTP API sends it as JSON. Ranges are half-open pairs, times milliseconds since 1970. The rule: a view
is cheap however large the group is. Lists have a limit, counts come from the sets of the store, and only a
limited number of the members' oldest deliveries is scanned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.canonical import to_text
from leveret.broker.errors import NotFound
from leveret.broker.groups.group import DEAD_LETTERS
from leveret.broker.groups.settings import ORDERLY
from leveret.broker.views.readers import outstanding, reason_of

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.groups.group import Group
    from leveret.broker.groups.member import Member
    from leveret.broker.groups.partition import Partition
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.unacked import Run
    from leveret.storage.cursor import Cursor

LIMIT = 20
"""Default number of ranges, deliveries or delays that are listed of each partition."""
LIMIT_MAX = 200
CELLS_MAX = 256
_RUNS_MAX = 4_000
"""Number of runs of deliveries that are scanned, of all members together: 5 us each."""


class GroupView(NamedTuple):
    """A group, and an iterator over its partitions; each partition is described when it is reached."""

    group: dict[str, object]
    partitions: Iterator[dict[str, object]]


_BY_NAME: Final = attrgetter("name", "subject")


def each_group(broker: Broker, vhosts: Collection[str]) -> Iterator[dict[str, object]]:
    """Iterate over the present groups by name; skip a group that is deleted before it is reached."""
    groups = [group for vhost in vhosts for group in sorted(broker.vhosts[vhost].groups, key=_BY_NAME)]
    return (_summary(group) for group in groups if not group.deleted)


def groups_named(
    broker: Broker, vhost: str, name: str, *, subject: str | None = None, limit: int = LIMIT, cells: int = 0
) -> list[GroupView]:
    """Return the groups of this name, or only the one that reads `subject`; raise `NotFound` without any.

    Of each partition, `limit` ranges, deliveries and delays are listed, and a window of `cells` cells.
    """
    groups = broker.vhosts[vhost].groups
    if subject is None:
        named = [group for group in groups if group.name == name]
    else:
        named = [groups.get(subject, name)]
    if not named:
        raise NotFound(f"no group '{name}' in vhost '{vhost}'")
    return [GroupView(_whole(group), _partitions(group, limit=limit, cells=cells)) for group in named]


def one_group(broker: Broker, vhost: str, subject: str, name: str) -> dict[str, object]:
    """Return a group with its settings, without its members and partitions."""
    return _with_settings(broker.vhosts[vhost].groups.get(subject, name))


def _summary(group: Group) -> dict[str, object]:
    """Return the figures of a group in a list of groups."""
    partitions = group.partitions.values()
    letters = group.host.queues.get(DEAD_LETTERS + group.name)
    return {
        "vhost": group.vhost.name,
        "subject": group.subject,
        "name": group.name,
        "owner": group.owner,
        "mode": group.settings.mode,
        "paused": group.settings.paused,
        "partitions": len(group.partitions),
        "members": len(group.members),
        "lag": group.lag,
        "in_flight": group.in_flight,
        "delayed": sum(partition.cursor.waiting.delayed for partition in partitions),
        "stale_acks": group.stale_acks,
        "dead_letters": 0 if letters is None else letters.ready + letters.unacked,
    }


def _with_settings(group: Group) -> dict[str, object]:
    return {**_summary(group), "settings": group.settings.shown()}


def _whole(group: Group) -> dict[str, object]:
    """Return a group with its settings and members; `_partitions` describes its partitions."""
    view = _with_settings(group)
    del view["partitions"]
    members = [_member(group, member) for member in _seated(group)]
    return {**view, "now_ms": group.broker.now_us() // 1000, "members": members}


def _partitions(group: Group, *, limit: int, cells: int) -> Iterator[dict[str, object]]:
    """Yield the progress of each partition, with a window of `cells` cells unless that is 0.

    Each partition is described when it is reached, but deliveries of members are as of the first one.
    """
    for partition, holding in _holdings(group, limit).items():
        view = _partition(partition, limit=limit) | _held(partition, holding)
        if cells:
            view["window"] = _window(partition, cells)
        yield view


# members


def _seated(group: Group) -> list[Member]:
    """Return the members of a group, then former members with unacked deliveries."""
    partitions = group.partitions.values()
    seated = {member: None for partition in partitions for member in partition.member_consumers}
    leaving = [member for member in seated if member not in group.members and member.outstanding]
    return [*group.members, *leaving]


def _member(group: Group, member: Member) -> dict[str, object]:
    owned = [name for name, partition in group.partitions.items() if partition.owner is member]
    return {
        "id": member.id,
        "since_ms": member.since_us // 1000,
        "prefetch": member.prefetch,
        "in_flight": member.outstanding,
        "partitions": owned if group.settings.mode == ORDERLY else [],
        "leaving": member not in group.members,
    }


@dataclass(slots=True)
class _Holding:
    """The deliveries of one partition that members have not settled."""

    lowest: int | None
    """The lowest offset in flight."""
    oldest: list[Run[Consumer]] = field(default_factory=list)
    stuck: Run[Consumer] | None = None
    """The delivery of the lowest offset in flight."""


def _holdings(group: Group, limit: int) -> dict[Partition, _Holding]:
    """Return the oldest unacked deliveries by partition, from one scan of the members' channels."""
    partitions = group.partitions.values()
    holdings = {partition: _Holding(partition.cursor.in_flight.first) for partition in partitions}
    by_seat = {
        seat: holding
        for partition, holding in holdings.items()
        for seat in partition.member_consumers.values()
    }
    left = dict.fromkeys(by_seat, limit)
    channels = {seat.channel: None for seat in by_seat}
    share = max(limit, _RUNS_MAX // max(1, len(channels)))
    for channel in channels:
        for run in islice(outstanding(channel), share):
            seat = run.holder
            holding = by_seat.get(seat)
            # The oldest deliveries of each seat come first.
            if holding is not None and left[seat]:
                left[seat] -= 1
                holding.oldest.append(run)
    for partition, holding in holdings.items():
        if holding.lowest is not None:
            holding.stuck = partition.delivery_of(holding.lowest)
        holding.oldest = sorted(holding.oldest, key=lambda run: run.since_us)[:limit]
    return holdings


# partitions


def _partition(partition: Partition, *, limit: int) -> dict[str, object]:
    cursor, stream = partition.cursor, partition.stream
    end, settled = stream.readable(), cursor.settled
    first = stream.cursor.waiting.first_ready()
    delays = list(islice(cursor.waiting.delays(), limit)) if cursor.waiting.delayed else []
    return {
        "stream": partition.name,
        "owner": None if partition.owner is None else partition.owner.id,
        "first": end if first is None else min(first, end),
        "end": end,
        "low": settled.low,
        "watermark": partition.watermark,
        "highest": settled.highest_taken,
        "lag": partition.lag,
        "settled_above": settled.above_low,
        "sent_back": cursor.returns.postponed,
        "retired_below": settled.retired_below,
        "holes": {
            "count": settled.hole_count(),
            "lowest": [list(hole) for hole in islice(settled.holes(), limit)],
        },
        "delayed": {
            "count": cursor.waiting.delayed,
            "next_due_ms": delays[0][1] // 1000 if delays else None,
            "soonest": [_delay(partition, offset, due_us) for offset, due_us in delays],
        },
    }


def _delay(partition: Partition, offset: int, due_us: int) -> dict[str, object]:
    return {"offset": offset, "due_ms": due_us // 1000, **_attempts(partition, offset, under_way=0)}


def _held(partition: Partition, holding: _Holding) -> dict[str, object]:
    return {
        "in_flight": {
            "count": len(partition.cursor.in_flight),
            "oldest": [_run(run) for run in holding.oldest],
        },
        "stuck": None if holding.lowest is None else _stuck(partition, holding.lowest, holding.stuck),
    }


def _run(run: Run[Consumer]) -> dict[str, object]:
    return {"range": list(run.offsets), **_holder(run)}


def _stuck(partition: Partition, offset: int, run: Run[Consumer] | None) -> dict[str, object]:
    """Return the lowest offset in flight with its member; for a moment after a crash there is none."""
    holder: dict[str, object] = {"member": None, "since_ms": None} if run is None else _holder(run)
    return {"offset": offset, **holder, **_attempts(partition, offset, under_way=1)}


def _holder(run: Run[Consumer]) -> dict[str, object]:
    return {"member": to_text(run.holder.label), "since_ms": run.since_us // 1000}


def _attempts(partition: Partition, offset: int, *, under_way: int) -> dict[str, object]:
    """Return the number of attempts, including one under way, and the error of the last one."""
    cursor = partition.cursor
    return {"attempts": cursor.returns.count(offset) + under_way, "error": reason_of(cursor, offset)}


def _window(partition: Partition, cells: int) -> dict[str, object]:
    """Return counts for the offsets from the lowest unsettled to about the highest delivered, in cells.

    Each cell has the numbers of its settled, in-flight, delayed and ready offsets.
    """
    settled = partition.cursor.settled
    start = settled.low
    stop = max(start, min(partition.stream.readable(), max(settled.highest_taken + 1, start + cells)))
    size = max(1, -(-(stop - start) // cells))
    firsts = range(start, stop, size)
    return {
        "start": start,
        "stop": stop,
        "size": size,
        "cells": [_cell(partition.cursor, first, min(stop, first + size)) for first in firsts],
    }


def _cell(cursor: Cursor, start: int, stop: int) -> list[int]:
    unsettled = cursor.settled.unsettled_count(start, stop)
    in_flight, delayed = cursor.in_flight.count(start, stop), cursor.waiting.delayed_count(start, stop)
    return [stop - start - unsettled, in_flight, delayed, unsettled - in_flight - delayed]
