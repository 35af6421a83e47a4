"""Four read-only views of a cursor's progress.

`Waiting` has the ready and delayed messages, `InFlight` those that are taken and not settled, `Settled` the
watermark and the holes above it, and `Returns` how often and why messages were returned. A view reads the
current progress at each call. Changes are left to `Cursor`. The rule: a view changes nothing, and returns
only copies and iterators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leveret.storage.ack_set import AckSet
from leveret.storage.offset_set import Range
from leveret.storage.progress import Progress


class _View:
    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress


class Waiting(_View):
    """Ready and delayed messages: no consumer has taken them."""

    __slots__ = ()

    @property
    def ready(self) -> int:
        """Number of messages that can be taken now."""
        return self._progress.ready

    @property
    def delayed(self) -> int:
        return len(self._progress.delayed)

    @property
    def priorities(self) -> int:
        """Highest priority that the queue tells apart; 0 for a queue without priorities."""
        return self._progress.priorities

    @property
    def next_ready(self) -> int | None:
        """Offset that is taken next; None if none is ready."""
        return self._progress.next_ready()

    @property
    def next_due_us(self) -> int | None:
        """Time when the next delay ends; None if nothing is delayed."""
        return self._progress.next_due_us

    def ready_ranges(self) -> Iterator[Range]:
        """Return the ready messages in the order in which they are taken."""
        return self._progress.ready_ranges()

    def ready_of(self, priority: int, start: int = 0) -> Iterator[Range]:
        """Return the ready messages of one priority from the offset `start` on."""
        return self._progress.ready_of(priority, start)

    def ready_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the ready messages in the ranges, in the order of the ranges."""
        return [ready for start, stop in ranges for ready in self._progress.ready_within(start, stop)]

    def first_ready(self, start: int = 0) -> int | None:
        """Return the lowest ready offset at or above `start`."""
        return self._progress.ready_from(start)

    def last_ready(self, below: int) -> int | None:
        """Return the highest ready offset below `below`."""
        return self._progress.ready_below(below)

    def offsets_in(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the ready and delayed messages in the ranges."""
        return self._progress.waiting_within(ranges)

    def delayed_ranges(self) -> Iterator[Range]:
        return self._progress.delayed.ranges()

    def delayed_count(self, start: int, stop: int) -> int:
        return self._progress.delayed.count(start, stop)

    def delays(self) -> Iterator[tuple[int, int]]:
        """Return the delayed offsets and the times until which they wait, soonest first."""
        return self._progress.delays(lazily=True)


class InFlight(_View):
    """Messages that are taken and not settled: `len(cursor.in_flight)`, `7 in cursor.in_flight`.

    Leased messages are in flight too, and stay so when the store is opened again.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._progress.in_flight)

    def __bool__(self) -> bool:
        return bool(self._progress.in_flight)

    def __contains__(self, offset: int) -> bool:
        return offset in self._progress.in_flight

    @property
    def first(self) -> int | None:
        return self._progress.in_flight.first()

    def offsets_in(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the messages in flight in the ranges."""
        return self._progress.in_flight.members_in(ranges)

    def count(self, start: int, stop: int) -> int:
        return self._progress.in_flight.count(start, stop)

    @property
    def has_unbegun(self) -> bool:
        """Whether messages are in flight to consumers that have not called `begin` for them yet."""
        return bool(self._progress.unbegun)

    def unbegun_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the messages in the ranges whose consumer has not called `begin` for them yet."""
        return self._progress.unbegun.members_in(ranges) if self._progress.unbegun else []

    @property
    def first_leased(self) -> int | None:
        return self._progress.leased.first()

    def leased(self) -> list[Range]:
        return list(self._progress.leased.ranges())

    def leased_count(self, start: int, stop: int) -> int:
        return self._progress.leased.count(start, stop)

    def leased_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the leased messages in the ranges."""
        return self._progress.leased.members_in(ranges)


class Settled(_View):
    """Settled messages, the watermark and the holes: `7 in cursor.settled`."""

    __slots__ = ()

    def __contains__(self, offset: int) -> bool:
        return offset in self._progress.settled

    @property
    def low(self) -> int:
        """Lowest offset that is not settled."""
        return self._progress.low

    @property
    def watermark(self) -> int:
        """Lowest offset that is neither settled nor postponed. Only a seek moves it back."""
        return self._progress.watermark

    @property
    def highest_taken(self) -> int:
        """Highest offset that was taken or settled; `low - 1` when none above `low` was."""
        return self._progress.highest

    @property
    def span(self) -> int:
        """Number of offsets from `low` to `highest_taken`."""
        return self._progress.span

    @property
    def above_low(self) -> int:
        """Number of settled offsets above `low`."""
        return len(self._progress.settled.settled_above)

    @property
    def retired_below(self) -> int:
        """One above the highest offset that retention deleted unsettled."""
        return self._progress.retired_below

    def hole_count(self) -> int:
        """Return the number of holes: runs of unsettled offsets below a settled one."""
        return self._progress.settled.holes()

    def holes(self) -> Iterator[Range]:
        """Return the holes in ascending order."""
        settled, low = self._progress.settled, self._progress.low
        return settled.unsettled(low, max(settled.highest, low) + 1) if settled.settled_above else iter(())

    def unsettled_within(self, start: int, stop: int) -> Iterator[Range]:
        """Return the unsettled offsets of [start, stop) in ascending order."""
        return self._progress.settled.unsettled(start, stop)

    def unsettled_count(self, start: int, stop: int) -> int:
        return self._progress.unsettled_count(start, stop)

    def around(self, start: int, stop: int) -> AckSet:
        """Return a copy of the settled offsets that is exact in [start, stop) and may be wrong elsewhere."""
        return self._progress.settled.around(start, stop)


class Returns(_View):
    """Unsettled messages that were taken and returned: `len(cursor.returns)` of them have a count."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._progress.counts)

    def __bool__(self) -> bool:
        return bool(self._progress.counts)

    def more_than(self, count: int) -> int:
        """Return the number of messages that were returned more than `count` times."""
        return self._progress.counts.count_above(count)

    def above(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield messages that were returned more than `count` times, with the numbers, highest first."""
        return self._progress.counts.pairs_above(count)

    def count(self, offset: int) -> int:
        """Return how often a message was returned."""
        return self._progress.counts.get(offset, 0)

    def counts_in(self, ranges: Sequence[Range]) -> dict[int, int]:
        """Return how often each message in the ranges was returned, without those that never were."""
        return self._progress.counts.values_in(ranges)

    def by_count(self, ranges: Sequence[Range]) -> dict[int, list[Range]]:
        """Return the offsets in the ranges by the number of returns."""
        return self._progress.by_count(ranges)

    @property
    def postponed(self) -> int:
        """Number of unsettled messages that were ever delayed, even if the delay is over."""
        return len(self._progress.postponed)

    @property
    def redelivered_below(self) -> int:
        """Offset below which any message may have been delivered before an unclean stop."""
        return self._progress.redelivered_below

    def is_redelivered(self, offset: int) -> bool:
        """Return whether a message may have been delivered before."""
        return self._progress.is_redelivered(offset)

    def reason(self, offset: int) -> bytes | None:
        """Return the reason of a message's last return, or None if none was given."""
        return self._progress.reasons.get(offset)

    def has_reason(self, offset: int, reason: bytes) -> bool:
        """Return whether a message was last returned for this reason."""
        return self._progress.reasons.has(offset, reason)

    def any_reason(self, ranges: Sequence[Range]) -> bool:
        """Return whether any message in the ranges has a reason."""
        return next(self._progress.reasons.parts(ranges), None) is not None
