"""Stuck consumers and redelivery loops: deliveries that nobody settles, and messages that come back again.

A consumer is stuck when its oldest delivery is older than a limit and its channel has settled nothing since.
The samples of the channel's counters tell that, so a settlement counts from the next sample on. A message
loops when it was returned more often than a limit. The rule: lists have a limit, and no step scans more than
one channel or one cursor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.history import INTERVAL_S
from leveret.broker.sessions.channel import Channel
from leveret.broker.views.queues import LOOP_RETURNS
from leveret.broker.views.readers import (
    RUNS_MAX,
    Reader,
    Steps,
    channels_in,
    holder_of,
    outstanding,
    readers_in,
    reason_of,
)

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.consumer import Consumer
    from leveret.broker.sessions.unacked import Run

AGE_S: Final = 60
RETURNS: Final = LOOP_RETURNS
LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
_SETTLEMENTS: Final = ("acked", "nacked", "rejected")
_SAMPLES_MAX: Final = 100
_S: Final = 1_000_000


def stuck(
    broker: Broker, vhosts: Collection[str], *, age_s: int = AGE_S, returns: int = RETURNS, limit: int = LIMIT
) -> Steps[dict[str, object]]:
    """Return the stuck consumers, the oldest delivery first, and the looping messages, the worst first."""
    now_us = broker.now_us()
    consumers: list[dict[str, Any]] = []
    for vhost in vhosts:
        for channel in channels_in(broker, vhost):
            consumers += _stuck_on(channel, now_us, age_us=age_s * _S)
            yield
    messages: list[dict[str, Any]] = []
    count = 0
    for vhost in vhosts:
        # The virtual host may have been deleted since the last step.
        for reader in list(readers_in(broker, vhost)) if vhost in broker.vhosts else ():
            if reader.cursor.returns and not reader.cursor.deleted:
                count += reader.cursor.returns.more_than(returns)
                messages += islice(_looping(reader, returns), limit)
                messages = _worst(messages, limit)
            yield
    return {
        "now_ms": now_us // 1000,
        "age_s": age_s,
        "returns": returns,
        "consumers": {
            "count": len(consumers),
            "oldest": sorted(consumers, key=itemgetter("since_ms"))[:limit],
        },
        "loops": {
            "count": count,
            "worst": messages,
        },
    }


def _stuck_on(channel: Channel, now_us: int, *, age_us: int) -> Iterator[dict[str, object]]:
    """Yield the stuck consumers of a channel."""
    oldest: dict[Consumer, Run[Consumer]] = {}
    for run in islice(outstanding(channel), RUNS_MAX):
        # Deliveries get older towards the beginning; those of an open transaction come last.
        held = oldest.setdefault(run.holder, run)
        if run.since_us < held.since_us:
            oldest[run.holder] = run
    for consumer, run in oldest.items():
        if now_us - run.since_us >= age_us and _settled_since(channel, run.since_us, now_us) == 0:
            yield {
                "queue": consumer.source.name,
                **holder_of(consumer)._asdict(),
                "offset": run.offsets[0],
                "since_ms": run.since_us // 1000,
                "age_ms": (now_us - run.since_us) // 1000,
                "unacked": consumer.account.outstanding,
            }


def _settled_since(channel: Channel, since_us: int, now_us: int) -> int | None:
    """Return the number of settlements on a channel since about a time; None if there is no sample since."""
    counters = channel.counters
    settled = sum(getattr(counters, name) for name in _SETTLEMENTS)
    if not settled or counters.history is None:
        return settled or 0
    age_s = -(-(now_us - since_us) // _S)
    step_s = max(INTERVAL_S, age_s // _SAMPLES_MAX)
    samples = counters.history.samples(_SETTLEMENTS, age_s=age_s, incr_s=step_s, now_us=now_us)
    # A sample at the time itself may have been taken before settlements of that moment.
    before = [value for time_us, value in samples if time_us >= since_us + INTERVAL_S * _S]
    return settled - before[-1] if before else None


def _worst(messages: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    return sorted(messages, key=itemgetter("returns"), reverse=True)[:limit]


def _looping(reader: Reader, returns: int) -> Iterator[dict[str, object]]:
    hidden = reader.hidden()
    for offset, count in reader.cursor.returns.above(returns):
        yield {
            "vhost": reader.vhost.name,
            "queue": reader.queue.name,
            "group": reader.group,
            "offset": offset,
            "returns": count,
            "state": reader.state(offset, hidden),
            "reason": reason_of(reader.cursor, offset),
        }
