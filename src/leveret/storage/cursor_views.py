"""Questions to a cursor: four views of its progress, one for each kind of question.

`Waiting` says what is ready or delayed, `InFlight` what somebody has taken, `Settled` how far all is done,
and `Returns` what came back, how often and why. Each reads the progress at the moment of the question.
Changes are left to `Cursor`. The rule: a view changes nothing, and returns copies and iterators only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leveret.storage.ack_set import AckSet
from leveret.storage.offset_set import Range
from leveret.storage.progress import Progress


class Waiting:
    """Messages that nobody has taken: those that are ready, and those that are delayed."""

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @property
    def ready(self) -> int:
        """How many messages can be taken now."""
        return self._progress.ready

    @property
    def delayed(self) -> int:
        """How many messages wait for a time."""
        return len(self._progress.delayed)

    @property
    def priorities(self) -> int:
        """The highest priority that makes a difference; 0 for a plain queue."""
        return self._progress.priorities

    @property
    def next_ready(self) -> int | None:
        """The offset that would be taken next."""
        return self._progress.next_ready()

    @property
    def next_due_us(self) -> int | None:
        """When the next delay ends."""
        return self._progress.next_due_us

    def ready_ranges(self) -> Iterator[Range]:
        """Return what is ready, in the order in which it would be taken."""
        return self._progress.ready_ranges()

    def ready_of(self, priority: int, start: int = 0) -> Iterator[Range]:
        """Return what is ready of one priority, from an offset on."""
        return self._progress.ready_of(priority, start)

    def ready_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return what is ready of these offsets; of each range in ascending order."""
        return [ready for start, stop in ranges for ready in self._progress.ready_within(start, stop)]

    def first_ready(self, start: int = 0) -> int | None:
        """Return the lowest offset at or above `start` that is ready."""
        return self._progress.ready_from(start)

    def last_ready(self, below: int) -> int | None:
        """Return the highest offset below this one that is ready."""
        return self._progress.ready_below(below)

    def within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return what is ready or delayed of these offsets."""
        return self._progress.waiting_within(ranges)

    def delayed_ranges(self) -> Iterator[Range]:
        """Return what is delayed, in ascending order."""
        return self._progress.delayed.ranges()

    def delayed_count(self, start: int, stop: int) -> int:
        """Return how many offsets of [start, stop) are delayed."""
        return self._progress.delayed.count(start, stop)

    def delays(self) -> Iterator[tuple[int, int]]:
        """Return the delayed offsets and the times until which they wait, soonest first."""
        return self._progress.delays()


class InFlight:
    """Messages that were taken and not settled; `len(cursor.in_flight)`, `7 in cursor.in_flight`.

    Some of them may be leased, and stay in flight when the store is opened again.
    """

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __len__(self) -> int:
        return len(self._progress.in_flight)

    def __bool__(self) -> bool:
        return bool(self._progress.in_flight)

    def __contains__(self, offset: int) -> bool:
        return offset in self._progress.in_flight

    @property
    def first(self) -> int | None:
        """The lowest offset in flight."""
        return self._progress.in_flight.first()

    def within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return what is in flight of these offsets."""
        return self._progress.in_flight.within(ranges)

    def count(self, start: int, stop: int) -> int:
        """Return how many offsets of [start, stop) are in flight."""
        return self._progress.in_flight.count(start, stop)

    @property
    def has_unbegun(self) -> bool:
        """Whether a consumer has messages that it has not begun with, and will tell when it does."""
        return bool(self._progress.unbegun)

    def unbegun_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the offsets among these whose consumer will tell when it begins, and has not begun."""
        return self._progress.unbegun.within(ranges) if self._progress.unbegun else []

    @property
    def first_leased(self) -> int | None:
        """The lowest offset that is leased."""
        return self._progress.leased.first()

    def leased(self) -> list[Range]:
        """Return everything that is leased."""
        return list(self._progress.leased.ranges())

    def leased_within(self, ranges: Sequence[Range]) -> list[Range]:
        """Return what is leased of these offsets; of each range in ascending order."""
        return self._progress.leased.within(ranges)


class Settled:
    """How far all is done; `7 in cursor.settled`."""

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __contains__(self, offset: int) -> bool:
        return offset in self._progress.settled

    @property
    def low(self) -> int:
        """The lowest offset that is not settled."""
        return self._progress.low

    @property
    def watermark(self) -> int:
        """The lowest offset that is neither settled nor postponed; it moves up only, but for a seek."""
        return self._progress.watermark

    @property
    def highest_taken(self) -> int:
        """The highest offset that was taken or settled; one below `low` when there is none above it."""
        return self._progress.highest

    @property
    def span(self) -> int:
        """How many offsets there are from `low` to the highest that was taken."""
        return self._progress.span

    @property
    def above_low(self) -> int:
        """How many offsets above `low` are settled."""
        return len(self._progress.settled.settled_above)

    @property
    def retired_below(self) -> int:
        """One above the highest offset that retention took before anybody had settled it."""
        return self._progress.retired_below

    def hole_count(self) -> int:
        """Return how many runs of unsettled offsets lie below a settled one."""
        return self._progress.settled.holes()

    def holes(self) -> Iterator[Range]:
        """Return these runs, lowest first."""
        settled, low = self._progress.settled, self._progress.low
        return settled.unsettled(low, max(settled.highest, low) + 1) if settled.settled_above else iter(())

    def unsettled_within(self, start: int, stop: int) -> Iterator[Range]:
        """Return what is not settled of [start, stop), in ascending order."""
        return self._progress.settled.unsettled(start, stop)

    def unsettled_count(self, start: int, stop: int) -> int:
        """Return how many offsets of [start, stop) are not settled."""
        return self._progress.unsettled_count(start, stop)

    def around(self, start: int, stop: int) -> AckSet:
        """Return a copy of what is settled of [start, stop); outside of it anything may be in it."""
        return self._progress.settled.around(start, stop)


class Returns:
    """Messages that were taken and came back; `len(cursor.returns)` of them are not settled."""

    __slots__ = ("_progress",)

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __len__(self) -> int:
        return len(self._progress.counts)

    def __bool__(self) -> bool:
        return bool(self._progress.counts)

    def count(self, offset: int) -> int:
        """Return how often a message was returned."""
        return self._progress.counts.get(offset, 0)

    def within(self, ranges: Sequence[Range]) -> dict[int, int]:
        """Return the offsets among these that ever came back, and how often that counted."""
        return self._progress.counts.within(ranges)

    def by_count(self, ranges: Sequence[Range]) -> dict[int, list[Range]]:
        """Return these offsets by how often they were returned."""
        return self._progress.by_count(ranges)

    @property
    def postponed(self) -> int:
        """How many unsettled messages have been delayed, also those whose delay is over."""
        return len(self._progress.postponed)

    @property
    def redelivered_below(self) -> int:
        """After an unclean stop: any message below this offset may have been delivered before."""
        return self._progress.redelivered_below

    def is_redelivered(self, offset: int) -> bool:
        """Return whether a message may have been delivered before."""
        return self._progress.is_redelivered(offset)

    def reason(self, offset: int) -> bytes | None:
        """Return why a message was returned the last time; None if nothing was said."""
        return self._progress.reasons.get(offset)

    def has_reason(self, offset: int, reason: bytes) -> bool:
        """Return whether this is why a message was returned the last time."""
        return self._progress.reasons.has(offset, reason)

    def any_reason(self, ranges: Sequence[Range]) -> bool:
        """Return whether one of these offsets has a reason."""
        return next(self._progress.reasons.parts(ranges), None) is not None
