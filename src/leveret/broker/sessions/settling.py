"""Settling: turns the tags that a client settles into offsets, and settles these at their sources.

A run of tags is settled as ranges of offsets, with one call per consumer. An unknown tag raises an error, for
which the front closes the channel; the tags before it in the same read are settled all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from leveret.broker.atomic_changes import Work
from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.broker.queues.consumer import Consumer, Wish
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.settlement import Tags, Verdict
from leveret.broker.sessions.unacked import Run
from leveret.storage.offset_ranges import joined, ranges_of, total
from leveret.storage.offset_set import Range


def settle(channel: Channel, all_tags: Sequence[Tags], verdict: Verdict, *, wish: Wish | None = None) -> None:
    """Settle deliveries now, or when the transaction commits.

    All tags get one verdict, so they are settled in one call. This way an ack out of order costs 5 us
    instead of 14 us. `wish` overrides how the queue requeues, for example the delay.
    """
    taken: list[Run[Consumer]] = []
    unknown = None
    for tags in _joined(channel, all_tags, verdict):
        unknown = _take(channel, tags, taken)
        if unknown is not None:
            break
    if channel.transaction is None:
        _apply(channel, taken, verdict, wish)
    else:
        channel.transaction.settle(taken, verdict, wish=wish)
    if unknown is not None:
        raise PreconditionFailed(f"unknown delivery tag {unknown}")


def begin(channel: Channel, tags: Iterable[int]) -> None:
    """Record that the client has begun to handle these deliveries; ignore tags that are not outstanding."""
    begun: dict[Consumer, list[Range]] = {}
    for start, stop in ranges_of(sorted(tags)):
        for run in channel.unacked.within(start, stop):
            if run.holder.marks_begun:
                begun.setdefault(run.holder, []).append(run.offsets)
    for holder, ranges in begun.items():
        holder.source.begin(joined(ranges), who=holder.label)


def _joined(channel: Channel, all_tags: Sequence[Tags], verdict: Verdict) -> Sequence[Tags]:
    """Return the tags joined into fewer ranges, if all are outstanding and none occurs twice."""
    # Rejects stay in order, because it is the order of the dead letters.
    if len(all_tags) == 1 or verdict is Verdict.REJECT:
        return all_tags
    ranges = joined((tags.first, tags.last + 1) for tags in all_tags)
    if any(stop > next_start for (_, stop), (next_start, _) in pairwise(ranges)):
        return all_tags
    if not all(channel.unacked.has_all(start, stop) for start, stop in ranges):
        return all_tags
    return [Tags(start, stop - 1) for start, stop in ranges]


def _take(channel: Channel, tags: Tags, taken: list[Run[Consumer]]) -> int | None:
    """Take these tags out of the unacked ones and add their deliveries to `taken`.

    Return the first tag that is neither unacked nor revoked, or None.
    """
    unacked, revoked_tags = channel.unacked, channel.revoked_tags
    first = tags.first
    if tags.multiple and first in revoked_tags:
        taken += unacked.take_below(first)
        _forgive_revoked(channel, 1, first + 1)
        return None
    if tags.multiple:
        runs, unknown = unacked.take_through(first)
        taken += runs
        if unknown is None and revoked_tags:
            _forgive_revoked(channel, 0, first + 1 if first else channel.next_tag)
        return unknown
    while first <= tags.last:
        runs, unknown = unacked.take(first, tags.last)
        taken += runs
        if unknown is None or unknown not in revoked_tags:
            return unknown
        _forgive_revoked(channel, unknown, unknown + 1)
        first = unknown + 1
    return None


def _forgive_revoked(channel: Channel, start: int, stop: int) -> None:
    """Forgive late settlements of revoked tags, in a transaction when it commits."""
    if channel.transaction is None:
        channel.revoked_tags.forgive(start, stop)
    else:
        channel.transaction.late.append((start, stop))


def _apply(channel: Channel, taken: list[Run[Consumer]], verdict: Verdict, wish: Wish | None) -> None:
    try:
        # An ack does not change which messages are ready, so the queue need not be up to date.
        if verdict is not Verdict.ACK:
            for source in {run.holder.source for run in taken}:
                channel.broker.bring_up_to_date(source)
        counts = settle_at_sources(taken, verdict, wish)
    except BrokerError:
        # A stream's reader refused before any source settled. All deliveries are requeued with the channel.
        channel.unacked.restore(taken)
        raise
    for holder, count in counts.items():
        channel.return_credit(holder, count)


def settle_at_sources(
    taken: Iterable[Run[Consumer]], verdict: Verdict, wish: Wish | None, work: Work | None = None
) -> dict[Consumer, int]:
    """Settle deliveries at their sources; return the number of settled deliveries of each consumer."""
    held: dict[Consumer, list[Range]] = {}
    for run in taken:
        held.setdefault(run.holder, []).append(run.offsets)
    if verdict is not Verdict.ACK:
        for holder in held:
            holder.source.check_return(requeue=verdict is Verdict.REQUEUE)
    counts: dict[Consumer, int] = {}
    for holder, ranges in held.items():
        counts[holder] = total(ranges)
        if len(ranges) > 1 and verdict is not Verdict.REJECT:
            ranges[:] = joined(ranges)
        _count(holder, verdict, counts[holder])
        if verdict is Verdict.ACK:
            holder.source.ack(ranges, who=holder.label, work=work)
        elif verdict is Verdict.REQUEUE:
            holder.source.requeue(ranges, delayed=True, who=holder.label, wish=wish, work=work)
        else:
            why = b"" if wish is None else wish.why
            holder.source.reject(ranges, who=holder.label, why=why, work=work)
    return counts


def _count(holder: Consumer, verdict: Verdict, count: int) -> None:
    for counters in (holder.channel.counters, holder.source.counters):
        if verdict is Verdict.ACK:
            counters.acked += count
        elif verdict is Verdict.REQUEUE:
            counters.nacked += count
        else:
            counters.rejected += count
