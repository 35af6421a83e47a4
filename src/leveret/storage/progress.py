"""The progress of a cursor over a log: which offsets are ready, in flight, delayed and settled.

This is state in memory, without disk, clock or journal. `cursor.py` writes every change to the journal and
applies it here. After a restart, `apply` rebuilds the state from the journal's entries. A message is ready if
it is in the log and neither settled, in flight nor delayed. Messages are taken by priority, highest first,
then by offset, so a returned message keeps its place.

The rule: an offset is exactly one of ready, in flight, delayed and settled, and checks precede changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, starmap
from struct import Struct

from leveret.storage.ack_set import AckSet
from leveret.storage.errors import BadRequest, NotInFlight
from leveret.storage.journal import Attempt, Entry, Kind, Outcome
from leveret.storage.offset_map import OffsetMap, V
from leveret.storage.offset_set import OFFSET_LIMIT, OffsetSet, Range, first_missing, remove_from
from leveret.storage.packed_delays import DUE_SHIFT, ascending, delays_of, latest, packed, unpacked
from leveret.storage.records import Message

_SECTIONS, _TAIL, _REASON, _SIZE = (Struct(f"<{fields}") for fields in ("QQQQQQQ", "QQQ", "QB", "Q"))
# Up to `_FEW` offsets, finding the level of each offset costs less than sets of offsets.
_LOOK_BACK, _FEW = 65_536, 64


class Progress:
    """The progress of one cursor. `priorities` is the highest priority, 0 for a queue without priorities."""

    def __init__(self, *, start: int = 0, priorities: int = 0) -> None:
        self.settled = AckSet(start)
        self.in_flight = OffsetSet()
        self.leased = OffsetSet()
        """Offsets in flight that stay so when the store is opened again."""
        self.unbegun = OffsetSet()
        """Offsets in flight whose consumer has not called `Cursor.begin` for them yet."""
        self.delayed = OffsetSet()
        self.postponed = OffsetSet()
        """Unsettled offsets that were ever delayed or recalled: the watermark passes them."""
        self.counts: OffsetMap[int] = OffsetMap()
        """Number of returns of unsettled offsets. An offset in this map has been delivered before."""
        self.reasons: OffsetMap[bytes] = OffsetMap()
        """Reason of the last return of offsets, if one was given."""
        self.mark = start
        """Offset at or above which nothing has been delivered."""
        self.redelivered_below = 0
        """Offset below which any message may have been delivered before an unclean stop."""
        self._end = start
        """Offset at or above which nothing has ever been ready."""
        self.retired_below = 0
        """One above the highest offset that retention settled."""
        self._passed = 0
        """Offset at which the search for the watermark continues."""
        self._due: list[int] = []
        """Heap of delays, see `packed_delays.py`. Some of their offsets may not be delayed any more."""
        self._ready = [OffsetSet() for _ in range(priorities + 1)]
        """Ready offsets by priority."""
        self._levels = [OffsetSet() for _ in range(priorities + 1)]
        """Unsettled offsets by priority; index 0 is unused."""

    # questions; `cursor_views.py` describes most of them

    @property
    def priorities(self) -> int:
        return len(self._ready) - 1

    @property
    def low(self) -> int:
        return self.settled.low

    @property
    def watermark(self) -> int:
        """Lowest offset that is neither settled nor postponed. Only `seek` moves it back."""
        # The first search goes through a merged set: 1 us for each hole instead of 4.
        if not self._passed and self.postponed:
            passed = self.settled.settled_above.copy()
            passed.add_many(list(self.postponed.ranges()))
            self._passed = passed.first_absent(self.settled.low)
        at = self.settled.next_unsettled(max(self._passed, self.settled.low))
        while at in self.postponed:
            at = self.settled.next_unsettled(self.postponed.first_absent(at))
        self._passed = at
        return at

    @property
    def ready(self) -> int:
        return sum(map(len, self._ready))

    @property
    def highest(self) -> int:
        """Highest offset that was taken or settled; `low - 1` when none above `low` was."""
        taken = [each.last() or 0 for each in (self.in_flight, self.postponed) if each]
        return max(self.settled.highest, *taken) if taken else self.settled.highest

    @property
    def span(self) -> int:
        return max(0, self.highest + 1 - self.settled.low)

    @property
    def next_due_us(self) -> int | None:
        return self._due[0] >> DUE_SHIFT if self._due else None

    def delays(self, *, lazily: bool = False) -> Iterator[tuple[int, int]]:
        """Yield delayed offsets with the ends of their delays, soonest first; `lazily` for the first few."""
        return delays_of(ascending(self._due) if lazily else sorted(self._due), self.delayed)

    def by_count(self, ranges: Sequence[Range]) -> dict[int, list[Range]]:
        rest = OffsetSet(ranges)
        found = {}
        for count, inside in self.counts.parts(ranges):
            found[count] = inside
            rest.remove_many(inside)
        if rest:
            found[0] = sorted([*found.get(0, ()), *rest.ranges()])
        return found

    def is_redelivered(self, offset: int) -> bool:
        return offset < self.redelivered_below or offset in self.counts

    def unsettled_count(self, start: int, stop: int) -> int:
        start = max(start, self.settled.low)
        return stop - start - self.settled.settled_above.count(start, stop) if start < stop else 0

    def never_taken(self, start: int, stop: int) -> list[Range]:
        """Return the offsets of [start, stop) that are ready and were never postponed."""
        found = OffsetSet(self.ready_within(start, stop))
        if self.postponed:
            found.remove_many(list(self.postponed.ranges(start, stop)))
        return list(found.ranges())

    def ready_within(self, start: int, stop: int) -> list[Range]:
        return list(OffsetSet(r for level in self._ready for r in level.ranges(start, stop)).ranges())

    def waiting_within(self, ranges: Sequence[Range]) -> list[Range]:
        named, found = OffsetSet(ranges), OffsetSet()
        for each in filter(None, (*self._ready, self.delayed)):
            found.add_set(named.cut(each))
        return list(found.ranges())

    def next_ready(self) -> int | None:
        return next((level.first() for level in reversed(self._ready) if level), None)

    def ready_from(self, start: int) -> int | None:
        found = (level.first(start) for level in self._ready if level)
        return min((offset for offset in found if offset is not None), default=None)

    def ready_below(self, stop: int) -> int | None:
        while stop > self.settled.low:
            start = max(self.settled.low, stop - _LOOK_BACK)
            found = self.ready_within(start, stop)
            if found:
                return found[-1][1] - 1
            stop = start
        return None

    def ready_ranges(self) -> Iterator[Range]:
        for level in reversed(self._ready):
            yield from level.ranges()

    def ready_of(self, priority: int, start: int = 0) -> Iterator[Range]:
        return self._ready[priority].ranges(start)

    # changes

    def extend(self, start: int, stop: int, messages: Sequence[Message]) -> None:
        """Make newly appended messages ready, which have the offsets [start, stop)."""
        self._end = stop
        highest = len(self._ready) - 1
        if not highest:
            self._ready[0].add(start, stop)
            return
        for offset, message in enumerate(messages, start):
            level = min(message.priority, highest)
            self._ready[level].add(offset, offset + 1)
            if level:
                self._levels[level].add(offset, offset + 1)

    def take(self, n: int, *, limit: int, before: int | None = None) -> list[Range]:
        """Put the next `n` ready offsets below `before` in flight, and return them.

        If the next offset is at or above `limit`, no more are taken: a lower priority must not overtake it.
        """
        before = OFFSET_LIMIT if before is None else before
        taken: list[Range] = []
        for level in filter(None, reversed(self._ready)):
            got = level.take(n, before=min(limit, before))
            taken += got
            n -= sum(stop - start for start, stop in got)
            left = level.first()
            if n <= 0 or (left is not None and left < before):
                break
        self.in_flight.add_many(taken)
        return taken

    def begin(self, ranges: Sequence[Range]) -> list[Range]:
        """Mark offsets as begun by their consumers; return those that were not begun before."""
        begun = self.unbegun.members_in(ranges)
        self.unbegun.remove_many(begun)
        return begun

    def lease(self, n: int) -> list[Range]:
        """Lease the next `n` ready offsets, and return them."""
        taken = self.take(n, limit=OFFSET_LIMIT)
        self.leased.add_many(taken)
        return taken

    def hold(self, ranges: Sequence[Range]) -> None:
        """Lease these offsets, which must be ready or delayed."""
        self.check_waiting(ranges)
        remove_from(self._ready, ranges)
        if self.delayed.remove_many(ranges):
            self._forget_delays()
        self.in_flight.add_many(ranges)
        self.leased.add_many(ranges)

    def release(self, ranges: Sequence[Range]) -> None:
        """Make leased offsets ready, without counting an attempt."""
        self.check_leased(ranges)
        self._leave_flight(ranges)
        self._make_ready(ranges)

    def wake(self, now_us: int) -> int:
        """Make offsets ready whose delay is over at `now_us`; return how many."""
        woken = 0
        over: list[Range] = []
        while self._due and self._due[0] >> DUE_SHIFT <= now_us:
            _, start, stop = unpacked(heappop(self._due))
            ended = self.delayed.members_in([(start, stop)])
            woken += self.delayed.remove_many(ended)
            over += ended
        if over:
            self._make_ready(over)
        return woken

    def _forget_delays(self) -> None:
        """Remove delays of offsets that are not delayed any more: an old one would end a later delay."""
        left = [
            packed(due_us, *each)
            for due_us, start, stop in map(unpacked, self._due)
            for each in self.delayed.ranges(start, stop)
        ]
        heapify(left)
        self._due = left

    def settle(self, ranges: Sequence[Range]) -> None:
        """Settle offsets in flight."""
        self._leave_flight(ranges)
        self._settle(ranges)

    def drop(self, ranges: Sequence[Range]) -> None:
        """Settle ready or delayed offsets."""
        self.check_waiting(ranges)
        remove_from((*self._ready, self.delayed), ranges)
        self._settle(ranges)

    def give_back(
        self, ranges: Sequence[Range], *, not_before_us: int = 0, counted: bool = True, why: bytes = b""
    ) -> None:
        """Return offsets in flight to their place, or delay them until `not_before_us`."""
        self._leave_flight(ranges)
        self._count(ranges, counted, why)
        if not_before_us:
            self._delay(ranges, not_before_us)
        else:
            self._make_ready(ranges)

    def seek(self, start: int, present: Iterable[Range], stop: int) -> list[Range]:
        """Begin anew at `start`. Settle and return the offsets that are not `present` in the log."""
        self._begin_at(start)
        for each in (*self._ready, *self._levels):
            each.clear()
        return self.open(present, stop)

    def _begin_at(self, start: int) -> None:
        self.settled = AckSet(start)
        for each in (self.in_flight, self.leased, self.unbegun, self.delayed, self.postponed):
            each.clear()
        self.counts.clear()
        self.reasons.clear()
        self._due, self._passed, self.retired_below = [], 0, 0

    def retire(self, ranges: Sequence[Range]) -> None:
        """Note that retention has settled these offsets."""
        self.retired_below = max(self.retired_below, *(stop for _, stop in ranges))

    def recall(self, ranges: Sequence[Range]) -> None:
        """Make settled offsets ready once more. The watermark stays at its offset."""
        self.check_settled(ranges)
        self._forget_delays()
        self._unsettle(ranges)
        self._make_ready(ranges)

    def _unsettle(self, ranges: Sequence[Range]) -> None:
        for start, stop in ranges:
            self.settled.unsettle(start, stop)
        self.postponed.add_many(ranges)
        self._count(ranges, counted=False)

    def _make_ready(self, ranges: Sequence[Range]) -> None:
        if len(self._ready) == 1:
            self._ready[0].add_many(ranges)
            return
        if sum(stop - start for start, stop in ranges) <= _FEW:
            for offset in chain.from_iterable(starmap(range, ranges)):
                self._ready[self._level(offset)].add(offset, offset + 1)
            return
        left = OffsetSet(ranges)
        for level in range(self.priorities, 0, -1):
            if self._levels[level]:
                self._ready[level].add_set(left.cut(self._levels[level]))
        self._ready[0].add_set(left)

    def check_waiting(self, ranges: Sequence[Range]) -> None:
        """Raise unless all offsets in the ranges are ready or delayed, and none occurs twice."""
        _check_disjoint(ranges)
        missing = first_missing(ranges, (*self._ready, self.delayed))
        if missing:
            raise BadRequest(
                f"offsets {missing[0]} to {missing[1] - 1} are not all waiting to be delivered",
                hint="Settle messages in flight with an ack or a reject; settled ones stay settled.",
            )

    def check_settled(self, ranges: Sequence[Range]) -> None:
        """Raise unless all offsets in the ranges are settled, and none occurs twice."""
        _check_disjoint(ranges)
        for start, stop in ranges:
            if stop > self._end or next(self.settled.unsettled(start, stop), None) is not None:
                hint = "Only settled messages can be recalled."
                raise BadRequest(f"{_offsets_are(start, stop)} not settled", hint=hint)

    def check_in_flight(self, ranges: Sequence[Range]) -> None:
        """Raise unless all offsets in the ranges are in flight, and none occurs twice."""
        _check_disjoint(ranges)
        for start, stop in ranges:
            if not self.in_flight.covers(start, stop):
                raise NotInFlight(f"{_offsets_are(start, stop)} not in flight")

    def check_leased(self, ranges: Sequence[Range]) -> None:
        """Raise unless all offsets in the ranges are leased, and none occurs twice."""
        _check_disjoint(ranges)
        for start, stop in ranges:
            if not self.leased.covers(start, stop):
                hint = "Only messages that are leased now can be released."
                raise NotInFlight(f"{_offsets_are(start, stop)} not leased", hint=hint)

    def _leave_flight(self, ranges: Sequence[Range]) -> None:
        """Take offsets out of flight; if some were not in flight, undo that and raise."""
        wanted = 0
        for start, stop in ranges:
            if not 0 <= start < stop:
                raise _not_a_range(start, stop)
            wanted += stop - start
        if self.in_flight.remove_many(ranges) != wanted:
            self.in_flight.add_set(self._was_in_flight(ranges))
            self.check_in_flight(ranges)
        for each in filter(None, (self.leased, self.unbegun)):
            each.remove_many(ranges)

    def _was_in_flight(self, ranges: Sequence[Range]) -> OffsetSet:
        """Return the offsets in the ranges that were in flight before `_leave_flight` removed them.

        They are below the end and neither settled, ready nor delayed.
        """
        found = OffsetSet()
        for start, stop in ranges:
            if start < self._end:
                found.add_many(self.settled.unsettled(start, min(stop, self._end)))
        for each in filter(None, (*self._ready, self.delayed)):
            found.cut(each)
        return found

    def _settle(self, ranges: Sequence[Range]) -> None:
        self.settled.settle_many(ranges)
        if self.counts:
            self.counts.remove_many(ranges)
            self.reasons.remove_many(ranges)
            self.postponed.remove_many(ranges)
        if self.priorities:
            remove_from(self._levels, ranges)

    def _count(self, ranges: Sequence[Range], counted: bool, why: bytes = b"") -> None:
        """Note a return of the offsets and its reason; the number of returns grows if `counted`."""
        first_time = OffsetSet(ranges)
        for count, inside in list(self.counts.parts(ranges)):
            first_time.remove_many(inside)
            if counted:
                self.counts.put(inside, count + 1)
        if first_time:
            self.counts.put(list(first_time.ranges()), int(counted))
        if why:
            self.reasons.put(ranges, why)

    def _delay(self, ranges: Sequence[Range], not_before_us: int) -> None:
        self.delayed.add_many(ranges)
        self.postponed.add_many(ranges)
        for start, stop in ranges:
            heappush(self._due, packed(not_before_us, start, stop))

    def _level(self, offset: int) -> int:
        return next((level for level in range(self.priorities, 0, -1) if offset in self._levels[level]), 0)

    # after a restart

    def apply(self, entry: Entry) -> None:  # noqa: C901  # one case for each kind of entry
        """Apply one entry of the journal. `open` computes the ready offsets after the last entry."""
        ranges = entry.ranges
        if entry.kind is Kind.STARTED:
            self.settled = AckSet(ranges[0][1])
            self.mark = max(self.mark, ranges[0][1])
        elif entry.kind is Kind.DELIVERED:
            self.delayed.remove_many(ranges)
            # Offsets are leased here only if the entry that ended their lease is damaged.
            self.leased.remove_many(ranges)
            self.in_flight.add_many(ranges)
            self.unbegun.remove_many(ranges)
            if entry.outcome == Attempt.WHEN_BEGUN:
                self.unbegun.add_many(ranges)
        elif entry.kind is Kind.LEASED:
            self.delayed.remove_many(ranges)
            self.unbegun.remove_many(ranges)
            self.in_flight.add_many(ranges)
            self.leased.add_many(ranges)
        elif entry.kind is Kind.RELEASED:
            for each in (self.in_flight, self.leased, self.unbegun):
                each.remove_many(ranges)
        elif entry.kind is Kind.SETTLED:
            for each in (self.in_flight, self.leased, self.unbegun, self.delayed):
                each.remove_many(ranges)
            self._settle(ranges)
            if entry.outcome == Outcome.RETENTION:
                self.retire(ranges)
        elif entry.kind is Kind.RETURNED:
            for each in (self.in_flight, self.leased, self.unbegun):
                each.remove_many(ranges)
            self._count(ranges, counted=bool(entry.outcome), why=entry.why)
            if entry.not_before_us:
                self.delayed.add_many(ranges)
                self.postponed.add_many(ranges)
                self._due.extend(packed(entry.not_before_us, start, stop) for start, stop in ranges)
        elif entry.kind is Kind.MARKED:
            self.mark = max(self.mark, ranges[0][1])
        elif entry.kind is Kind.REOPENED:
            self.redelivered_below = max(self.redelivered_below, ranges[0][1])
        elif entry.kind is Kind.SOUGHT:
            self._begin_at(ranges[0][1])
        elif entry.kind is Kind.RECALLED:
            self._unsettle(ranges)

    def open(self, present: Iterable[Range], stop: int) -> list[Range]:
        """Makes ready what is present; settles, and returns, what is neither present nor settled."""
        self._due = latest(self._due, self.delayed)
        heapify(self._due)
        self._end = stop
        there = OffsetSet(present)
        ready, absent, low = self._ready[0], [], self.settled.low
        for start, end in self.settled.unsettled(low, stop) if low < stop else ():
            at = start
            for first, after in there.ranges(start, end):
                ready.add(first, after)
                if at < first:
                    absent.append((at, first))
                at = after
            if at < end:
                absent.append((at, end))
        for taken in (self.in_flight, self.delayed):
            ready.remove_many(list(taken.ranges()))
        for busy in (self.in_flight, self.leased, self.unbegun, self.delayed):
            busy.remove_many(absent)
        self._settle(absent)
        return absent

    def prioritise(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Set the priorities of unsettled offsets, given as (offset, priority). Call it after `open`."""
        for offset, priority in offsets:
            level = min(priority, len(self._ready) - 1)
            if level and offset not in self.settled:
                self._levels[level].add(offset, offset + 1)
                if self._ready[0].remove(offset, offset + 1):
                    self._ready[level].add(offset, offset + 1)

    # snapshots

    @property
    def is_brief(self) -> bool:
        """Whether `encode` is quick and its result usually small."""
        sets = (self.settled.settled_above, self.in_flight, self.leased, self.unbegun, self.postponed)
        is_few = len(self.delayed) + len(self.counts) + len(self.reasons) <= _FEW
        return is_few and all(offsets.is_brief for offsets in sets)

    def copy(self) -> Progress:
        """Return a copy without the ready offsets, for a snapshot or checkpoint on another thread."""
        copy = Progress(priorities=self.priorities)
        copy.settled = self.settled.copy()
        copy.in_flight = self.in_flight.copy()
        copy.leased = self.leased.copy()
        copy.unbegun = self.unbegun.copy()
        copy.delayed = self.delayed.copy()
        copy.postponed = self.postponed.copy()
        copy.retired_below = self.retired_below
        copy.reasons = self.reasons.copy()
        copy.counts = self.counts.copy()
        copy.mark = self.mark
        copy.redelivered_below = self.redelivered_below
        copy._due = self._due.copy()
        return copy

    def encode(self) -> bytes:
        """Return the state as bytes, without ready offsets and priorities, which the log knows."""
        due = array("Q", chain.from_iterable(self.delays()))
        counts = array("Q", chain.from_iterable(self.counts.pairs()))
        sets = [self.settled.encode(), self.in_flight.encode()]
        parts = [*sets, due.tobytes(), counts.tobytes(), self.leased.encode()]
        head = _SECTIONS.pack(self.mark, self.redelivered_below, *map(len, parts))
        reasons = b"".join(_REASON.pack(offset, len(why)) + why for offset, why in self.reasons.pairs())
        tail = [self.postponed.encode(), reasons]
        data = b"".join((head, *parts, _TAIL.pack(self.retired_below, *map(len, tail)), *tail))
        if not self.unbegun:
            return data
        unbegun = self.unbegun.encode()
        return data + _SIZE.pack(len(unbegun)) + unbegun

    @classmethod
    def decode(cls, data: bytes, *, priorities: int = 0) -> Progress:
        mark, redelivered_below, *sizes = _SECTIONS.unpack_from(data)
        parts, at = _cut(data, _SECTIONS.size, sizes)
        progress = cls(priorities=priorities)
        progress.mark, progress.redelivered_below = mark, redelivered_below
        progress.settled = AckSet.decode(parts[0])
        progress.in_flight = OffsetSet.decode(parts[1])
        progress.leased = OffsetSet.decode(parts[4])
        due, counts = array("Q", parts[2]), array("Q", parts[3])
        delays = zip(due[::2], due[1::2], strict=True)
        progress._due = [packed(time_us, *each) for time_us, part in _by_value(delays) for each in part]
        heapify(progress._due)
        progress.delayed = OffsetSet((offset, offset + 1) for offset in due[::2])
        for count, part in _by_value(zip(counts[::2], counts[1::2], strict=True)):
            progress.counts.put(part, count)
        if at < len(data):
            progress.retired_below, *sizes = _TAIL.unpack_from(data, at)
            (postponed, reasons), at = _cut(data, at + _TAIL.size, sizes)
            progress.postponed = OffsetSet.decode(postponed)
            for why, part in _by_value(_reasons(reasons)):
                progress.reasons.put(part, why)
            if at < len(data):
                progress.unbegun = OffsetSet.decode(data[at + _SIZE.size :])
        else:
            # Older versions wrote no tail.
            progress.postponed = progress.delayed.copy()
        return progress


def _by_value(pairs: Iterable[tuple[int, V]]) -> Iterator[tuple[V, list[Range]]]:
    """Return the values with their offsets."""
    found: dict[V, list[Range]] = {}
    for offset, value in pairs:
        found.setdefault(value, []).append((offset, offset + 1))
    return ((value, list(OffsetSet(singles).ranges())) for value, singles in found.items())


def _cut(data: bytes, at: int, sizes: Iterable[int]) -> tuple[list[bytes], int]:
    """Return consecutive sections of these sizes, and the position after them."""
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts, at


def _reasons(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        offset, size = _REASON.unpack_from(data, at)
        at += _REASON.size + size
        yield offset, data[at - size : at]


def _check_disjoint(ranges: Sequence[Range]) -> None:
    end = -1
    for start, stop in sorted(ranges):
        if not 0 <= start < stop:
            raise _not_a_range(start, stop)
        if start < end:
            raise BadRequest(f"offset {start} is named twice", hint="Name each offset once in a request.")
        end = stop


def _not_a_range(start: int, stop: int) -> BadRequest:
    hint = "A range is [start, stop) with 0 <= start < stop."
    return BadRequest(f"{start} to {stop} is not a range", hint=hint)


def _offsets_are(start: int, stop: int) -> str:
    return f"offset {start} is" if stop == start + 1 else f"offsets {start} to {stop - 1} are"
