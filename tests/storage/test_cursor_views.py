"""The questions that a cursor answers. What the state behind them does: test_progress.py."""

from __future__ import annotations

from leveret.storage.journal import Outcome
from tests.storage.builders import messages


def test_an_offset_is_waiting_in_flight_or_settled(store, log, cursor, clock):
    store.append(log, messages(10))
    cursor.take(5)
    cursor.settle([(0, 2), (3, 4)])
    cursor.give_back([(2, 3)], not_before_us=clock.now_us + 9)
    waiting, in_flight, settled = cursor.waiting, cursor.in_flight, cursor.settled
    assert (waiting.ready, waiting.delayed, len(in_flight)) == (5, 1, 1)
    assert (list(waiting.ready_ranges()), list(waiting.delayed_ranges())) == ([(5, 10)], [(2, 3)])
    assert (in_flight.offsets_in([(0, 10)]), in_flight.first, 4 in in_flight) == ([(4, 5)], 4, True)
    assert list(settled.unsettled_within(0, 10)) == [(2, 3), (4, 10)]
    assert [offset in settled for offset in range(5)] == [True, True, False, True, False]
    assert waiting.offsets_in([(0, 7)]) == [(2, 3), (5, 7)]


def test_the_next_due_time_and_the_next_offset_are_told(store, log, cursor, clock):
    store.append(log, messages(3))
    cursor.take(2)
    cursor.give_back([(0, 2)], not_before_us=clock.now_us + 9)
    assert (cursor.waiting.next_due_us, cursor.waiting.next_ready) == (clock.now_us + 9, 2)
    assert list(cursor.waiting.delays()) == [(0, clock.now_us + 9), (1, clock.now_us + 9)]
    cursor.wake(clock.now_us + 9)
    assert (cursor.waiting.next_due_us, cursor.waiting.next_ready) == (None, 0)


def test_ready_offsets_are_found_upwards_and_downwards(store, log, cursor):
    store.append(log, messages(8))
    cursor.take(3)
    cursor.drop([(4, 5), (7, 8)], Outcome.EXPIRED)
    waiting = cursor.waiting
    assert (waiting.first_ready(), waiting.first_ready(4), waiting.first_ready(7)) == (3, 5, None)
    assert (waiting.last_ready(8), waiting.last_ready(5), waiting.last_ready(3)) == (6, 3, None)
    assert waiting.ready_within([(6, 8), (0, 5)]) == [(6, 7), (3, 4)]


def test_holes_are_what_is_open_below_something_settled(store, log, cursor):
    store.append(log, messages(10))
    cursor.take(8)
    assert (cursor.settled.hole_count(), list(cursor.settled.holes())) == (0, [])
    cursor.settle([(2, 3), (5, 6)])
    settled = cursor.settled
    assert (settled.hole_count(), list(settled.holes())) == (2, [(0, 2), (3, 5)])
    assert (settled.low, settled.above_low, settled.highest_taken, settled.span) == (0, 2, 7, 8)


def test_returns_are_counted_and_have_a_reason(store, log, cursor):
    store.append(log, messages(4))
    cursor.take(4)
    cursor.give_back([(0, 2)], why=b"no paper")
    cursor.give_back([(2, 3)], counted=False)
    returns = cursor.returns
    assert ([returns.count(offset) for offset in range(4)], len(returns)) == ([1, 1, 0, 0], 3)
    assert returns.by_count([(0, 4)]) == {1: [(0, 2)], 0: [(2, 3), (3, 4)]}
    assert returns.counts_in([(1, 4)]) == {1: 1, 2: 0}
    assert (returns.reason(0), returns.reason(2)) == (b"no paper", None)
    assert [returns.has_reason(1, why) for why in (b"no paper", b"no ink")] == [True, False]
    assert [returns.any_reason([each]) for each in ((1, 3), (2, 4))] == [True, False]


def test_leases_and_messages_that_nobody_has_begun_are_told_apart(store, log, cursor):
    store.append(log, messages(6))
    cursor.take(2, unbegun=True)
    cursor.lease(2)
    in_flight = cursor.in_flight
    assert (in_flight.has_unbegun, in_flight.unbegun_within([(1, 6)])) == (True, [(1, 2)])
    assert (in_flight.leased(), in_flight.first_leased) == ([(2, 4)], 2)
    assert in_flight.leased_within([(3, 6), (0, 3)]) == [(3, 4), (2, 3)]


def test_a_new_cursor_does_not_see_what_another_one_has_settled(store, log, cursor):
    keeper = store.create_cursor(log, "keeper")
    store.append(log, messages(6))
    cursor.drop([(1, 3)], Outcome.DROPPED)
    assert store.create_cursor(log, "all").waiting.ready == 6
    late = store.create_cursor(log, "late", visible_to=cursor)
    assert list(late.waiting.ready_ranges()) == [(0, 1), (3, 6)]
    keeper.seek(0, visible_to=cursor)
    assert list(keeper.waiting.ready_ranges()) == [(0, 1), (3, 6)]


def test_the_soonest_delays_are_told_first_without_a_sort_of_all(store, log, cursor, clock):
    store.append(log, messages(40))
    for offset in range(40):
        cursor.give_back(cursor.take(1), not_before_us=clock.now_us + 1 + (offset * 7) % 40)
    # Messages that are settled are not delayed any more.
    cursor.drop([(0, 3)], Outcome.PURGED)
    told = list(cursor.waiting.delays())
    assert told == list(cursor.progress.delays())
    assert told == sorted(told, key=lambda delay: delay[1])
    assert len(told) == 37


def test_the_messages_that_were_returned_most_come_first(store, log, cursor):
    store.append(log, messages(4))
    for count in (4, 3, 1):
        cursor.give_back(cursor.take(count))
    assert list(cursor.returns.above(1)) == [(0, 3), (1, 2), (2, 2)]
    assert list(cursor.returns.above(3)) == []
