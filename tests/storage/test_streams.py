"""What streams and groups need of the store: times, files by age, progress that is moved by hand."""

import pytest

from leveret.storage.ack_set import AckSet
from leveret.storage.errors import BadRequest, OffsetOutOfRange
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.storage.progress import Progress
from leveret.storage.retention import Retention
from tests.storage.builders import killed, messages

KEPT = Retention(keep_settled=True)


class TestTime:
    def test_the_first_message_at_a_time_is_found_in_files_and_in_memory(self, store, clock):
        log = store.create_log(retention=KEPT)
        times = {}
        for first in range(0, 60, 10):
            clock.now_us += 100
            times[first] = clock.now_us
            store.append(log, messages(10, first=first, size=400))
            if first < 40:
                store.checkpoint()
        assert len(log.segments) > 1
        for first, time_us in times.items():
            assert log.first_at(time_us) == first
            assert log.first_at(time_us - 1) == first
        assert log.first_at(clock.now_us + 1) == 60
        assert log.first_at(0) == 0

    def test_an_empty_log_has_everything_before_it(self, store):
        assert store.create_log(retention=KEPT).first_at(5) == 0

    def test_a_damaged_file_gives_what_comes_next(self, store, clock, disk):
        log = store.create_log(retention=KEPT)
        store.append(log, messages(5))
        store.checkpoint()
        segment = log.segments[0]
        log._cache.load = lambda *_: []
        assert log.first_at(segment.info.newest_us) == 5

    def test_what_is_in_memory_has_a_time(self, store, clock):
        log = store.create_log(retention=KEPT)
        assert log.pending_since_us is None
        store.append(log, messages(1))
        since_us = clock.now_us
        clock.now_us += 5
        store.append(log, messages(1))
        assert log.pending_since_us == since_us
        store.checkpoint()
        assert log.pending_since_us is None


class TestFiles:
    def test_one_does_not_go_on_for_longer_than_an_eighth_of_the_age(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=800))
        for step_us in (0, 99, 1, 100, 50):
            clock.now_us += step_us
            store.append(log, messages(1))
        store.checkpoint()
        assert [segment.info.rows for segment in log.segments] == [2, 1, 2]
        clock.now_us += 50
        store.append(log, messages(1))
        store.checkpoint()
        assert [segment.info.rows for segment in log.segments] == [2, 1, 2, 1]
        clock.now_us += 99
        store.append(log, messages(1))
        store.checkpoint()
        assert [segment.info.rows for segment in log.segments] == [2, 1, 2, 2]

    def test_a_log_may_have_smaller_ones_than_the_store(self, store):
        small = store.create_log(retention=Retention(keep_settled=True, segment_bytes=300))
        for first in range(4):
            store.append(small, messages(1, first=first, size=300))
        store.checkpoint()
        assert [segment.info.rows for segment in small.segments] == [1, 1, 1, 1]

    def test_a_log_that_nobody_reads_is_kept_by_its_limits_alone(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=100))
        store.append(log, messages(3))
        store.checkpoint()
        clock.now_us += 1000
        store.retire(log)
        store.checkpoint()
        assert (log.first, log.next) == (3, 3)

    def test_what_one_cursor_has_leased_is_kept_for_the_others(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=100))
        own, group = store.create_cursor(log, "own"), store.create_cursor(log, "group")
        store.append(log, messages(3))
        own.lease(2)
        store.checkpoint()
        clock.now_us += 1000
        store.retire(log)
        assert (list(own.progress.ready_ranges()), list(group.progress.ready_ranges())) == ([], [(0, 2)])
        own.release([(0, 2)])
        store.retire(log)
        assert list(group.progress.ready_ranges()) == []

    def test_somebody_may_be_in_a_hurry(self, store):
        store.hurry()
        assert store.checkpoint_due
        store.checkpoint()
        assert not store.checkpoint_due


class TestSeek:
    def test_back_and_ahead(self, store, disk, clock):
        log = store.create_log(retention=KEPT)
        cursor = store.create_cursor(log, "group")
        store.append(log, messages(10))
        store.sync()
        cursor.settle(cursor.take(4))
        cursor.give_back(cursor.take(2), not_before_us=clock.now_us + 50, why=b"broken")
        cursor.take(1)
        assert cursor.progress.reasons == {4: b"broken", 5: b"broken"}
        cursor.seek(2, who=b"ann", why=b"once more")
        assert list(cursor.progress.ready_ranges()) == [(2, 10)]
        assert (cursor.progress.counts, cursor.progress.reasons, cursor.progress.watermark) == ({}, {}, 2)
        cursor.seek(8)
        assert list(cursor.progress.ready_ranges()) == [(8, 10)]
        store.sync()
        again = killed(disk, clock).cursors(log.id)["group"]
        assert list(again.progress.ready_ranges()) == [(8, 10)]
        entries = [Entry.of(record) for record in cursor.journal.read([(0, cursor.journal.next)])]
        sought = [(each.ranges, each.who, each.why) for each in entries if each.kind is Kind.SOUGHT]
        assert sought == [([(0, 2)], b"ann", b"once more"), ([(0, 8)], b"", b"")]

    def test_what_the_log_does_not_have_is_settled(self, store, clock):
        log = store.create_log(retention=Retention(keep_settled=True, max_age_us=100))
        cursor = store.create_cursor(log, "group")
        store.append(log, messages(3))
        store.checkpoint()
        clock.now_us += 1000
        store.append(log, messages(2))
        store.retire(log)
        store.checkpoint()
        assert log.first == 3
        cursor.seek(0)
        assert (cursor.progress.low, cursor.progress.retired_below) == (3, 0)

    def test_priorities_are_found_again(self, store, log):
        cursor = store.create_cursor(log, "high", priorities=2)
        store.append(log, [*messages(2), *messages(1, priority=2)])
        store.sync()
        cursor.settle(cursor.take(3))
        cursor.seek(0)
        assert cursor.take(1) == [(2, 3)]

    @pytest.mark.parametrize("offset", [-1, 4])
    def test_nowhere_else(self, store, log, cursor, offset):
        store.append(log, messages(3))
        with pytest.raises(OffsetOutOfRange):
            cursor.seek(offset)


class TestRecall:
    def test_what_is_done_comes_once_more_and_progress_stays(self, store, disk, clock):
        log = store.create_log(retention=KEPT)
        cursor = store.create_cursor(log, "group")
        store.append(log, messages(6))
        store.sync()
        cursor.settle(cursor.take(5))
        cursor.recall([(1, 2), (3, 4)], who=b"ann")
        assert cursor.progress.watermark == 5
        assert list(cursor.progress.ready_ranges()) == [(1, 2), (3, 4), (5, 6)]
        assert cursor.returns.is_redelivered(1)
        store.sync()
        again = killed(disk, clock).cursors(log.id)["group"]
        assert again.progress.watermark == 5
        assert list(again.progress.ready_ranges()) == [(1, 2), (3, 4), (5, 6)]

    def test_not_what_is_to_come(self, store, log, cursor):
        store.append(log, messages(2))
        with pytest.raises(BadRequest):
            cursor.recall([(0, 1)])
        with pytest.raises(BadRequest):
            cursor.recall([(5, 6)])

    def test_a_set_opens_again_below_and_above_its_low_end(self):
        acks = AckSet(10, [(12, 15)])
        acks.unsettle(13, 14)
        assert list(acks.unsettled(0, 15)) == [(10, 12), (13, 14)]
        acks.unsettle(9, 13)
        assert list(acks.unsettled(0, 15)) == [(9, 14)]
        acks.unsettle(2, 4)
        assert list(acks.unsettled(0, 15)) == [(2, 4), (9, 14)]
        with pytest.raises(ValueError, match="4"):
            acks.unsettle(4, 4)


class TestProgress:
    def test_a_snapshot_from_before_there_were_postponed_offsets_is_read(self):
        progress = Progress()
        progress.mark = 100
        progress.extend(0, 5, messages(5))
        progress.take(2, limit=100)
        progress.give_back([(0, 1)], not_before_us=50)
        tail = progress.postponed.encode()
        old = progress.encode()[: -len(tail) - 24]
        again = Progress.decode(old)
        assert (again.reasons, again.retired_below) == ({}, 0)
        assert again.postponed == again.delayed == progress.postponed

    def test_where_the_next_and_the_last_ready_offsets_are(self):
        progress = Progress()
        progress.extend(200_000, 200_010, messages(10))
        progress.settled.settle(0, 3)
        assert (progress.ready_from(0), progress.ready_from(200_005)) == (200_000, 200_005)
        assert progress.ready_from(200_010) is None
        assert (progress.ready_below(200_010), progress.ready_below(200_003)) == (200_009, 200_002)
        progress.extend(400_000, 400_000 + 1, messages(1))
        assert progress.ready_below(400_000) == 200_009
        assert progress.ready_below(200_000) is None
        assert progress.ready_below(1) is None

    def test_the_highest_is_what_was_taken_or_settled_last(self):
        progress = Progress()
        progress.mark = 100
        assert progress.highest == -1
        progress.extend(0, 9, messages(9))
        progress.take(3, limit=100)
        assert progress.highest == 2
        progress.give_back([(2, 3)], not_before_us=9)
        progress.settle([(0, 2)])
        assert progress.highest == 2

    def test_many_reasons_are_forgotten_with_what_they_are_about(self):
        progress = Progress()
        progress.mark = 100
        progress.extend(0, 9, messages(9))
        progress.take(9, limit=100)
        progress.give_back([(0, 2)], why=b"late")
        progress.take(2, limit=100)
        progress.settle([(0, 9)])
        assert (progress.counts, progress.reasons) == ({}, {})

    def test_outcomes_of_retention_in_a_transaction_are_remembered(self, store, log, cursor):
        store.append(log, messages(4))
        transaction = store.transaction()
        transaction.drop(cursor, [(0, 2)], Outcome.RETENTION)
        transaction.commit()
        assert cursor.progress.retired_below == 2


def test_a_file_that_is_over_its_limit_goes_from_the_front(store, clock, disk):
    log = store.create_log(retention=Retention(keep_settled=True, max_bytes=1500, segment_bytes=400))
    cursor = store.create_cursor(log, "group")
    for first in range(10):
        store.append(log, messages(1, first=first, size=400))
    store.checkpoint()
    store.retire(log)
    store.checkpoint()
    assert log.first == cursor.progress.low > 0
