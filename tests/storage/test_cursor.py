"""One cursor through its store: the mark, restarts, priorities, names. Against a model: tests/properties."""

from random import Random

import pytest

from leveret.storage.cursor import MARK_AHEAD
from leveret.storage.errors import BadName, BadRequest, NotInFlight, OffsetOutOfRange, UnknownCursor
from leveret.storage.journal import Attempt, Entry, Kind, Outcome, Promise
from leveret.storage.records import PERSISTENT
from tests.storage.builders import killed, make_store, message, messages, offsets

MANY = MARK_AHEAD + 1000


def entries(cursor) -> list[Entry]:
    return [Entry.of(record) for record in cursor.journal.read([(0, cursor.journal.next)])]


def reader(store, id_: int = 1):
    return store.cursors(id_)["reader"]


@pytest.fixture(params=["closed", "killed", "killed after a checkpoint"])
def restart(request, store, disk, clock):
    def restarted():
        if request.param == "closed":
            store.close()
            return make_store(disk, clock)
        store.sync()
        if request.param == "killed after a checkpoint":
            store.checkpoint()
        return killed(disk, clock)

    return restarted


class TestJournal:
    def test_every_change_is_an_entry(self, store, log, cursor, clock):
        store.append(log, messages(6))
        start, now = cursor.journal.next, clock.now_us
        cursor.take(4, who=b"alice")
        cursor.settle([(0, 1)], Outcome.REJECTED, who=b"alice")
        cursor.give_back([(1, 2)], not_before_us=77, counted=False, who=b"alice")
        cursor.give_back([(2, 3)])
        cursor.drop([(5, 6)], Outcome.EXPIRED)
        cursor.note_synced([(0, 6)])
        cursor.note_synced([(0, 2)], published_us=now - 5, exchange=b"orders")
        cursor.lease(1, who=b"query")
        cursor.hold([(4, 5)], who=b"query")
        cursor.release([(1, 2)], who=b"query")
        assert entries(cursor)[start:] == [
            Entry(Kind.DELIVERED, [(0, 4)], 0, b"alice", 0, now),
            Entry(Kind.SETTLED, [(0, 1)], Outcome.REJECTED, b"alice", 0, now),
            Entry(Kind.RETURNED, [(1, 2)], 0, b"alice", 77, now),
            Entry(Kind.RETURNED, [(2, 3)], 1, b"", 0, now),
            Entry(Kind.SETTLED, [(5, 6)], Outcome.EXPIRED, b"", 0, now),
            Entry(Kind.SYNCED, [(0, 6)], 0, b"", 0, now),
            Entry(Kind.SYNCED, [(0, 2)], 0, b"", now - 5, now, b"orders"),
            Entry(Kind.LEASED, [(1, 2)], 0, b"query", 0, now),
            Entry(Kind.LEASED, [(4, 5)], 0, b"query", 0, now),
            Entry(Kind.RELEASED, [(1, 2)], 0, b"query", 0, now),
        ]

    def test_that_a_consumer_has_begun_is_an_entry_once(self, store, log, cursor):
        store.append(log, messages(6))
        start = cursor.journal.next
        cursor.take(4, who=b"alice", unbegun=True)
        cursor.take(1, who=b"bob")
        for _ in range(2):
            cursor.begin([(1, 3), (4, 6)], who=b"alice")
        found = cursor.entries(start, cursor.journal.next)
        assert [(entry.kind, entry.ranges, entry.outcome, entry.who) for entry in found] == [
            (Kind.DELIVERED, [(0, 4)], Attempt.WHEN_BEGUN, b"alice"),
            (Kind.DELIVERED, [(4, 5)], Attempt.WHEN_DELIVERED, b"bob"),
            (Kind.DELIVERED, [(1, 3)], Attempt.BEGUN, b"alice"),
        ]
        assert offsets(cursor.progress.unbegun.ranges()) == [0, 3]

    def test_what_is_taken_for_several_is_written_down_with_their_names_when_they_are_known(
        self, store, log, cursor
    ):
        store.append(log, messages(4))
        start = cursor.journal.next
        assert cursor.take(4) == [(0, 4)]
        cursor.note_taken([(0, 1), (2, 3)], who=b"alice")
        cursor.note_taken([(1, 2), (3, 4)], who=b"bob")
        found = cursor.entries(start, cursor.journal.next)
        assert [(entry.kind, entry.ranges, entry.who) for entry in found] == [
            (Kind.DELIVERED, [(0, 4)], b""),
            (Kind.SYNCED, [(0, 1), (2, 3)], b"alice"),
            (Kind.SYNCED, [(1, 2), (3, 4)], b"bob"),
        ]
        assert not cursor.audited
        assert store.create_cursor(log, "audited", audit_us=1).audited

    def test_notes_for_the_audit_have_no_effect(self, store, log, cursor, disk):
        store.append(log, messages(4))
        assert cursor.take(3, who=b"alice") == [(0, 3)]
        before, start = cursor.progress.encode(), cursor.journal.next
        cursor.note_missed([(0, 1)], who=b"alice")
        cursor.note_withheld([(1, 3)])
        cursor.note_synced([(3, 4)], promise=Promise.NONE)
        assert cursor.progress.encode() == before
        found = cursor.entries(start, cursor.journal.next)
        assert [(entry.kind, entry.ranges, entry.outcome, entry.who) for entry in found] == [
            (Kind.MISSED, [(0, 1)], 0, b"alice"),
            (Kind.WITHHELD, [(1, 3)], 0, b""),
            (Kind.SYNCED, [(3, 4)], 1, b""),
        ]
        store.sync()
        again = make_store(disk.crash(Random(1))).cursors(1)["reader"]
        assert again.progress.low == 0

    def test_its_entries_can_be_read_by_their_numbers(self, store, log, cursor):
        store.append(log, messages(2))
        start = cursor.journal.next
        cursor.take(1)
        cursor.settle([(0, 1)])
        found = cursor.entries(start, cursor.journal.next)
        assert [entry.kind for entry in found] == [Kind.DELIVERED, Kind.SETTLED]
        assert cursor.entries(start + 1, start + 2) == found[1:]

    def test_a_time_of_publishing_that_does_not_fit_is_refused(self, cursor):
        with pytest.raises(BadRequest):
            cursor.note_synced([(0, 1)], published_us=1 << 63)

    def test_a_delivery_of_nothing_is_no_entry(self, cursor):
        before = cursor.journal.next
        assert cursor.take(5) == []
        assert cursor.lease(5) == []
        assert cursor.journal.next == before

    def test_it_says_what_it_is(self, cursor):
        assert repr(cursor) == "Cursor('reader' of log 1, low 0)"
        assert cursor.name == "reader"

    def test_a_refused_request_is_no_entry(self, store, log, cursor):
        store.append(log, messages(3))
        cursor.take(1)
        before = cursor.journal.next
        for request in (
            lambda: cursor.settle([(1, 2)]),
            lambda: cursor.give_back([(0, 2)]),
            lambda: cursor.drop([(0, 1)], Outcome.PURGED),
            lambda: cursor.settle([(0, 1), (0, 1)]),
            lambda: cursor.hold([(0, 2)]),
            lambda: cursor.release([(0, 1)]),
        ):
            with pytest.raises(BadRequest):
                request()
        assert cursor.journal.next == before

    def test_a_name_of_a_consumer_that_does_not_fit_is_refused(self, store, log, cursor):
        store.append(log, messages(3))
        cursor.lease(1)
        before = cursor.progress.encode()
        for request in (
            lambda who: cursor.take(1, who=who),
            lambda who: cursor.lease(1, who=who),
            lambda who: cursor.hold([(1, 2)], who=who),
            lambda who: cursor.release([(0, 1)], who=who),
        ):
            with pytest.raises(BadRequest):
                request(b"x" * 256)
        assert cursor.progress.encode() == before
        store.sync()

    @pytest.mark.parametrize("not_before_us", [-1, 1 << 64])
    def test_a_time_that_does_not_fit_is_refused(self, store, log, cursor, not_before_us):
        store.append(log, messages(3))
        cursor.take(3)
        before = cursor.progress.encode()
        with pytest.raises(BadRequest):
            cursor.give_back([(0, 1)], not_before_us=not_before_us)
        assert cursor.progress.encode() == before

    def test_a_negative_number_of_messages_is_refused(self, cursor):
        for request in (cursor.take, cursor.lease):
            with pytest.raises(BadRequest) as caught:
                request(-1)
            assert caught.value.hint


class TestTheMark:
    def test_a_new_cursor_delivers_at_once_for_its_mark_can_only_be_lost_together_with_it(self, store, log):
        store.append(log, messages(3))
        assert store.create_cursor(log, "late").take(3) == [(0, 3)]

    def test_nothing_at_or_above_the_durable_mark_is_handed_out(self, store, log, cursor):
        store.append(log, messages(MANY))
        assert cursor.take(MANY) == [(0, MARK_AHEAD)]
        assert cursor.take(MANY) == []
        store.sync()
        assert cursor.take(MANY) == [(MARK_AHEAD, MANY)]

    def test_the_mark_moves_when_half_of_it_is_used(self, store, log, cursor):
        store.append(log, messages(MANY))
        before = cursor.progress.mark
        cursor.take(MARK_AHEAD // 2)
        assert cursor.progress.mark == before
        cursor.take(1)
        assert cursor.progress.mark == MARK_AHEAD // 2 + 1 + MARK_AHEAD

    def test_a_limit_below_the_mark_is_kept(self, store, log, cursor):
        store.append(log, messages(10))
        assert cursor.take(10, before=4) == [(0, 4)]
        assert cursor.take(10, before=1 << 40) == [(4, 10)]

    def test_after_an_unclean_stop_everything_delivered_comes_again_as_redelivered(self, store, log, disk):
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(20))
        store.sync()
        assert cursor.take(10) == [(0, 10)]  # of which no sync tells
        reopened = reader(killed(disk))
        assert all(reopened.returns.is_redelivered(offset) for offset in range(10))
        assert reopened.take(99) == [(0, 20)]

    def test_after_a_clean_stop_only_what_was_delivered_is_redelivered(self, store, log, cursor, disk):
        store.append(log, messages(20))
        cursor.take(10)
        store.close()
        reopened = reader(make_store(disk))
        assert [offset for offset in range(20) if reopened.returns.is_redelivered(offset)] == list(range(10))
        assert [reopened.returns.count(offset) for offset in (0, 10)] == [1, 0]

    def test_a_mark_below_everything_that_is_ready_moves_with_the_next_sync(self, store, log, cursor):
        store.append(log, messages(MARK_AHEAD))
        cursor.drop([(0, MARK_AHEAD)], Outcome.PURGED)
        store.append(log, messages(1))
        for _ in range(3):
            store.sync()
            taken = cursor.take(1)
            if taken:
                break
        assert taken == [(MARK_AHEAD, MARK_AHEAD + 1)]

    def test_a_high_priority_far_above_the_mark_comes_first_after_a_sync(self, store, log):
        cursor = store.create_cursor(log, "reader", priorities=1)
        store.append(log, messages(MARK_AHEAD))
        store.append(log, messages(1, priority=1))
        store.sync()
        cursor.take(1)
        store.sync()
        assert cursor.take(1) == [(MARK_AHEAD, MARK_AHEAD + 1)]


class TestLeases:
    def test_they_stay_in_flight_while_everything_else_comes_back(self, store, log, cursor, restart):
        store.append(log, messages(9))
        cursor.take(2)
        assert cursor.lease(3) == [(2, 5)]
        cursor.hold([(7, 8)])
        reopened = reader(restart())
        assert list(reopened.progress.leased.ranges()) == [(2, 5), (7, 8)]
        assert reopened.progress.in_flight == reopened.progress.leased
        assert [reopened.returns.count(offset) for offset in range(9)] == [1, 1] + [0] * 7
        assert reopened.take(9) == [(0, 2), (5, 7), (8, 9)]

    def test_they_stay_in_flight_however_often_the_store_is_opened(self, store, log, cursor, disk, clock):
        store.append(log, messages(4))
        cursor.lease(2)
        store.sync()
        for _ in range(3):
            disk = disk.restart()
            store = make_store(disk, clock)
        store.close()
        reopened = reader(make_store(disk, clock))
        assert list(reopened.progress.leased.ranges()) == [(0, 2)]
        reopened.settle([(0, 1)])
        reopened.release([(1, 2)])
        assert reopened.take(9) == [(1, 4)]

    def test_what_has_ended_them_survives(self, store, log, cursor, clock, restart):
        store.append(log, messages(6))
        cursor.lease(5)
        cursor.settle([(0, 1)])
        cursor.release([(1, 2)])
        cursor.give_back([(2, 3)])
        cursor.give_back([(3, 4)], not_before_us=clock.now_us + 500)
        reopened = reader(restart())
        assert list(reopened.progress.leased.ranges()) == [(4, 5)]
        assert [reopened.returns.count(offset) for offset in range(6)] == [0, 0, 1, 1, 0, 0]
        assert reopened.take(9) == [(1, 3), (5, 6)]
        clock.now_us += 500
        assert reopened.take(9) == [(3, 4)]

    def test_what_was_leased_and_then_delivered_comes_back(self, store, log, cursor, restart):
        store.append(log, messages(2))
        cursor.release(cursor.lease(2))
        cursor.take(1)
        reopened = reader(restart())
        assert not reopened.progress.in_flight
        assert reopened.take(9) == [(0, 2)]

    def test_what_is_due_can_be_leased(self, store, log, cursor, clock):
        store.append(log, messages(2))
        cursor.take(2)
        cursor.give_back([(0, 1)], not_before_us=clock.now_us + 500)
        assert cursor.lease(9) == []
        clock.now_us += 500
        assert cursor.lease(9) == [(0, 1)]

    def test_what_was_delayed_when_it_was_held_stays_leased(self, store, log, cursor, clock, restart):
        store.append(log, messages(2))
        cursor.take(2)
        cursor.give_back([(0, 2)], not_before_us=clock.now_us + 500)
        cursor.hold([(0, 1)])
        reopened = reader(restart())
        clock.now_us += 500
        assert reopened.take(9) == [(1, 2)]
        assert list(reopened.progress.leased.ranges()) == [(0, 1)]

    def test_those_of_transient_messages_end_with_a_restart(self, store, log, cursor, restart):
        store.append(log, [message(b"%d" % i, flags=PERSISTENT * (i % 2)) for i in range(6)])
        cursor.lease(4)
        store.flush(log)
        reopened = reader(restart())
        assert list(reopened.progress.leased.ranges()) == [(1, 2), (3, 4)]
        assert reopened.progress.in_flight == reopened.progress.leased
        assert [offset in reopened.progress.settled for offset in range(6)] == [True, False] * 3
        assert reopened.take(9) == [(5, 6)]

    def test_what_is_released_after_a_restart_has_its_priority(self, store, log, restart):
        cursor = store.create_cursor(log, "reader", priorities=5)
        store.append(log, [message(b"", priority=each) for each in (0, 7, 2, 5, 0)])
        assert offsets(cursor.lease(3)) == [1, 3, 2]
        reopened = reader(restart())
        reopened.release([(1, 4)])
        assert offsets(reopened.take(9)) == [1, 3, 2, 0, 4]

    def test_the_mark_does_not_hold_them_back(self, store, log, cursor):
        store.append(log, messages(MANY))
        assert cursor.lease(MANY) == [(0, MANY)]

    def test_one_that_is_not_durable_is_lost_with_a_crash_and_was_seen_by_nobody(self, store, log, disk):
        cursor = store.create_cursor(log, "reader")
        store.append(log, messages(MANY))
        store.sync()
        cursor.lease(MANY)
        reopened = reader(make_store(disk.crash(Random(2))))
        assert not reopened.progress.leased
        assert reopened.progress.ready == MANY
        assert not reopened.returns.is_redelivered(MANY - 1)

    def test_snapshots_know_them(self, store, log, cursor, restart):
        store.append(log, messages(40))
        for _ in range(10):
            lowest = cursor.lease(4)[0][0]
            cursor.settle([(lowest, lowest + 1)])
            cursor.release([(lowest + 3, lowest + 4)])
            store.checkpoint()
        assert cursor.snapshot > 0
        leased = cursor.progress.leased.copy()
        assert leased
        assert reader(restart()).progress.leased == leased

    def test_a_cursor_that_is_deleted_leases_nothing(self, store, log, cursor):
        store.append(log, messages(2))
        cursor.lease(1)
        store.delete_cursor(cursor)
        for request in (
            lambda: cursor.lease(1),
            lambda: cursor.hold([(1, 2)]),
            lambda: cursor.release([(0, 1)]),
        ):
            with pytest.raises(UnknownCursor):
                request()


class TestStart:
    @pytest.fixture
    def half_gone(self, store, log, cursor):
        store.append(log, messages(10))
        cursor.settle(cursor.take(4))
        store.checkpoint()
        store.append(log, messages(2))
        return log

    @pytest.mark.parametrize(
        ("start", "expected"), [(None, range(4, 12)), (0, range(4, 12)), (7, range(7, 12)), (12, [])]
    )
    def test_a_cursor_begins_where_it_is_told(self, store, half_gone, disk, start, expected):
        cursor = store.create_cursor(half_gone, "late", start=start)
        store.sync()
        assert list(cursor.progress.ready_ranges()) == ([(expected[0], 12)] if expected else [])
        reopened = killed(disk).cursors(1)["late"]
        assert offsets(reopened.take(99)) == list(expected)

    @pytest.mark.parametrize("start", [-1, 13, 1 << 63])
    def test_a_start_outside_the_log_is_refused(self, store, half_gone, start):
        before = store.ticket
        with pytest.raises(OffsetOutOfRange) as caught:
            store.create_cursor(half_gone, "late", start=start)
        assert caught.value.hint
        assert store.ticket == before
        assert "late" not in store.cursors(half_gone.id)

    def test_two_cursors_do_not_know_of_each_other(self, store, log, cursor):
        store.append(log, messages(4))
        other = store.create_cursor(log, "other")
        store.sync()
        cursor.settle(cursor.take(4))
        with pytest.raises(NotInFlight):
            other.settle([(0, 1)])
        assert other.take(4) == [(0, 4)]

    @pytest.mark.parametrize(
        "name", ["", "a/b", "/", ".", "..", ".hidden", "a\nb", "a\0b", "x" * 201, "é" * 101]
    )
    def test_a_name_that_is_no_name_of_a_directory_is_refused(self, store, log, name):
        before = store.ticket
        with pytest.raises(BadName) as caught:
            store.create_cursor(log, name)
        assert caught.value.hint
        assert store.ticket == before
        assert not store.cursors(log.id)

    @pytest.mark.parametrize("name", ["x" * 200, "é" * 100, "a b", "spark: sales", "…"])
    def test_other_names_are_fine(self, store, log, disk, name):
        store.create_cursor(log, name)
        store.checkpoint()
        assert set(killed(disk).cursors(1)) == {name}

    def test_a_name_that_is_taken_is_refused(self, store, log, cursor):
        with pytest.raises(BadName) as caught:
            store.create_cursor(log, "reader")
        assert caught.value.hint
        assert store.cursors(log.id)["reader"] is cursor

    def test_negative_priorities_are_refused(self, store, log):
        with pytest.raises(BadRequest):
            store.create_cursor(log, "reader", priorities=-1)


class TestRestarts:
    def test_delays_and_counts_survive(self, store, log, cursor, clock, restart):
        store.append(log, messages(5))
        cursor.take(5)
        cursor.give_back([(1, 3)], not_before_us=clock.now_us + 500)
        cursor.give_back([(3, 4)])
        reopened = reader(restart())
        assert [reopened.returns.count(offset) for offset in range(5)] == [1, 1, 1, 1, 1]
        assert reopened.take(9) == [(0, 1), (3, 5)]
        clock.now_us += 500
        assert reopened.take(9) == [(1, 3)]

    def test_only_what_was_begun_counts_after_a_restart(self, store, log, cursor, restart):
        store.append(log, messages(6))
        cursor.take(4, unbegun=True)
        cursor.take(1)
        cursor.begin([(1, 2)])
        cursor.settle([(3, 4)])
        reopened = reader(restart())
        assert [reopened.returns.count(offset) for offset in (0, 1, 2, 4)] == [0, 1, 0, 1]
        assert all(map(reopened.returns.is_redelivered, (0, 1, 2, 4)))
        assert not reopened.progress.unbegun

    def test_settlements_survive(self, store, log, cursor, restart):
        store.append(log, messages(9))
        cursor.take(9)
        cursor.settle([(0, 2), (4, 5)])
        assert reader(restart()).take(9) == [(2, 4), (5, 9)]

    def test_transient_messages_end_with_a_restart(self, store, log, cursor, restart):
        store.append(log, [message(b"%d" % i, flags=PERSISTENT * (i % 2)) for i in range(6)])
        cursor.take(2)
        store.flush(log)
        reopened = reader(restart())
        assert offsets(reopened.take(9)) == [1, 3, 5]
        assert entries(reopened)[-1].kind is Kind.DELIVERED
        assert Outcome.RESTART in {entry.outcome for entry in entries(reopened)}

    def test_priorities_survive(self, store, log, restart):
        store.create_cursor(log, "reader", priorities=5)
        store.append(log, [message(b"", priority=each) for each in (0, 7, 2, 5, 0)])
        reopened = reader(restart())
        assert reopened.progress.priorities == 5
        assert offsets(reopened.take(9)) == [1, 3, 2, 0, 4]

    def test_snapshots_tell_the_same_as_the_journal(self, store, log, cursor, clock, restart):
        store.append(log, messages(40))
        for _ in range(10):
            cursor.take(4)
            lowest = next(cursor.progress.in_flight.ranges())[0]
            cursor.settle([(lowest, lowest + 1)])
            cursor.give_back([(lowest + 1, lowest + 2)], not_before_us=clock.now_us + 5000)
            store.checkpoint()
        assert cursor.snapshot > 0
        expected = dict(cursor.progress.delays())
        unsettled = list(cursor.progress.settled.unsettled(0, 40))
        reopened = reader(restart())
        assert dict(reopened.progress.delays()) == expected
        assert list(reopened.progress.settled.unsettled(0, 40)) == unsettled


def test_a_cursor_that_comes_later_knows_the_priorities_of_what_is_in_memory(store, log):
    store.append(log, [message(b"", priority=each) for each in (0, 2, 1)])
    cursor = store.create_cursor(log, "late", priorities=5)
    store.sync()
    assert offsets(cursor.take(9)) == [1, 2, 0]


def test_a_cursor_that_comes_later_knows_the_priorities_of_what_is_in_segments(store, log):
    store.append(log, [message(b"", priority=each) for each in (0, 2, 1)])
    store.flush(log)
    cursor = store.create_cursor(log, "late", priorities=5)
    store.sync()
    assert offsets(cursor.take(9)) == [1, 2, 0]


def test_what_was_never_durable_is_settled_when_its_offsets_are_gone(store, log, cursor, disk):
    store.append(log, messages(3))
    store.sync()
    store.append(log, messages(4))
    reopened = make_store(disk.crash(Random(3)))
    cursor = reader(reopened)
    start, stop = reopened.append(cursor.log, messages(1))
    assert start > 7
    reopened.sync()
    assert cursor.take(99) == [(0, 3), (start, stop)]


def test_a_cursor_that_comes_after_a_restart_does_not_see_transient_messages_of_before(
    store, log, disk, clock
):
    store.append(log, messages(2))
    store.append(log, messages(3, flags=0))
    store.checkpoint()
    reopened = killed(disk, clock)
    again = reopened.log(log.id)
    late = reopened.create_cursor(again, "late")
    reopened.append(again, messages(1, flags=0))
    reopened.sync()
    taken = late.take(99)
    assert offsets(taken)[:2] == [0, 1]
    assert [record.offset for record in again.read(taken)] == offsets(taken)
    assert len(offsets(taken)) == 3
