from random import Random

import pytest

from leveret.storage.errors import BadRequest, NotInFlight, StorageError, UnknownCursor, UnknownLog
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.log import APPEND_BYTES_MAX
from tests.storage.builders import make_store, message, messages


@pytest.fixture
def other(store):
    made = store.create_log(label="dead letters")
    store.create_cursor(made, "other")
    store.sync()
    return made


@pytest.fixture
def moved(store, log, cursor, other):
    """Return an uncommitted transaction that moves 0 and 1 from one log to another and returns 2."""
    store.append(log, messages(5))
    cursor.take(3)
    store.append(other, messages(1))  # with it the reservation is durable, and the next append is not synced
    store.sync()
    transaction = store.transaction()
    transaction.append(other, messages(2))
    transaction.append(log, messages(1))
    transaction.settle(cursor, [(0, 2)], Outcome.DEAD_LETTERED, who=b"alice")
    transaction.give_back(cursor, [(2, 3)], not_before_us=1 << 50)
    transaction.append(other, messages(3))
    return transaction


def test_nothing_happens_before_the_commit(store, log, cursor, other, moved):
    assert (log.next, other.next, store.ticket) == (5, 1, store.safe_ticket)
    assert list(cursor.progress.in_flight.ranges()) == [(0, 3)]


def test_a_commit_does_everything_and_says_the_offsets(store, log, cursor, other, moved):
    ticket = moved.commit()
    assert ticket == store.ticket
    assert moved.offsets == [(1, 3), (5, 6), (3, 6)]
    assert (log.next, other.next) == (6, 6)
    assert cursor.progress.low == 2
    assert list(cursor.progress.delays()) == [(2, 1 << 50)]
    assert cursor.returns.count(2) == 1
    assert store.cursors(other.id)["other"].take(9) == [(0, 6)]


@pytest.mark.parametrize("synced", [True, False])
def test_after_a_crash_all_of_it_is_there_or_nothing(store, log, other, moved, disk, synced):
    moved.commit()
    if synced:
        store.sync()
    for seed in range(10):
        reopened = make_store(disk.copy().crash(Random(seed)))
        here, there = reopened.log(log.id), reopened.log(other.id)
        cursor = reopened.cursors(here.id)["reader"]
        assert [o in cursor.progress.settled for o in range(3)] == [synced, synced, False]
        assert dict(cursor.progress.delays()) == ({2: 1 << 50} if synced else {})
        assert len(there.read([(0, there.next)])) == (6 if synced else 1)
        assert len(here.read([(2, here.next)])) == (4 if synced else 3)


def test_a_transaction_is_committed_once(moved, log):
    moved.commit()
    with pytest.raises(BadRequest) as caught:
        moved.commit()
    assert caught.value.hint
    assert log.next == 6


def test_an_empty_transaction_is_fine(store):
    assert store.transaction().commit() == store.ticket


class TestRefusals:
    @pytest.fixture(autouse=True)
    def unchanged(self, store, log, cursor, other, moved):
        before = (log.next, other.next, cursor.progress.encode(), cursor.journal.next)
        yield
        assert (log.next, other.next, cursor.progress.encode(), cursor.journal.next) == before

    def refuse(self, transaction, error):
        with pytest.raises(error) as caught:
            transaction.commit()
        assert caught.value.hint

    def test_what_was_not_taken(self, cursor, moved):
        moved.settle(cursor, [(4, 5)], Outcome.ACKED)
        self.refuse(moved, NotInFlight)

    def test_what_is_settled_and_returned_in_one(self, cursor, moved):
        moved.give_back(cursor, [(1, 2)])
        self.refuse(moved, BadRequest)

    @pytest.mark.parametrize("ranges", [[(2, 3)], [(3, 4)], [(2, 4)], [(4, 5)]])
    def test_what_was_taken_or_waits_and_is_not_leased(self, store, cursor, other, ranges):
        transaction = store.transaction()
        transaction.append(other, messages(2))
        transaction.release(cursor, ranges)
        self.refuse(transaction, NotInFlight)

    def test_what_is_released_and_settled_in_one(self, cursor, moved):
        moved.release(cursor, [(1, 2)])
        self.refuse(moved, BadRequest)

    def test_what_is_held_for_somebody_whose_name_does_not_fit(self, cursor, moved):
        moved.append_held(cursor, messages(1), who=b"x" * 256)
        self.refuse(moved, BadRequest)

    def test_what_is_held_for_a_cursor_that_is_deleted(self, store, log, moved):
        gone = store.create_cursor(log, "gone")
        store.delete_cursor(gone)
        moved.append_held(gone, messages(1))
        self.refuse(moved, UnknownCursor)

    def test_what_is_no_range(self, cursor, moved):
        moved.settle(cursor, [(2, 2)], Outcome.ACKED)
        self.refuse(moved, BadRequest)

    def test_an_append_of_nothing(self, log, moved):
        moved.append(log, [])
        self.refuse(moved, BadRequest)

    def test_more_than_a_gibibyte(self, log, moved):
        class Huge(bytes):
            def __len__(self) -> int:
                return APPEND_BYTES_MAX // 2

        for _ in range(2):
            moved.append(log, [message(Huge())])
        self.refuse(moved, BadRequest)

    def test_a_cursor_that_is_deleted(self, store, log, moved):
        gone = store.create_cursor(log, "gone")
        store.delete_cursor(gone)
        moved.settle(gone, [], Outcome.ACKED)
        self.refuse(moved, UnknownCursor)

    def test_a_log_that_is_deleted(self, store, moved):
        gone = store.create_log()
        store.delete_log(gone)
        moved.append(gone, messages(1))
        self.refuse(moved, UnknownLog)


def test_a_transaction_larger_than_the_reservation_works(store, log, disk):
    transaction = store.transaction()
    for _ in range(3):
        transaction.append(log, messages(100))
    transaction.commit()
    assert transaction.offsets == [(0, 100), (100, 200), (200, 300)]
    store.sync()
    assert make_store(disk.crash(Random(1))).log(log.id).next >= 300


def test_what_waits_is_dropped_together_with_its_copy_or_not_at_all(store, log, cursor, other, disk):
    store.append(log, messages(4))
    store.prepare(other, 1)
    store.sync()
    transaction = store.transaction()
    transaction.append(other, messages(1))
    transaction.drop(cursor, [(1, 2)], Outcome.EXPIRED)
    transaction.commit()
    assert cursor.take(9) == [(0, 1), (2, 4)]
    seen = set()
    for seed in range(30):
        reopened = make_store(disk.copy().crash(Random(seed)))
        dropped = 1 in reopened.cursors(log.id)["reader"].progress.settled
        copied = bool(reopened.cursors(other.id)["other"].take(1))
        seen.add((dropped, copied))
    assert seen == {(False, False)}
    store.sync()
    reopened = make_store(disk.copy().crash(Random(1)))
    assert 1 in reopened.cursors(log.id)["reader"].progress.settled
    assert reopened.cursors(other.id)["other"].take(1) == [(0, 1)]


def test_what_is_in_flight_can_not_be_dropped_and_then_nothing_happens(store, log, cursor, other):
    store.append(log, messages(4))
    cursor.take(2)
    transaction = store.transaction()
    transaction.append(other, messages(1))
    transaction.drop(cursor, [(1, 3)], Outcome.EXPIRED)
    with pytest.raises(BadRequest):
        transaction.commit()
    assert other.next == 0
    assert cursor.take(9) == [(2, 4)]


class TestLeases:
    @pytest.fixture
    def leased(self, store, log, cursor, other):
        """Five messages, 0 to 2 leased and 3 taken; the next append to `other` is not synced."""
        store.append(log, messages(5))
        cursor.lease(3)
        cursor.take(1)
        store.append(other, messages(1))
        store.sync()
        return cursor

    def test_what_is_released_in_a_commit_is_ready(self, store, leased, other):
        transaction = store.transaction()
        transaction.append(other, messages(2))
        transaction.release(leased, [(0, 1), (2, 3)])
        transaction.settle(leased, [(1, 2)], Outcome.ACKED)
        assert transaction.commit() == store.ticket
        assert not leased.progress.leased
        assert leased.returns.count(0) == 0
        assert leased.take(9) == [(0, 1), (2, 3), (4, 5)]
        assert other.next == 3

    @pytest.mark.parametrize("synced", [True, False])
    def test_what_is_released_comes_with_the_appends_or_not_at_all(
        self, store, log, leased, other, disk, synced
    ):
        transaction = store.transaction()
        transaction.append(other, messages(2))
        transaction.release(leased, [(0, 2)])
        transaction.commit()
        if synced:
            store.sync()
        for seed in range(10):
            reopened = make_store(disk.copy().crash(Random(seed)))
            progress = reopened.cursors(log.id)["reader"].progress
            there = reopened.log(other.id)
            assert list(progress.leased.ranges()) == ([(2, 3)] if synced else [(0, 3)])
            assert len(there.read([(0, there.next)])) == (3 if synced else 1)

    def test_one_wrong_range_and_nothing_happens(self, store, log, leased, other):
        before = (leased.progress.encode(), leased.journal.next, log.next, other.next)
        for wrong in ([(3, 4)], [(4, 5)], [(0, 1)], [(2, 4)]):
            transaction = store.transaction()
            transaction.append(other, messages(2))
            transaction.append_held(leased, messages(2))
            transaction.release(leased, [(0, 2)])
            transaction.release(leased, wrong)
            with pytest.raises(BadRequest) as caught:
                transaction.commit()
            assert caught.value.hint
            assert (leased.progress.encode(), leased.journal.next, log.next, other.next) == before

    def test_what_is_appended_and_held_is_seen_by_nobody_before_it_is_released(self, store, leased, log):
        rest = store.create_cursor(log, "rest")
        transaction = store.transaction()
        transaction.append(log, messages(1))
        transaction.append_held(leased, messages(2), who=b"stage")
        transaction.append(log, messages(1))
        transaction.commit()
        assert transaction.offsets == [(5, 6), (6, 8), (8, 9)]
        assert leased.take(9) == [(4, 6), (8, 9)]
        assert rest.take(9) == [(0, 9)]  # another cursor knows nothing of it
        leased.release([(6, 8)])
        assert leased.take(9) == [(6, 8)]

    def test_who_holds_it_is_in_the_journal(self, store, leased):
        transaction = store.transaction()
        transaction.append_held(leased, messages(2), who=b"stage")
        transaction.commit()
        (record,) = leased.journal.read([(leased.journal.next - 1, leased.journal.next)])
        assert Entry.of(record)[:4] == (Kind.LEASED, [(5, 7)], 0, b"stage")

    @pytest.mark.parametrize("synced", [True, False])
    def test_what_is_appended_and_held_is_never_there_without_its_lease(
        self, store, log, leased, disk, synced
    ):
        transaction = store.transaction()
        transaction.append_held(leased, messages(2))
        transaction.commit()
        if synced:
            store.sync()
        for seed in range(10):
            reopened = make_store(disk.copy().crash(Random(seed)))
            here = reopened.log(log.id)
            leases = list(reopened.cursors(here.id)["reader"].progress.leased.ranges())
            assert leases == ([(0, 3), (5, 7)] if synced else [(0, 3)])
            assert len(here.read([(0, here.next)])) == (7 if synced else 5)

    def test_what_is_held_and_transient_is_gone_after_a_restart(self, store, log, leased, disk):
        transaction = store.transaction()
        transaction.append_held(leased, messages(2, flags=0))
        transaction.commit()
        store.close()
        cursor = make_store(disk).cursors(log.id)["reader"]
        assert list(cursor.progress.leased.ranges()) == [(0, 3)]
        assert cursor.take(9) == [(3, 5)]


class TestHolding:
    """What waits is leased with other changes."""

    @pytest.fixture
    def waiting(self, store, log, cursor):
        """0 is in flight, 1 is delayed, 2 and 3 are ready."""
        store.append(log, messages(4))
        cursor.take(2)
        cursor.give_back([(1, 2)], not_before_us=1 << 50)
        store.sync()
        return cursor

    @pytest.mark.parametrize("synced", [True, False])
    def test_it_is_leased_with_the_appends_or_not_at_all(self, store, log, waiting, other, disk, synced):
        transaction = store.transaction()
        transaction.hold(waiting, [(1, 3)], who=b"query")
        transaction.append(other, messages(1))
        transaction.commit()
        assert list(waiting.progress.leased.ranges()) == [(1, 3)]
        if synced:
            store.sync()
        for seed in range(10):
            reopened = make_store(disk.copy().crash(Random(seed)))
            leased = reopened.cursors(log.id)["reader"].progress.leased
            assert list(leased.ranges()) == ([(1, 3)] if synced else [])
            assert reopened.cursors(other.id)["other"].take(9) == ([(0, 1)] if synced else [])

    @pytest.mark.parametrize("ranges", [[(0, 2)], [(3, 5)]])
    def test_what_is_not_there_for_anybody_is_not_and_then_nothing_happens(
        self, store, waiting, other, ranges
    ):
        transaction = store.transaction()
        transaction.hold(waiting, ranges)
        transaction.append(other, messages(1))
        with pytest.raises(StorageError):
            transaction.commit()
        assert not waiting.progress.leased
        assert other.next == 0

    def test_what_is_dropped_and_held_in_one_is_refused(self, store, waiting):
        transaction = store.transaction()
        transaction.hold(waiting, [(2, 3)])
        transaction.drop(waiting, [(2, 4)], Outcome.PURGED)
        with pytest.raises(BadRequest):
            transaction.commit()
        assert list(waiting.progress.ready_ranges()) == [(2, 4)]
