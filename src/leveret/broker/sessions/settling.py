"""Settlements: from tags of a channel to what happens in queues, whatever protocol they came by.

A run of tags is settled as ranges of offsets, one call per queue. An unknown tag is the client's mistake,
which a front answers by closing the channel; the tags before it in the same read have been settled by then.
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

    All tags get the same verdict, so they are settled in one call. Acks out of order cost 5 us each that way,
    one by one 14 us. `wish` is how a requeue shall be; None leaves it to the queue.
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
    """The client has begun with the deliveries of these tags. Tags that are not outstanding have no effect:
    a deadline may have taken them back before the client knew."""
    begun: dict[Consumer, list[Range]] = {}
    for start, stop in ranges_of(sorted(tags)):
        for run in channel.unacked.within(start, stop):
            if run.holder.marks_begun:
                begun.setdefault(run.holder, []).append(run.offsets)
    for holder, ranges in begun.items():
        holder.source.begin(joined(ranges), who=holder.label)


def _joined(channel: Channel, all_tags: Sequence[Tags], verdict: Verdict) -> Sequence[Tags]:
    """Fewer of them, where their order does not matter: all tags are outstanding, and none is named twice."""
    if len(all_tags) == 1 or not _in_any_order(verdict):
        return all_tags
    ranges = joined((tags.first, tags.last + 1) for tags in all_tags)
    if any(stop > after for (_, stop), (after, _) in pairwise(ranges)):
        return all_tags
    if not all(channel.unacked.has_all(start, stop) for start, stop in ranges):
        return all_tags
    return [Tags(start, stop - 1) for start, stop in ranges]


def _in_any_order(verdict: Verdict) -> bool:
    """Dead letters are written in the order in which they were rejected."""
    return verdict is not Verdict.REJECT


def _take(channel: Channel, tags: Tags, taken: list[Run[Consumer]]) -> int | None:
    """Add the deliveries of these tags; return the first tag that makes no sense, if there is one."""
    unacked, lapsed = channel.unacked, channel.lapsed
    first = tags.first
    if tags.multiple and first in lapsed:
        taken += unacked.take_below(first)
        _forget_lapsed(channel, 1, first + 1)
        return None
    if tags.multiple:
        runs, unknown = unacked.take_through(first)
        taken += runs
        if unknown is None and lapsed:
            _forget_lapsed(channel, 0, first + 1 if first else channel.next_tag)
        return unknown
    while first <= tags.last:
        runs, unknown = unacked.take(first, tags.last)
        taken += runs
        if unknown is None or unknown not in lapsed:
            return unknown
        _forget_lapsed(channel, unknown, unknown + 1)
        first = unknown + 1
    return None


def _forget_lapsed(channel: Channel, start: int, stop: int) -> None:
    """A late settlement is forgiven once; in a transaction with its commit."""
    if channel.transaction is None:
        channel.lapsed.forgive(start, stop)
    else:
        channel.transaction.late.append((start, stop))


def _apply(channel: Channel, taken: list[Run[Consumer]], verdict: Verdict, wish: Wish | None) -> None:
    try:
        # An ack needs no queue that is up to date: it changes nothing of what is ready.
        if verdict is not Verdict.ACK:
            for source in {run.holder.source for run in taken}:
                channel.broker.bring_up_to_date(source)
        counts = tell(taken, verdict, wish)
    except BrokerError:  # a reader's refusal, before anybody was told: all of it goes back with the channel
        channel.unacked.restore(taken)
        raise
    for holder, count in counts.items():
        channel.freed(holder, count)


def tell(
    taken: Iterable[Run[Consumer]], verdict: Verdict, wish: Wish | None, work: Work | None = None
) -> dict[Consumer, int]:
    """Tell the sources what became of their messages; return how many each consumer holds no more."""
    held: dict[Consumer, list[Range]] = {}
    for run in taken:
        held.setdefault(run.holder, []).append(run.offsets)
    if verdict is not Verdict.ACK:
        for holder in held:
            holder.source.check_return(requeue=verdict is Verdict.REQUEUE)
    counts: dict[Consumer, int] = {}
    for holder, ranges in held.items():
        counts[holder] = total(ranges)
        if len(ranges) > 1 and _in_any_order(verdict):
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
