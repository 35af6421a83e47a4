"""Consumer groups: what operators see of them, over HTTP and on the command line.

Owns which figures there are and what they are called. A group is a dictionary, because it is shown as it is;
how is left to whoever asks. Ranges are half-open pairs, times milliseconds since 1970. The rule is that a
look costs little whatever there is to be seen: lists have a limit, what is counted is counted by the sets of
the store, and of what members hold only so much is gone through to find out who has what, the oldest of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.canonical import to_text
from leveret.broker.errors import NotFound
from leveret.broker.groups.group import DEAD_LETTERS
from leveret.broker.groups.settings import ORDERLY
from leveret.broker.views.selection import EVERYTHING, Listing, Selection, sorted_page

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.groups.group import Group
    from leveret.broker.groups.member import Member
    from leveret.broker.groups.partition import Partition
    from leveret.broker.queues.consumer import Consumer, Receiver
    from leveret.broker.sessions.unacked import Run
    from leveret.storage.cursor import Cursor

LIMIT = 20
"""How many ranges, deliveries or delays of a partition are listed."""
LIMIT_MAX = 200
CELLS_MAX = 256
_RUNS_MAX = 4_000
"""How many runs of deliveries are looked at, of all members: 5 us each."""


class GroupView(NamedTuple):
    """A group as a whole; its partitions come one by one, each as it is when its turn comes."""

    group: dict[str, object]
    partitions: Iterator[dict[str, object]]


_SORTS: Final[dict[str, Callable[[Group], Any]]] = {
    "name": attrgetter("vhost.name", "name", "subject"),
    "subject": attrgetter("subject"),
    "lag": attrgetter("lag"),
    "members": lambda group: len(group.members),
    "in_flight": attrgetter("in_flight"),
}


def list_groups(broker: Broker, selection: Selection = EVERYTHING) -> Listing[dict[str, object]]:
    found = (group for vhost in selection.vhosts_of(broker) for group in vhost.groups)
    return sorted_page(found, selection, keys=_SORTS, describe=_summary)


def each_group(broker: Broker, vhosts: Collection[str]) -> Iterator[dict[str, object]]:
    """The groups that there are now, by name, each as it is when its turn comes; not those that go before."""
    groups = [group for vhost in vhosts for group in sorted(broker.vhosts[vhost].groups, key=_SORTS["name"])]
    return (_summary(group) for group in groups if not group.deleted)


def groups_named(
    broker: Broker, vhost: str, name: str, *, subject: str | None = None, limit: int = LIMIT, cells: int = 0
) -> list[GroupView]:
    """The groups of this name, or the one that reads `subject`; `NotFound` if there is none.

    Of each partition `limit` ranges, deliveries and delays are listed, with a picture of so many `cells`.
    """
    groups = broker.vhosts[vhost].groups
    found = [each for each in groups if each.name == name] if subject is None else [groups.get(subject, name)]
    if not found:
        raise NotFound(f"no group '{name}' in vhost '{vhost}'")
    return [GroupView(_whole(each), _partitions(each, limit=limit, cells=cells)) for each in found]


def one_group(broker: Broker, vhost: str, subject: str, name: str) -> dict[str, object]:
    """A group with its settings, without its members and partitions."""
    return _with_settings(broker.vhosts[vhost].groups.get(subject, name))


def _summary(group: Group) -> dict[str, object]:
    """One line of a list: what it is, and how it goes."""
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
        "delayed": sum(each.cursor.waiting.delayed for each in partitions),
        "stale_acks": group.stale_acks,
        "dead_letters": 0 if letters is None else letters.ready + letters.unacked,
    }


def _with_settings(group: Group) -> dict[str, object]:
    return {**_summary(group), "settings": group.settings.shown()}


def _whole(group: Group) -> dict[str, object]:
    """The same with its members; its partitions come one by one, from `_partitions`."""
    found = _with_settings(group)
    del found["partitions"]
    members = [_member(group, each) for each in _seated(group)]
    return {**found, "now_ms": group.broker.now_us() // 1000, "members": members}


def _partitions(group: Group, *, limit: int, cells: int) -> Iterator[dict[str, object]]:
    """How far it has come in each partition, and what keeps it; with a picture of so many `cells`, if any.

    Each is as it is when its turn comes, but for who holds what: that is as of the first.
    """
    holdings = _holdings(group, limit)
    for partition, holding in holdings.items():
        found = _partition(partition, limit=limit) | _held(partition, holding)
        if cells:
            found["window"] = _window(partition, cells)
        yield found


# members


def _seated(group: Group) -> list[Member]:
    """Those that are there, and behind them those that have left and still hold something."""
    known = {each: None for partition in group.partitions.values() for each in partition.member_consumers}
    left = [each for each in known if each not in group.members and each.outstanding]
    return [*group.members, *left]


def _member(group: Group, member: Member) -> dict[str, object]:
    owned = [name for name, each in group.partitions.items() if each.owner is member]
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
    """What members hold of one partition: the oldest of it, and whoever has the lowest offset."""

    lowest: int | None
    oldest: list[Run[Consumer]] = field(default_factory=list)
    stuck: Run[Consumer] | None = None


def _holdings(group: Group, limit: int) -> dict[Partition, _Holding]:
    """One pass over what its members' channels hold, or the oldest part of it."""
    found = {each: _Holding(each.cursor.in_flight.first) for each in group.partitions.values()}
    by_seat = {seat: holding for each, holding in found.items() for seat in each.member_consumers.values()}
    left = dict.fromkeys(by_seat, limit)
    channels = {seat.channel: None for seat in by_seat}
    share = max(limit, _RUNS_MAX // max(1, len(channels)))
    for channel in channels:
        for run in islice(_outstanding(channel), share):
            seat = run.holder
            holding = by_seat.get(seat)
            if holding is None:
                continue
            if left[seat]:  # of each the oldest come first
                left[seat] -= 1
                holding.oldest.append(run)
    for partition, holding in found.items():
        if holding.lowest is not None:
            holding.stuck = partition.delivery_of(holding.lowest)
        holding.oldest = sorted(holding.oldest, key=lambda run: run.since_us)[:limit]
    return found


def _outstanding(channel: Receiver) -> Iterator[Run[Consumer]]:
    """What it holds, also if a transaction is about to settle it."""
    buffered = () if channel.transaction is None else channel.transaction.settled()
    return chain(channel.unacked, buffered)


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
            "lowest": [list(each) for each in islice(settled.holes(), limit)],
        },
        "delayed": {
            "count": cursor.waiting.delayed,
            "next_due_ms": delays[0][1] // 1000 if delays else None,
            "soonest": [_delay(partition, offset, due_us) for offset, due_us in delays],
        },
    }


def _delay(partition: Partition, offset: int, due_us: int) -> dict[str, object]:
    return {"offset": offset, "due_ms": due_us // 1000, **_tries(partition, offset, now=0)}


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
    """The lowest offset in flight, and who has it; nobody, for a moment, after a crash."""
    holder: dict[str, object] = {"member": None, "since_ms": None} if run is None else _holder(run)
    return {"offset": offset, **holder, **_tries(partition, offset, now=1)}


def _holder(run: Run[Consumer]) -> dict[str, object]:
    return {"member": to_text(run.holder.label), "since_ms": run.since_us // 1000}


def _tries(partition: Partition, offset: int, *, now: int) -> dict[str, object]:
    """How often it was tried, with the try that is under way, and what went wrong the last time."""
    error = partition.cursor.returns.reason(offset)
    return {
        "attempts": partition.cursor.returns.count(offset) + now,
        "error": None if error is None else to_text(error),
    }


def _window(partition: Partition, cells: int) -> dict[str, object]:
    """From the lowest unsettled offset to the highest that was handed out, or a little further.

    A cell is how many of its offsets are settled, in flight, delayed, waiting.
    """
    settled = partition.cursor.settled
    start = settled.low
    stop = max(start, min(partition.stream.readable(), max(settled.highest_taken + 1, start + cells)))
    size = max(1, -(-(stop - start) // cells))
    return {
        "start": start,
        "stop": stop,
        "size": size,
        "cells": [_cell(partition.cursor, at, min(stop, at + size)) for at in range(start, stop, size)],
    }


def _cell(cursor: Cursor, start: int, stop: int) -> list[int]:
    unsettled = cursor.settled.unsettled_count(start, stop)
    in_flight, delayed = cursor.in_flight.count(start, stop), cursor.waiting.delayed_count(start, stop)
    return [stop - start - unsettled, in_flight, delayed, unsettled - in_flight - delayed]
