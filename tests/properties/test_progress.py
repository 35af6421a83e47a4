"""`Progress` against a dict from offset to state, and against the fold of its own journal.

Every change goes three ways: to the progress, as an entry to a journal, and to the model. After every step
the progress must agree with the model, survive encoding, and be what the journal folds to. Requests that
make no sense must raise and leave everything as it was.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.storage.errors import BadRequest, NotInFlight
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.offset_chunk import CHUNK_SIZE
from leveret.storage.offset_set import Range
from leveret.storage.progress import Progress
from leveret.storage.records import Record
from tests.examples import examples
from tests.storage.builders import message, messages, offsets, runs, singles

READY, IN_FLIGHT, DELAYED, SETTLED = "ready", "in flight", "delayed", "settled"
MARK = 1 << 20
Change = Callable[[list[Range]], None]

bounds = st.one_of(st.none(), st.integers(0, 60))


@dataclass
class Known:
    """The model's state of one offset."""

    priority: int
    state: str = READY
    due_us: int = 0
    count: int | None = None
    leased: bool = False
    postponed: bool = False
    why: bytes = b""


class Machine(RuleBasedStateMachine):
    @initialize(start=st.sampled_from([0, 0, 3]), priorities=st.sampled_from([0, 0, 2]), n=st.integers(1, 20))
    def begin(self, start: int, priorities: int, n: int) -> None:
        self.start = start
        self.priorities = priorities
        self.progress = Progress(start=start, priorities=priorities)
        self.progress.mark = MARK
        self.journal = [Entry(Kind.STARTED, [(0, start)]), Entry(Kind.MARKED, [(0, MARK)])]
        self.known: dict[int, Known] = {}
        self.next = start
        self.now_us = 100
        self.watermark = 0
        self.extend(n, 1)

    # rules

    @rule(n=st.integers(1, 12), priority=st.integers(0, 4))
    def extend(self, n: int, priority: int) -> None:
        self.progress.extend(self.next, self.next + n, messages(n, priority=priority))
        for offset in range(self.next, self.next + n):
            self.known[offset] = Known(min(priority, self.priorities))
        self.next += n

    @rule(n=st.integers(0, 15), before=bounds, limit=bounds)
    def take(self, n: int, before: int | None, limit: int | None) -> None:
        limit = MARK if limit is None else limit
        asked_for = [offset for offset in self.in_order() if before is None or offset < before]
        expected = list(takewhile(lambda offset: offset < limit, asked_for))[:n]
        taken = self.progress.take(n, limit=limit, before=before)
        assert offsets(taken) == expected
        assert all(start < stop for start, stop in taken)
        if taken:
            self.note(Kind.DELIVERED, taken, IN_FLIGHT)

    @rule(n=st.integers(0, 8))
    def lease(self, n: int) -> None:
        expected = self.in_order()[:n]
        taken = self.progress.lease(n)
        assert offsets(taken) == expected
        if taken:
            self.note(Kind.LEASED, taken, IN_FLIGHT)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        ranges = self.choose(data, READY, DELAYED)
        self.progress.hold(ranges)
        self.note(Kind.LEASED, ranges, IN_FLIGHT)

    @precondition(lambda self: any(each.leased for each in self.known.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ranges = self.choose_leased(data)
        self.progress.release(ranges)
        self.note(Kind.RELEASED, ranges, READY)

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ranges = self.choose(data, IN_FLIGHT)
        self.progress.settle(ranges)
        self.note(Kind.SETTLED, ranges, SETTLED, outcome=Outcome.ACKED)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        ranges = self.choose(data, READY, DELAYED)
        self.progress.drop(ranges)
        self.note(Kind.SETTLED, ranges, SETTLED, outcome=Outcome.PURGED)

    @rule(
        data=st.data(),
        delay_us=st.sampled_from([0, 0, 1, 30, 500]),
        counted=st.booleans(),
        why=st.sampled_from([b"", b"timed out"]),
    )
    def give_back(self, data: st.DataObject, delay_us: int, counted: bool, why: bytes) -> None:
        ranges = self.choose(data, IN_FLIGHT)
        due_us = self.now_us + delay_us if delay_us else 0
        self.progress.give_back(ranges, not_before_us=due_us, counted=counted, why=why)
        state = DELAYED if due_us else READY
        self.note(Kind.RETURNED, ranges, state, outcome=counted, due_us=due_us, why=why)
        for offset in offsets(ranges):
            self.known[offset].count = (self.known[offset].count or 0) + counted

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(self.start, self.next))
        present = [(self.start, self.next)] if self.start < self.next else []
        assert self.progress.seek(target, present, self.next) == []
        self.progress.prioritise((offset, each.priority) for offset, each in self.known.items())
        self.journal.append(Entry(Kind.SOUGHT, [(0, target)]))
        for offset, each in self.known.items():
            self.known[offset] = Known(each.priority, READY if offset >= target else SETTLED)
        self.watermark = 0

    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        ranges = self.choose(data, SETTLED)
        if self.priorities:  # what is settled has lost its priority
            return
        self.progress.recall(ranges)
        self.note(Kind.RECALLED, ranges, READY)
        for offset in offsets(ranges):
            self.known[offset].count = 0
            self.known[offset].postponed = True

    @rule(data=st.data())
    def refuse_to_recall_what_is_not_settled(self, data: st.DataObject) -> None:
        wrong = self.choose(data, READY, IN_FLIGHT, DELAYED)
        if wrong:
            self.refuse(BadRequest, wrong, self.progress.recall)

    @rule(step_us=st.integers(0, 200))
    def wait(self, step_us: int) -> None:
        self.now_us += step_us
        due = [each for each in self.known.values() if each.state == DELAYED and each.due_us <= self.now_us]
        assert self.progress.wake(self.now_us) == len(due)
        for each in due:
            each.state = READY

    @rule()
    def note_synced(self) -> None:
        """Entries that only the audit reads change nothing."""
        self.journal.append(Entry(Kind.SYNCED, [(0, max(1, self.next))]))

    # requests that make no sense

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def refuse_what_is_not_in_flight(self, data: st.DataObject) -> None:
        """Something that was not taken, alone, among others, or as a part of a range."""
        ranges = self.choose(data, IN_FLIGHT)
        wrong = self.choose(data, READY, DELAYED, SETTLED)
        if data.draw(st.booleans()) and ranges and wrong:
            lowest = min(ranges[0][0], wrong[0][0])
            ranges = [(lowest, max(ranges[-1][1], wrong[-1][1]))]  # one range with a hole in it
        elif wrong:
            ranges = data.draw(st.permutations(ranges + wrong))
        if any(self.known[offset].state != IN_FLIGHT for offset in offsets(ranges)):
            self.refuse(NotInFlight, ranges, self.progress.settle)
            self.refuse(NotInFlight, ranges, self.progress.give_back)
            self.refuse(NotInFlight, ranges, self.progress.check_in_flight)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def refuse_to_release_what_is_not_leased(self, data: st.DataObject) -> None:
        """In flight is not enough."""
        leased = self.choose_leased(data)
        others = [offset for offset, each in self.known.items() if not each.leased]
        wrong = self.some_of(data, others)
        if wrong:
            ranges = data.draw(st.permutations(leased + wrong))
            self.refuse(NotInFlight, ranges, self.progress.release)
            self.refuse(NotInFlight, ranges, self.progress.check_leased)

    @rule(data=st.data())
    def refuse_what_is_named_twice(self, data: st.DataObject) -> None:
        for ranges, change in self.requests(data):
            if ranges:
                again = data.draw(st.sampled_from(singles(offsets(ranges))))
                self.refuse(BadRequest, [*ranges, again], change)
                self.refuse(BadRequest, [again, *ranges], change)

    @rule(data=st.data())
    def refuse_to_drop_or_hold_what_is_not_waiting(self, data: st.DataObject) -> None:
        ranges = self.choose(data, READY, DELAYED)
        wrong = self.choose(data, IN_FLIGHT, SETTLED)
        if wrong:
            self.refuse(BadRequest, [*ranges, *wrong], self.progress.drop)
            self.refuse(BadRequest, [*ranges, *wrong], self.progress.hold)

    @rule(data=st.data(), beyond=st.integers(0, 3))
    def refuse_what_was_never_there(self, data: st.DataObject, beyond: int) -> None:
        never = (self.next + beyond, self.next + beyond + 2)
        for ranges, change in self.requests(data):
            self.refuse(BadRequest, [*ranges, never], change)

    @rule(data=st.data(), width=st.integers(-2, 0))
    def refuse_ranges_that_are_none(self, data: st.DataObject, width: int) -> None:
        at = data.draw(st.integers(0, max(1, self.next)))
        for ranges, change in self.requests(data):
            self.refuse(BadRequest, [*ranges, (at, at + width)], change)

    def requests(self, data: st.DataObject) -> Iterator[tuple[list[Range], Change]]:
        """Each of the changes, with something that it could be asked for."""
        progress = self.progress
        for change in (progress.settle, progress.give_back):
            yield self.choose(data, IN_FLIGHT), change
        for change in (progress.drop, progress.hold):
            yield self.choose(data, READY, DELAYED), change
        yield self.choose_leased(data), progress.release

    def refuse(self, error: type[BadRequest], ranges: list[Range], change: Change) -> None:
        before = self.seen(self.progress)
        with pytest.raises(error) as caught:
            change(ranges)
        assert caught.value.hint
        assert self.seen(self.progress) == before

    # what must hold

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "progress"):
            return
        progress, known = self.progress, self.known
        where = {state: [o for o, each in known.items() if each.state == state] for state in STATES}
        assert offsets(progress.ready_ranges()) == self.in_order()
        assert progress.ready == len(where[READY])
        assert offsets(progress.in_flight.ranges()) == where[IN_FLIGHT]
        assert offsets(progress.leased.ranges()) == [o for o in where[IN_FLIGHT] if known[o].leased]
        assert offsets(progress.delayed.ranges()) == where[DELAYED]
        settled = [*range(self.start), *where[SETTLED]]
        assert [o for o in range(self.next) if o in progress.settled] == settled
        assert progress.counts == {o: k.count for o, k in known.items() if k.count is not None}
        assert sorted(progress.delays()) == [(o, known[o].due_us) for o in where[DELAYED]]
        assert (progress.next_due_us is None) <= (not where[DELAYED])
        unsettled = [offset for offset in known if known[offset].state != SETTLED]
        assert progress.low == min(unsettled, default=max(self.next, self.start))
        postponed = [offset for offset in unsettled if known[offset].postponed]
        assert offsets(progress.postponed.ranges()) == postponed
        assert progress.reasons == {o: known[o].why for o in unsettled if known[o].why}
        waited_for = [offset for offset in unsettled if offset not in postponed]
        assert progress.watermark == min(waited_for, default=max(self.next, self.start))
        assert progress.watermark >= self.watermark
        self.watermark = progress.watermark
        assert all(progress.is_redelivered(o) == (known[o].count is not None) for o in unsettled)
        self.check_counts_within(self.next // 3, 2 * self.next // 3 + 1, where)

    def check_counts_within(self, start: int, stop: int, where: dict[str, list[int]]) -> None:
        inside = range(start, stop)
        ready = [offset for offset in where[READY] if offset in inside]
        busy = [offset for offset in where[IN_FLIGHT] + where[DELAYED] if offset in inside]
        late = [offset for offset in ready if self.known[offset].postponed]
        assert offsets(self.progress.never_taken(start, stop)) == sorted(set(ready) - set(late))
        unissued = max(0, stop - max(start, self.next))
        assert self.progress.ready_within(start, stop) == runs(ready)
        assert self.progress.unsettled_count(start, stop) == len(ready) + len(busy) + unissued

    @invariant()
    def survives_encoding(self) -> None:
        if hasattr(self, "progress"):
            image = self.progress.copy().encode()
            assert image == self.progress.encode()
            decoded = Progress.decode(image, priorities=self.priorities)
            assert decoded.encode() == image
            self.open(decoded)
            assert self.seen(decoded) == self.seen(self.progress)

    @invariant()
    def is_the_fold_of_its_journal(self) -> None:
        if hasattr(self, "progress"):
            folded = Progress(priorities=self.priorities)
            for number, entry in enumerate(self.journal):
                folded.apply(Entry.of(Record(number, 5, *entry.message())))
            self.open(folded)
            assert self.seen(folded) == self.seen(self.progress)

    # the model

    def open(self, progress: Progress) -> None:
        present = [(self.start, self.next)] if self.start < self.next else []
        assert progress.open(present, self.next) == []
        progress.prioritise((offset, each.priority) for offset, each in self.known.items())
        progress.wake(self.now_us)

    def seen(self, progress: Progress) -> tuple[object, ...]:
        return (progress.encode(), list(progress.ready_ranges()), list(progress.delayed.ranges()))

    def in_order(self) -> list[int]:
        ready = [offset for offset, each in self.known.items() if each.state == READY]
        return sorted(ready, key=lambda offset: (-self.known[offset].priority, offset))

    def choose(self, data: st.DataObject, *states: str) -> list[Range]:
        """Some offsets in these states, as single offsets or as runs."""
        return self.some_of(data, [o for o, each in self.known.items() if each.state in states])

    def choose_leased(self, data: st.DataObject) -> list[Range]:
        return self.some_of(data, [offset for offset, each in self.known.items() if each.leased])

    def some_of(self, data: st.DataObject, candidates: list[int]) -> list[Range]:
        if not candidates:
            return []
        chosen = sorted(data.draw(st.sets(st.sampled_from(candidates), min_size=1, max_size=12)))
        return runs(chosen) if data.draw(st.booleans()) else singles(chosen)

    def note(
        self,
        kind: Kind,
        ranges: list[Range],
        state: str,
        *,
        outcome: int = 0,
        due_us: int = 0,
        why: bytes = b"",
    ) -> None:
        self.journal.append(Entry(kind, ranges, int(outcome), b"", due_us, why=why))
        for offset in offsets(ranges):
            self.known[offset].state = state
            self.known[offset].due_us = due_us
            self.known[offset].leased = kind is Kind.LEASED
            self.known[offset].postponed |= due_us > 0
            self.known[offset].why = why or self.known[offset].why
            if state == SETTLED:
                self.known[offset] = Known(self.known[offset].priority, SETTLED)


@given(
    start=st.sampled_from([0, CHUNK_SIZE - 150]),
    n=st.sampled_from([5, 64, 65, 130, 400]),
    used=st.lists(st.sampled_from([0, 1, 3, 4, 255]), min_size=1, max_size=12),
    highest=st.sampled_from([1, 4, 255]),
    chosen=st.lists(st.booleans(), min_size=1, max_size=7),
    joined=st.booleans(),
)
def test_many_rows_at_once_are_like_one_after_the_other(
    start: int, n: int, used: list[int], highest: int, chosen: list[bool], joined: bool
) -> None:
    """The ways for a few and for many may differ in nothing but in what they cost."""
    rows = range(start, start + n)
    levels = [used[i % len(used)] for i in range(n)]
    picked = [row for row in rows if chosen[row % len(chosen)]]
    ranges = runs(picked) if joined else singles(picked)
    at_once, singly = (Progress(start=start, priorities=highest) for _ in range(2))
    for progress in (at_once, singly):
        progress.extend(start, rows.stop, [message(b"", priority=level) for level in levels])
    for change in ("hold", "release", "hold", "give_back", "drop"):
        getattr(at_once, change)(ranges)
        for row in picked:
            getattr(singly, change)([(row, row + 1)])
        left = [row for row in rows if row not in picked] if change in ("hold", "drop") else list(rows)
        by_priority = sorted(left, key=lambda row: (-min(levels[row - start], highest), row))
        assert offsets(at_once.ready_ranges()) == offsets(singly.ready_ranges()) == by_priority
        assert at_once.waiting_within([(start, rows.stop)]) == runs(left)
        assert at_once.encode() == singly.encode()


@given(n=st.integers(1, 200), highest=st.sampled_from([0, 3]), data=st.data())
def test_a_refusal_names_the_first_range_that_does_not_wait(
    n: int, highest: int, data: st.DataObject
) -> None:
    progress = Progress(priorities=highest)
    progress.extend(0, n, [message(b"", priority=row % 5) for row in range(n)])
    taken = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=5))
    progress.hold(singles(sorted(taken)))
    asked = data.draw(st.permutations(range(n)))
    first = next(row for row in asked if row in taken)
    with pytest.raises(BadRequest, match=f"offsets {first} to {first} are not all waiting"):
        progress.drop(singles(asked))
    with pytest.raises(NotInFlight):
        progress.settle([*singles(asked), (n, n + 2)])
    assert offsets(progress.in_flight.ranges()) == sorted(taken)


STATES = (READY, IN_FLIGHT, DELAYED, SETTLED)

TestProgress = Machine.TestCase
TestProgress.settings = examples(60, stateful_step_count=40)
