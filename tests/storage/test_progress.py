"""Single rules of `Progress`. All of them together, against a model, are in tests/properties."""

import gc
import sys
from collections.abc import Callable
from typing import ClassVar

import pytest

from leveret.storage.errors import BadRequest, NotInFlight
from leveret.storage.journal import Attempt, Entry, Kind, Outcome
from leveret.storage.offset_set import Range
from leveret.storage.progress import Progress
from tests.storage.builders import message, messages, offsets, singles

ALL = 1 << 40


@pytest.fixture
def progress() -> Progress:
    """Ten messages, 0 to 4 taken."""
    made = Progress()
    made.mark = 100
    made.extend(0, 10, messages(10))
    made.take(5, limit=ALL)
    return made


def prioritised(*priorities: int, highest: int = 9) -> Progress:
    made = Progress(priorities=highest)
    made.mark = 100
    made.extend(0, len(priorities), [message(b"", priority=each) for each in priorities])
    return made


def test_a_new_one_begins_where_it_is_told():
    progress = Progress(start=7)
    assert (progress.low, progress.ready, progress.span, progress.next_due_us) == (7, 0, 0, None)


class TestTaking:
    def test_the_lowest_come_first(self, progress):
        assert progress.take(3, limit=ALL) == [(5, 8)]

    def test_no_more_than_there_are(self, progress):
        assert progress.take(99, limit=ALL) == [(5, 10)]
        assert progress.take(1, limit=ALL) == []

    def test_nothing_at_or_above_the_limit(self, progress):
        assert progress.take(1, limit=5) == []
        assert progress.take(99, limit=6) == [(5, 6)]

    def test_nothing_overtakes_a_higher_priority_that_is_above_the_limit(self):
        progress = prioritised(0, 2, 0, 2)
        assert progress.take(9, limit=3) == [(1, 2)]
        assert progress.take(9, limit=3) == []
        assert progress.take(9, limit=3, before=3) == [(0, 1), (2, 3)]
        assert progress.take(9, limit=4) == [(3, 4)]

    def test_nothing_that_is_not_asked_for(self, progress):
        assert progress.take(99, limit=ALL, before=7) == [(5, 7)]

    def test_what_is_returned_comes_back_at_its_place(self, progress):
        progress.give_back([(1, 2), (3, 4)])
        assert progress.take(4, limit=ALL) == [(1, 2), (3, 4), (5, 7)]

    def test_the_highest_priority_comes_first_then_the_lowest_offset(self):
        progress = prioritised(0, 2, 1, 2, 0)
        assert offsets(progress.take(9, limit=ALL)) == [1, 3, 2, 0, 4]

    def test_priorities_above_the_highest_are_the_highest(self):
        assert offsets(prioritised(0, 2, 9, 1, highest=2).take(9, limit=ALL)) == [1, 2, 3, 0]

    def test_what_is_returned_keeps_its_priority(self):
        progress = prioritised(0, 2, 1)
        progress.take(3, limit=ALL)
        progress.give_back([(0, 3)])
        assert offsets(progress.ready_ranges()) == [1, 2, 0]
        assert [offsets(progress.ready_of(priority)) for priority in (0, 1, 2)] == [[0], [2], [1]]
        assert list(progress.ready_of(1, 3)) == []

    @pytest.mark.parametrize("n", [3, 300])
    @pytest.mark.parametrize("change", ["settle", "drop"])
    def test_what_is_settled_has_lost_its_priority(self, n, change):
        progress = prioritised(*(i % 3 for i in range(n)))
        if change == "settle":
            progress.take(n, limit=ALL)
        getattr(progress, change)(singles(range(n)))
        progress.recall([(0, n)])
        assert list(progress.ready_ranges()) == [(0, n)]

    def test_what_wakes_keeps_its_priority(self):
        progress = prioritised(0, 2, 1)
        progress.take(3, limit=ALL)
        progress.give_back([(0, 3)], not_before_us=50)
        assert (progress.ready, progress.next_due_us) == (0, 50)
        assert progress.wake(49) == 0
        assert progress.wake(50) == 3
        assert offsets(progress.ready_ranges()) == [1, 2, 0]


class TestLeases:
    def test_what_is_leased_is_in_flight(self, progress):
        assert progress.lease(2) == [(5, 7)]
        assert list(progress.in_flight.ranges()) == [(0, 7)]
        assert list(progress.leased.ranges()) == [(5, 7)]
        assert progress.take(9, limit=ALL) == [(7, 10)]
        assert list(progress.leased.ranges()) == [(5, 7)]

    def test_no_more_than_there_are(self, progress):
        assert progress.lease(99) == [(5, 10)]
        assert progress.lease(1) == []

    def test_the_highest_priority_comes_first(self):
        progress = prioritised(0, 2, 1, 2, 0)
        assert offsets(progress.lease(3)) == [1, 3, 2]
        assert list(progress.leased.ranges()) == [(1, 4)]

    def test_exactly_these_are_held(self, progress):
        progress.hold([(8, 9), (6, 7)])
        assert list(progress.leased.ranges()) == [(6, 7), (8, 9)]
        assert list(progress.in_flight.ranges()) == [(0, 5), (6, 7), (8, 9)]
        assert list(progress.ready_ranges()) == [(5, 6), (7, 8), (9, 10)]

    def test_what_is_held_may_have_any_priority(self):
        progress = prioritised(0, 2, 1, 2, 0)
        progress.hold([(0, 3)])
        assert offsets(progress.ready_ranges()) == [3, 4]

    def test_what_is_held_while_it_is_delayed_does_not_wake(self, progress):
        progress.give_back([(0, 2)], not_before_us=70)
        progress.hold([(0, 1)])
        assert list(progress.delays()) == [(1, 70)]
        assert progress.wake(70) == 1
        assert list(progress.leased.ranges()) == [(0, 1)]

    def test_the_delay_that_a_hold_has_ended_does_not_end_a_later_one(self, progress):
        progress.give_back([(0, 2)], not_before_us=70)
        progress.hold([(0, 1)])
        progress.give_back([(0, 1)], not_before_us=900)
        assert sorted(progress.delays()) == [(0, 900), (1, 70)]
        assert progress.wake(70) == 1
        assert list(progress.ready_ranges()) == [(1, 2), (5, 10)]
        assert progress.next_due_us == 900

    def test_what_is_released_is_ready_as_if_nobody_had_had_it(self, progress):
        progress.lease(3)
        progress.release([(7, 8), (5, 6)])
        assert list(progress.leased.ranges()) == [(6, 7)]
        assert list(progress.ready_ranges()) == [(5, 6), (7, 10)]
        assert progress.counts == {}
        assert not progress.is_redelivered(5)

    def test_what_is_released_keeps_the_count_it_had(self, progress):
        progress.give_back([(0, 1)])
        progress.hold([(0, 1)])
        progress.release([(0, 1)])
        assert progress.counts == {0: 1}

    def test_what_is_released_keeps_its_priority(self):
        progress = prioritised(0, 2, 1)
        progress.lease(3)
        progress.release([(0, 3)])
        assert offsets(progress.ready_ranges()) == [1, 2, 0]

    def test_what_was_delayed_is_ready_when_it_is_released(self, progress):
        progress.give_back([(0, 1)], not_before_us=70)
        progress.hold([(0, 1)])
        progress.release([(0, 1)])
        assert progress.take(1, limit=ALL) == [(0, 1)]
        assert progress.next_due_us is None

    def test_what_is_settled_is_no_longer_leased(self, progress):
        progress.lease(3)
        progress.settle([(4, 6)])
        assert list(progress.leased.ranges()) == [(6, 8)]

    @pytest.mark.parametrize("not_before_us", [0, 70])
    def test_what_is_returned_is_no_longer_leased_and_counts(self, progress, not_before_us):
        progress.lease(3)
        progress.give_back([(4, 6)], not_before_us=not_before_us)
        assert list(progress.leased.ranges()) == [(6, 8)]
        assert progress.counts == {4: 1, 5: 1}

    def test_what_was_leased_and_is_taken_again_is_not_leased(self, progress):
        progress.lease(1)
        progress.release([(5, 6)])
        assert progress.take(1, limit=ALL) == [(5, 6)]
        assert not progress.leased

    def test_a_copy_and_a_snapshot_have_the_leases(self, progress):
        progress.lease(2)
        for twin in (progress.copy(), Progress.decode(progress.encode())):
            assert twin.leased == progress.leased
            assert twin.in_flight == progress.in_flight
            twin.settle([(5, 6)])
            assert list(progress.leased.ranges()) == [(5, 7)]


class TestDelays:
    def test_each_wakes_at_its_time(self, progress):
        progress.give_back([(0, 2)], not_before_us=70)
        progress.give_back([(2, 3)], not_before_us=60)
        assert list(progress.delays()) == [(2, 60), (0, 70), (1, 70)]
        assert progress.wake(65) == 1
        assert progress.next_due_us == 70

    def test_what_is_dropped_while_it_waits_does_not_wake(self, progress):
        progress.give_back([(0, 2)], not_before_us=70)
        progress.drop([(0, 1)])
        assert list(progress.delays()) == [(1, 70)]
        assert progress.wake(70) == 1

    def test_a_later_delay_replaces_an_earlier_one_in_the_journal(self):
        progress = Progress()
        for due_us in (900, 500):
            progress.apply(Entry(Kind.DELIVERED, [(0, 1)]))
            progress.apply(Entry(Kind.RETURNED, [(0, 1)], 1, b"", due_us))
        progress.open([(0, 1)], 1)
        assert list(progress.delays()) == [(0, 500)]
        assert progress.counts == {0: 2}


class TestBegun:
    ENTRIES = (
        Entry(Kind.DELIVERED, [(0, 6)], Attempt.WHEN_BEGUN),
        Entry(Kind.DELIVERED, [(1, 2)], Attempt.BEGUN),
        Entry(Kind.SETTLED, [(2, 3)], Outcome.ACKED),
        Entry(Kind.RETURNED, [(3, 4)], 0),
    )

    def test_the_journal_tells_what_no_consumer_has_begun_with(self):
        progress = Progress()
        for entry in self.ENTRIES:
            progress.apply(entry)
        assert list(progress.unbegun.ranges()) == [(0, 1), (4, 6)]

    @pytest.mark.parametrize("kind", [Kind.DELIVERED, Kind.LEASED, Kind.RELEASED])
    def test_a_later_entry_replaces_it_where_the_return_is_lost(self, kind):
        progress = Progress()
        for entry in (*self.ENTRIES, Entry(kind, [(4, 6)])):
            progress.apply(entry)
        assert list(progress.unbegun.ranges()) == [(0, 1)]

    def test_a_snapshot_keeps_it(self):
        progress = Progress()
        for entry in self.ENTRIES:
            progress.apply(entry)
        decoded = Progress.decode(progress.copy().encode())
        assert list(decoded.unbegun.ranges()) == [(0, 1), (4, 6)]
        assert decoded.encode() == progress.encode()

    def test_a_snapshot_without_it_is_that_of_an_earlier_program(self):
        progress = Progress()
        progress.apply(Entry(Kind.DELIVERED, [(0, 2)]))
        before = progress.encode()
        progress.apply(Entry(Kind.DELIVERED, [(0, 2)], Attempt.WHEN_BEGUN))
        assert progress.encode().startswith(before)
        assert not Progress.decode(before).unbegun

    def test_what_is_settled_returned_or_sought_is_not_unbegun(self):
        progress = Progress()
        progress.extend(0, 4, [])
        progress.unbegun.add_many(progress.take(4, limit=ALL))
        assert progress.begin([(0, 1), (9, 10)]) == [(0, 1)]
        progress.settle([(1, 2)])
        progress.give_back([(2, 3)])
        assert list(progress.unbegun.ranges()) == [(3, 4)]
        progress.seek(0, [(0, 4)], 4)
        assert not progress.unbegun


class TestCounting:
    def test_a_return_counts_unless_it_is_not_to(self, progress):
        progress.give_back([(0, 2)])
        progress.take(2, limit=ALL)
        progress.give_back([(0, 1)], counted=False)
        assert progress.counts == {0: 1, 1: 1}
        assert progress.is_redelivered(1)

    def test_a_return_that_is_not_counted_is_a_redelivery_all_the_same(self, progress):
        progress.give_back([(0, 1)], counted=False)
        assert progress.counts == {0: 0}
        assert progress.is_redelivered(0)
        assert not progress.is_redelivered(1)

    @pytest.mark.parametrize("settled", [[(0, 1)], [(0, 5)]])
    def test_what_is_settled_is_forgotten(self, progress, settled):
        progress.give_back([(0, 2)])
        progress.take(2, limit=ALL)
        progress.settle(settled)
        assert set(progress.counts) == {0, 1} - set(offsets(settled))


class TestCountsOfOthers:
    def test_the_span_reaches_from_the_lowest_unsettled_to_the_highest_taken(self, progress):
        assert progress.span == 5
        progress.settle([(4, 5)])
        assert progress.span == 5
        progress.settle([(0, 4)])
        assert progress.span == 0

    def test_unsettled_are_counted_within_a_range(self, progress):
        progress.settle([(0, 1), (3, 4)])
        assert progress.unsettled_count(0, 10) == 8
        assert progress.unsettled_count(3, 5) == 1
        assert progress.unsettled_count(0, 1) == 0

    def test_what_waits_within_ranges_is_what_is_ready_and_what_is_delayed(self):
        progress = prioritised(0, 2, 1, 0)
        assert progress.waiting_within([(0, 1), (2, 9)]) == [(0, 1), (2, 4)]
        taken = progress.take(2, limit=4)
        assert progress.waiting_within([(0, 4)]) == [(0, 1), (3, 4)]
        progress.give_back(taken[:1], not_before_us=9)
        assert progress.waiting_within([(0, 4)]) == [(0, 2), (3, 4)]

    def test_what_is_ready_within_a_range_comes_as_runs(self):
        assert prioritised(0, 2, 1, 0).ready_within(1, 4) == [(1, 4)]


class TestRefusals:
    def seen(self, progress: Progress) -> tuple[object, ...]:
        return progress.encode(), list(progress.ready_ranges()), list(progress.in_flight.ranges())

    def refuse(self, progress, change, ranges, error=BadRequest):
        before = self.seen(progress)
        with pytest.raises(error) as caught:
            change(ranges)
        assert caught.value.hint
        assert self.seen(progress) == before

    @pytest.mark.parametrize("ranges", [[(5, 6)], [(4, 6)], [(0, 1), (9, 10)], [(9, 10), (0, 1)], [(0, 10)]])
    def test_what_was_not_taken_cannot_be_settled_or_returned(self, progress, ranges):
        for change in (progress.settle, progress.give_back, progress.check_in_flight):
            self.refuse(progress, change, ranges, NotInFlight)

    def test_what_is_settled_or_delayed_cannot_be_settled_again(self, progress):
        progress.settle([(1, 2)])
        progress.give_back([(2, 3)], not_before_us=9)
        for ranges in ([(1, 2)], [(2, 3)], [(0, 5)]):
            self.refuse(progress, progress.settle, ranges, NotInFlight)

    @pytest.mark.parametrize(
        "ranges", [[(0, 1), (0, 1)], [(0, 3), (2, 4)], [(2, 4), (0, 3)], [(0, 5), (1, 2)]]
    )
    def test_nothing_can_be_named_twice(self, progress, ranges):
        for change in (progress.settle, progress.give_back, progress.check_in_flight):
            self.refuse(progress, change, ranges)

    @pytest.mark.parametrize("ranges", [[(0, 1)], [(4, 6)], [(5, 6), (5, 6)], [(9, 11)]])
    def test_only_what_waits_can_be_dropped(self, progress, ranges):
        self.refuse(progress, progress.drop, ranges)

    @pytest.mark.parametrize("ranges", [[(10, 11)], [(4, 12)], [(0, 1), (50, 51)]])
    def test_nothing_beyond_the_end_can_be_settled(self, progress, ranges):
        self.refuse(progress, progress.settle, ranges, NotInFlight)

    @pytest.mark.parametrize("bad", [(3, 3), (4, 3), (-1, 1)])
    @pytest.mark.parametrize("change", ["settle", "give_back"])
    def test_a_range_must_be_one(self, progress, change, bad):
        self.refuse(progress, getattr(progress, change), [(0, 1), bad])

    def test_a_range_to_drop_must_be_one(self, progress):
        self.refuse(progress, progress.drop, [(6, 7), (8, 8)])

    @pytest.mark.parametrize(
        "ranges", [[(4, 5)], [(4, 7)], [(5, 6), (0, 1)], [(9, 10)], [(5, 9)], [(7, 8), (50, 51)]]
    )
    def test_only_what_is_leased_can_be_released(self, progress, ranges):
        progress.lease(3)
        for change in (progress.release, progress.check_leased):
            self.refuse(progress, change, ranges, NotInFlight)

    @pytest.mark.parametrize(
        ("range_", "said"), [((4, 5), "offset 4 is not leased"), ((4, 7), "offsets 4 to 6 are not leased")]
    )
    def test_a_refused_release_says_what_is_not_leased(self, progress, range_, said):
        progress.lease(3)
        with pytest.raises(NotInFlight) as caught:
            progress.release([range_])
        assert (caught.value.message, "released" in caught.value.hint) == (said, True)

    @pytest.mark.parametrize("ranges", [[(5, 6), (5, 6)], [(6, 8), (5, 7)], [(5, 6), (7, 7)], [(-1, 6)]])
    def test_a_release_names_ranges_and_each_offset_once(self, progress, ranges):
        progress.lease(3)
        self.refuse(progress, progress.release, ranges)

    def test_what_is_settled_or_returned_can_not_be_released(self, progress):
        progress.lease(3)
        progress.settle([(5, 6)])
        progress.give_back([(6, 7)])
        for ranges in ([(5, 6)], [(6, 7)], [(5, 8)]):
            self.refuse(progress, progress.release, ranges, NotInFlight)

    @pytest.mark.parametrize("ranges", [[(0, 1)], [(4, 6)], [(6, 7), (5, 6)], [(8, 9), (8, 9)], [(9, 11)]])
    def test_only_what_waits_can_be_held(self, progress, ranges):
        progress.lease(1)
        self.refuse(progress, progress.hold, ranges)

    def test_what_is_leased_can_not_be_dropped(self, progress):
        progress.lease(1)
        self.refuse(progress, progress.drop, [(5, 6)])

    @pytest.mark.parametrize("change", ["settle", "give_back"])
    def test_a_refused_settlement_or_return_leaves_the_leases(self, progress, change):
        progress.lease(3)
        self.refuse(progress, getattr(progress, change), [(5, 9)], NotInFlight)
        assert list(progress.leased.ranges()) == [(5, 8)]

    @pytest.mark.parametrize("change", ["settle", "drop", "give_back", "hold", "release"])
    def test_settling_nothing_changes_nothing(self, progress, change):
        progress.lease(1)
        before = self.seen(progress)
        getattr(progress, change)([])
        assert self.seen(progress) == before


def calls(change: Callable[[], object]) -> int:
    """How many functions run meanwhile: what a change costs, whatever else the machine does."""
    seen = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    gc.disable()  # what it calls is not the change's
    sys.setprofile(count)
    try:
        change()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


class TestManyPriorities:
    """The cost of a change must not grow with rows times levels, because the event loop runs it."""

    ROWS = 1_000
    LOOKS = 256 * ROWS  # at each row in each level
    USED: ClassVar = {"three": [0, 5, 200], "all": list(range(256))}

    @pytest.fixture(params=list(USED))
    def progress(self, request) -> Progress:
        """Twice as many rows, and every second one is asked for, singly."""
        used = self.USED[request.param]
        return prioritised(*(used[i % len(used)] for i in range(2 * self.ROWS)), highest=255)

    @property
    def rows(self) -> list[Range]:
        return singles(range(0, 2 * self.ROWS, 2))

    def in_order(self, progress: Progress, numbers: list[int]) -> list[int]:
        """In which they come, by the levels that they were given."""
        return sorted(numbers, key=lambda offset: (-progress._level(offset), offset))

    @pytest.mark.parametrize("change", ["check_waiting", "waiting_within", "hold", "drop"])
    def test_what_waits_is_not_looked_for_row_by_row_in_every_level(self, progress, change):
        left = self.in_order(progress, list(range(1, 2 * self.ROWS, 2)))
        assert calls(lambda: getattr(progress, change)(self.rows)) < self.LOOKS
        if change in ("hold", "drop"):
            assert offsets(progress.ready_ranges()) == left

    @pytest.mark.parametrize("change", ["settle", "release", "give_back"])
    def test_what_was_taken_is_not_looked_for_row_by_row_in_every_level(self, progress, change):
        progress.hold(self.rows)
        assert calls(lambda: getattr(progress, change)(self.rows)) < self.LOOKS
        back = range(1, 2 * self.ROWS, 2) if change == "settle" else range(2 * self.ROWS)
        assert offsets(progress.ready_ranges()) == self.in_order(progress, list(back))

    def test_what_wakes_is_not_looked_for_row_by_row_in_every_level(self, progress):
        progress.hold(self.rows)
        progress.give_back(self.rows, not_before_us=50)
        assert calls(lambda: progress.wake(50)) < self.LOOKS
        assert offsets(progress.ready_ranges()) == self.in_order(progress, list(range(2 * self.ROWS)))

    def test_a_refused_settle_does_not_look_row_by_row_in_every_level(self, progress):
        progress.hold(self.rows)

        def refused() -> None:
            with pytest.raises(NotInFlight, match="offset 1 is not in flight"):
                progress.settle([*self.rows, (1, 2)])

        assert calls(refused) < self.LOOKS
        assert list(progress.in_flight.ranges()) == self.rows

    def test_a_refused_drop_does_not_look_row_by_row_in_every_level(self, progress):
        progress.hold([(1_500, 1_501), (500, 501)])

        def refused() -> None:
            with pytest.raises(BadRequest) as caught:
                progress.drop(self.rows[::-1])
            assert caught.value.message == "offsets 1500 to 1500 are not all waiting to be delivered"

        assert calls(refused) < self.LOOKS
        assert progress.ready == 2 * self.ROWS - 2

    def test_rows_that_are_shown_at_once_are_not_added_one_by_one(self, progress):
        everything = [(0, 2 * self.ROWS)]
        order = offsets(progress.ready_ranges())
        progress.hold(everything)
        assert calls(lambda: progress.release(everything)) < self.LOOKS
        assert offsets(progress.ready_ranges()) == order

    def test_a_range_is_checked_without_a_look_at_its_rows(self, progress):
        assert calls(lambda: progress.check_waiting([(0, 2 * self.ROWS)])) < self.LOOKS / 32

    def test_levels_without_rows_are_passed_over(self):
        progress = prioritised(0, 0, 0, highest=255)
        for change in (
            lambda: progress.take(1, limit=ALL),
            lambda: progress.ready_from(0),
            lambda: progress.hold([(1, 2)]),
            lambda: progress.drop([(2, 3)]),
            lambda: progress.settle([(0, 1)]),
        ):
            assert calls(change) < 4 * 256


class TestOpening:
    def test_what_is_not_there_is_settled_and_said(self):
        progress = Progress()
        progress.apply(Entry(Kind.DELIVERED, [(0, 2)]))
        progress.apply(Entry(Kind.RETURNED, [(4, 5)], 1, b"", 900))
        assert progress.open([(1, 2), (6, 8)], 10) == [(0, 1), (2, 6), (8, 10)]
        assert list(progress.in_flight.ranges()) == [(1, 2)]
        assert list(progress.ready_ranges()) == [(6, 8)]
        assert not progress.delayed

    def test_of_the_leases_only_what_is_there_is_left(self):
        progress = Progress()
        progress.apply(Entry(Kind.LEASED, [(0, 4)]))
        assert progress.open([(1, 2), (3, 5)], 5) == [(0, 1), (2, 3)]
        assert list(progress.leased.ranges()) == [(1, 2), (3, 4)]
        assert progress.in_flight == progress.leased
        assert list(progress.ready_ranges()) == [(4, 5)]

    @pytest.mark.parametrize(
        ("end", "ready"),
        [
            (Entry(Kind.RELEASED, [(0, 1)]), [(0, 1)]),
            (Entry(Kind.RETURNED, [(0, 1)], 1), [(0, 1)]),
            (Entry(Kind.RETURNED, [(0, 1)], 1, b"", 900), []),
            (Entry(Kind.SETTLED, [(0, 1)]), []),
        ],
    )
    def test_an_entry_ends_a_lease(self, end, ready):
        progress = Progress()
        progress.apply(Entry(Kind.LEASED, [(0, 2)]))
        progress.apply(end)
        progress.open([(0, 2)], 2)
        assert list(progress.leased.ranges()) == [(1, 2)]
        assert progress.in_flight == progress.leased
        assert list(progress.ready_ranges()) == ready

    def test_a_lease_ends_a_delay_in_the_journal_too(self):
        progress = Progress()
        progress.apply(Entry(Kind.DELIVERED, [(0, 1)]))
        progress.apply(Entry(Kind.RETURNED, [(0, 1)], 1, b"", 900))
        progress.apply(Entry(Kind.LEASED, [(0, 1)]))
        progress.open([(0, 1)], 1)
        assert (list(progress.delays()), progress.next_due_us) == ([], None)
        assert list(progress.leased.ranges()) == [(0, 1)]

    def test_a_delivery_ends_a_lease_whose_end_is_lost(self):
        progress = Progress()
        for entry in (Entry(Kind.LEASED, [(0, 2)]), Entry(Kind.DELIVERED, [(0, 1)])):
            progress.apply(entry)
        assert list(progress.leased.ranges()) == [(1, 2)]
        assert list(progress.in_flight.ranges()) == [(0, 2)]

    def test_of_an_empty_log_there_is_nothing(self):
        assert Progress().open([], 0) == []

    def test_what_has_a_priority_gets_it_unless_it_is_settled(self):
        progress = Progress(priorities=1)
        progress.apply(Entry(Kind.SETTLED, [(0, 1)]))
        progress.open([(0, 4)], 4)
        progress.prioritise([(0, 1), (3, 5), (2, 0)])
        assert offsets(progress.ready_ranges()) == [3, 1, 2]

    def test_a_started_cursor_knows_nothing_of_what_is_below(self):
        progress = Progress()
        progress.apply(Entry(Kind.STARTED, [(0, 3)]))
        assert (progress.low, progress.mark) == (3, 3)

    def test_marks_only_grow(self):
        progress = Progress()
        for entry in (Entry(Kind.MARKED, [(0, 9)]), Entry(Kind.MARKED, [(0, 5)])):
            progress.apply(entry)
        for entry in (Entry(Kind.REOPENED, [(0, 9)]), Entry(Kind.REOPENED, [(0, 5)])):
            progress.apply(entry)
        assert (progress.mark, progress.redelivered_below) == (9, 9)
        assert progress.is_redelivered(8)


def test_a_copy_goes_its_own_way(progress):
    progress.give_back([(0, 1)], not_before_us=9)
    twin = progress.copy()
    before = progress.encode()
    twin.settle(singles(range(1, 5)))
    assert progress.encode() == before != twin.encode()
