"""Samples of all counters, taken every 5 s: the rates that overview, lists, pages and metrics show.

    sampler.start()                                  # the server does
    queue.counters.history.rate("acked")             # acks per second; history is None if nothing was counted
    queue.counters.history.samples(("ready",), age_s=60, incr_s=5, now_us=broker.now_us())
    broker.counters.history.rate("published")        # of the whole broker; `vhost.counters` has its own
    sampler.standing["/"].ready                      # messages of a virtual host at the last sweep
    memory = sampler.add(("mem_used",), lambda: (resident_bytes(),))    # samples of other numbers

Owns when samples are taken, and of what. Every queue, exchange, channel, connection and virtual host and the
broker itself have a history, from their first counted event on. The rules: a sweep is cut into slices of
1 ms, between which others have a turn, and an idle object costs a comparison (1 µs for a queue). All
histories of queues, exchanges, channels and connections together keep at most `KEPT_MAX` samples in their
finest rings (25 MB): with many active objects the past of each is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from leveret.broker.core import Core
from leveret.broker.counters import CHURN, FIGURES, Counters, sum_of, values_of
from leveret.broker.history import ALL_RINGS, INTERVAL_S, RINGS, SAMPLES_MAX, History, RingSize
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.session import Session
from leveret.broker.vhosts.vhost import VirtualHost

INTERVAL_US: Final = INTERVAL_S * 1_000_000
KEPT_MAX: Final = 100_000
LENGTHS: Final = ("ready", "unacked", "delayed")
"""Names of the numbers of messages in the histories of queues, virtual hosts and the broker."""
DISK: Final = ("disk_reads", "disk_writes")
_SLICE: Final = 800
"""Idle queues that are looked at without a pause: 1 ms."""
_COST_OF_SAMPLE, _COST_OF_BEGIN, _COST_OF_SUM = 3, 6, 2
"""Time for a sample, a new history, and for adding up the counters of an object, in that of an idle queue."""
_churn_of: Callable[[object], tuple[int, ...]] = attrgetter(*CHURN)


class SampledBroker(Core, Protocol):
    """The part of the broker that is sampled."""

    vhosts: dict[str, VirtualHost]
    sessions: dict[Session[Channel], None]


class Standing(NamedTuple):
    """Numbers of messages and consumers at the last sweep: of a virtual host, or added up."""

    ready: int = 0
    unacked: int = 0
    delayed: int = 0
    consumers: int = 0

    def plus(self, other: Standing) -> Standing:
        return Standing(*map(sum, zip(self, other, strict=True)))


@dataclass(slots=True, eq=False)
class _Added:
    """Numbers of somebody else, with their history."""

    history: History
    read: Callable[[], Sequence[int]]


class Sampler:
    """`Sampler(broker).start()`: from then on a timer of the broker begins a sweep every 5 s."""

    def __init__(self, broker: SampledBroker) -> None:
        self._broker = broker
        self.standing: dict[str, Standing] = {}
        """The standing of each virtual host at the last sweep."""
        self._added: list[_Added] = []
        self._sweep: Iterator[None] | None = None
        self._slice = 0
        """Cost of the present slice so far."""
        self._kept = SAMPLES_MAX
        self._history_count = 0
        self._totals = Counters()
        self._totals_of: dict[str, Counters] = {}

    def start(self) -> None:
        now_us = self._broker.now_us()
        self._broker.timers.set(self, (now_us // INTERVAL_US + 1) * INTERVAL_US, self._run)

    def add(self, names: tuple[str, ...], read: Callable[[], Sequence[int]]) -> History:
        """Return a history of numbers that `read` returns at each sweep."""
        history = History(names, ALL_RINGS)
        self._added.append(_Added(history, read))
        return history

    def totals(self) -> Counters:
        """Return the sum of all counters at the last sweep."""
        return self._totals

    def totals_of(self, vhost: str) -> Counters:
        """Return the sum of a virtual host's counters at the last sweep."""
        return self._totals_of.get(vhost, Counters())

    def _run(self) -> None:
        """Take the samples of one slice, and set the timer for the next slice or the next sweep."""
        if self._sweep is None:
            self._sweep = self._slices()
        try:
            next(self._sweep)
        except StopIteration:
            self._sweep = None
            self.start()
        else:
            self._broker.timers.set(self, self._broker.now_us(), self._run)

    def _slices(self) -> Iterator[None]:
        broker = self._broker
        self._kept, self._history_count = max(2, min(SAMPLES_MAX, KEPT_MAX // (self._history_count or 1))), 0
        for added in self._added:
            added.history.record(broker.now_us(), added.read())
        totals, totals_of = broker.counters.copy(), {}
        for vhost in list(broker.vhosts.values()):
            totals_of[vhost.name] = vhost.counters.copy()
            yield from self._look_at_queues(vhost)
            for exchange in list(vhost.exchanges.values()):
                self._look_at(exchange.counters)
                if self._is_slice_full():
                    yield
        for session in list(broker.sessions):
            if session not in broker.sessions:
                # It has ended during this sweep, and its counters are now the broker's.
                continue
            counted = self._look_at_session(session)
            totals.take_over(counted)
            if session.has_entered and session.vhost.name in totals_of:
                totals_of[session.vhost.name].take_over(counted)
            if self._is_slice_full():
                yield
        self._finish(totals, totals_of)

    def _is_slice_full(self) -> bool:
        """Return whether others should have a turn before the sweep goes on."""
        if self._slice < _SLICE:
            return False
        self._slice = 0
        return True

    def _look_at_queues(self, vhost: VirtualHost) -> Iterator[None]:
        """Take samples of the queues and streams of a virtual host, and add up their messages."""
        ready = unacked = delayed = consumers = 0
        for queue in list(vhost.queues.values()):
            counters, waiting = queue.counters, queue.cursor.waiting
            lengths = (waiting.ready, queue.unacked, waiting.delayed)
            ready += lengths[0]
            unacked += lengths[1]
            delayed += lengths[2]
            consumers += queue.consumer_count
            self._slice += 1
            if counters.history is None and values_of(counters) != _ZEROS:
                self._begin(counters, _NAMES, before=sum(lengths) - counters.published)
            if counters.history is not None:
                self._record(counters, lengths)
            if self._is_slice_full():
                yield
        self.standing[vhost.name] = Standing(ready, unacked, delayed, consumers)

    def _look_at(self, counters: Counters) -> None:
        """Take a sample of an exchange, a channel or a connection."""
        self._slice += 1
        if counters.history is None and values_of(counters) != _ZEROS:
            self._begin(counters, FIGURES)
        if counters.history is not None:
            self._record(counters)

    def _look_at_session(self, session: Session[Channel]) -> Counters:
        """Take samples of a connection and its channels, and return the sum of their counters."""
        own = [session.counters, *(channel.counters for channel in session.channels)]
        for counters in own:
            self._look_at(counters)
        self._slice += _COST_OF_SUM * len(own)
        return sum_of(own)

    def _begin(self, counters: Counters, names: tuple[str, ...], *, before: int = 0) -> None:
        counters.history = _begun(self._broker.now_us(), names, before=before)
        self._slice += _COST_OF_BEGIN

    def _record(self, counters: Counters, more: tuple[int, ...] = ()) -> None:
        assert counters.history is not None
        counters.history.record(self._broker.now_us(), (*values_of(counters), *more), most=self._kept)
        self._history_count += 1
        self._slice += _COST_OF_SAMPLE

    def _finish(self, totals: Counters, totals_of: dict[str, Counters]) -> None:
        """Record the sums of a sweep."""
        broker, counters = self._broker, self._broker.counters
        now_us = broker.now_us()
        self.standing = {name: each for name, each in self.standing.items() if name in totals_of}
        for name, sums in totals_of.items():
            vhost = broker.vhosts.get(name)
            if vhost is not None:
                lengths: Sequence[int] = self.standing[name][:3]
                if vhost.counters.history is None:
                    before = sum(lengths) - sums.published
                    vhost.counters.history = _begun(now_us, _NAMES, before=before)
                vhost.counters.history.record(now_us, (*values_of(sums), *lengths))
        lengths = [sum(column) for column in zip(*self.standing.values(), strict=True)][:3] or [0, 0, 0]
        if counters.history is None:
            before = sum(lengths) - totals.published
            counters.history = _begun(now_us, (*_NAMES, *CHURN, *DISK), ALL_RINGS, before=before)
        more = (*lengths, *_churn_of(counters.churn), broker.store.records_read, counters.disk_writes)
        counters.history.record(now_us, (*values_of(totals), *more))
        self._totals, self._totals_of = totals, totals_of


_ZEROS: Final = values_of(Counters())
_NAMES: Final = (*FIGURES, *LENGTHS)


def _begun(
    now_us: int, names: tuple[str, ...], rings: Sequence[RingSize] = RINGS, *, before: int = 0
) -> History:
    """Return the history of an object whose first event was counted less than 5 s ago.

    `before` is the supposed number of messages at that time: publishes usually explain the difference.
    """
    history = History(names, rings)
    values = [0] * len(names)
    if before > 0:
        values[names.index("ready")] = before
    history.record(now_us - INTERVAL_US, values)
    return history
