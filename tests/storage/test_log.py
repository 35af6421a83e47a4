"""A log through its store: memory and segments, reading, writing. Against a model: tests/properties."""

import errno

import pytest

from leveret.storage.catalog import LogImage, LogSpec
from leveret.storage.errors import BadRequest, OffsetOutOfRange, WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.log import APPEND_BYTES_MAX, BlockCache, Log, measure
from leveret.storage.records import FIRST, PERSISTENT, Message
from leveret.storage.store import Options
from leveret.testing.disk import FailAt
from tests.storage.builders import batch, make_store, message, messages, offsets


def bodies(records) -> list[bytes]:
    return [record.body for record in records]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


class TestReading:
    @pytest.fixture
    def mixed(self, store, log) -> Log:
        """Messages 0 to 9 in segments, 10 to 19 in memory."""
        store.append(log, messages(5))
        store.append(log, messages(5, first=5))
        store.flush(log)
        store.append(log, messages(10, first=10))
        return log

    @pytest.mark.parametrize(("start", "stop"), [(0, 20), (3, 8), (8, 12), (15, 20), (0, 1), (19, 20)])
    def test_a_range_reads_the_same_wherever_it_is(self, mixed, start, stop):
        assert bodies(mixed.read([(start, stop)])) == numbers(start, stop)

    def test_ranges_come_in_the_order_they_are_asked_for(self, mixed):
        assert bodies(mixed.read([(12, 14), (3, 5), (3, 4)])) == [b"12", b"13", b"3", b"4", b"3"]

    @pytest.mark.parametrize(
        "ranges",
        [
            [(0, 1), (2, 3), (4, 5), (6, 8), (9, 12), (13, 14), (16, 17)],
            [(0, 1), (2, 3), (4, 5), (6, 8), (8, 9), (19, 20)],
            [(0, 1), (1, 2), (2, 3), (3, 4), (4, 20)],
            [(0, 1), (4, 5), (8, 9), (12, 13), (18, 19)],
            [(3, 4), (2, 3), (1, 2), (0, 1), (4, 5)],
            [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)],
        ],
    )
    def test_many_small_ranges_read_the_same_however_near_they_are(self, mixed, ranges):
        expected = [number for start, stop in ranges for number in numbers(start, stop)]
        assert bodies(mixed.read(ranges)) == expected

    RANGES = ([(0, 20)], [(3, 8)], [(8, 12)], [(15, 20), (2, 3), (9, 11)], [], [(19, 20), (0, 1)])

    @pytest.mark.parametrize("ranges", RANGES)
    def test_summaries_agree_with_the_records(self, mixed, ranges):
        records = mixed.read(ranges)
        expected = [(record.offset, record.time_us, record.flags, len(record.body)) for record in records]
        assert [tuple(summary) for summary in mixed.summaries(ranges)] == expected

    @pytest.mark.parametrize(
        ("start", "max_bytes", "reach"),
        [(0, 1, 10), (9, 1, 10), (10, 1, 13), (3, 1 << 20, 20), (12, 1, 13), (13, 1, 20), (10, 100, 20)],
    )
    def test_how_far_one_may_read_for_so_many_bytes(self, store, log, start, max_bytes, reach):
        """0 to 9 are a block, 10 to 12 and 13 to 19 two batches."""
        store.append(log, messages(10))
        store.flush(log)
        store.append(log, messages(3, first=10))
        store.append(log, messages(7, first=13))
        assert log.reach(start, max_bytes) == reach

    def test_flags_are_those_of_the_records(self, store, log):
        store.append(log, [message(b"", flags=flags) for flags in (1, 3, 1)])
        store.flush(log)
        store.append(log, [message(b"", flags=flags) for flags in (5, 1)])
        assert bytes(each & ~FIRST for each in log.flags([(0, 5)])) == bytes([1, 3, 1, 5, 1])
        assert bytes(each & ~FIRST for each in log.flags([(1, 2), (3, 4)])) == bytes([3, 5])

    def test_summaries_of_many_segments_in_any_order(self, store, log):
        for number in range(12):
            store.append(log, messages(10, first=10 * number, size=500))
            store.flush(log)
        assert len(log.segments) > 4
        backwards = [(first, first + 3) for first in range(110, -1, -10)]
        assert [summary.offset for summary in log.summaries(backwards)] == offsets(backwards)
        assert [summary.offset for summary in log.summaries([(7, 113)])] == list(range(7, 113))

    def test_deleted_records_have_no_summary(self, store, log):
        cursor = store.create_cursor(log, "c")
        for number in range(6):
            store.append(log, messages(10, first=10 * number, size=500))
            store.flush(log)
        cursor.take(60)
        cursor.settle([(0, 33)], Outcome.ACKED)
        store.checkpoint()
        store.checkpoint()
        there = [offset for start, stop in log.present() for offset in range(start, stop)]
        assert 0 < len(there) < 60
        assert [summary.offset for summary in log.summaries([(0, 60)])] == there

    @pytest.mark.parametrize("wrong", [(9, 9), (9, 8), (9, 21)])
    def test_summaries_and_flags_of_a_bad_range_are_refused(self, mixed, wrong):
        for method in (mixed.summaries, mixed.flags):
            with pytest.raises(OffsetOutOfRange):
                list(method([wrong]))

    @pytest.mark.parametrize("wrong", [(9, 9), (9, 8), (9, 21)])
    @pytest.mark.parametrize("last", [True, False])
    def test_a_bad_range_among_many_is_refused(self, mixed, wrong, last):
        ranges = [(0, 1), (2, 3), (4, 5), (6, 7), (7, 8)]
        ranges += [wrong] if last else [wrong, (10, 11)]
        with pytest.raises(OffsetOutOfRange):
            mixed.read(ranges)

    def test_one_record_or_none(self, mixed):
        assert mixed.read_one(12).body == b"12"
        assert mixed.read([]) == []

    @pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 5), (7, 3), (0, 21), (20, 21), (99, 100)])
    def test_what_is_outside_the_log_is_refused(self, mixed, start, stop):
        with pytest.raises(OffsetOutOfRange) as caught:
            mixed.read([(start, stop)])
        assert caught.value.hint

    def test_what_is_gone_is_left_out(self, store, log, cursor):
        store.append(log, messages(10))
        cursor.settle(cursor.take(3))
        store.checkpoint()
        assert log.read_one(1) is None
        assert bodies(log.read([(0, 10)])) == numbers(3, 10)

    def test_first_and_size_are_those_of_what_is_left(self, store, log, cursor):
        assert (log.first, log.size_bytes) == (0, 0)
        store.append(log, messages(10))
        assert (log.first, log.next) == (0, 10)
        assert log.size_bytes > 0
        cursor.settle(cursor.take(3))
        store.checkpoint()
        assert log.first == 3
        cursor.settle(cursor.take(7))
        store.checkpoint()
        store.checkpoint()
        assert (log.first, log.size_bytes) == (10, 0)
        store.append(log, messages(1))
        assert log.first == 10

    def test_it_says_what_it_is(self, mixed):
        assert repr(mixed) == "Log(1, 0..20, 1 segments)"

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_the_offsets_that_are_there_come_as_runs(self, store, log, in_memory):
        store.append(log, messages(3))
        if not in_memory:
            store.flush(log)
        assert list(log.present()) == [(0, 3)]

    def test_a_checkpoint_that_ends_while_a_read_is_on_its_way_gives_nothing_twice(
        self, mixed, store, monkeypatch
    ):
        from_segments = Log._from_segments

        def late(*arguments):
            store.checkpoint()
            return from_segments(*arguments)

        monkeypatch.setattr(Log, "_from_segments", late)
        assert bodies(mixed.read([(0, 20)])) == numbers(0, 20)

    def test_a_checkpoint_that_begins_while_a_read_looks_into_memory_hides_nothing(self, store, log):
        store.append(log, messages(3))

        class Freezing(Log):
            """Freezes, as another thread would, right after the first look at where the messages are."""

            @property
            def _held(self):
                found = self.__dict__["_held"]
                self.__class__ = Log
                self.freeze()
                return found

            @_held.setter
            def _held(self, held):
                self.__dict__["_held"] = held

        log.__class__ = Freezing
        assert bodies(log.read([(0, 3)])) == numbers(0, 3)
        assert bodies(log.read([(0, 3)])) == numbers(0, 3)


class TestWriting:
    def test_a_segment_that_is_full_is_followed_by_another(self, store, log):
        for first in range(0, 100, 10):
            store.append(log, messages(10, first=first, size=100))
        store.checkpoint()
        assert len(log.segments) > 2
        assert all(log.is_full(segment) for segment in log.segments[:-1])
        assert [r.offset for r in log.read([(0, 100)])] == list(range(100))

    def test_a_full_segment_is_not_appended_to_later(self, store, log):
        store.append(log, messages(5, size=2000))
        store.checkpoint()
        store.append(log, messages(1))
        store.append(log, messages(1))
        store.checkpoint()
        assert [segment.info.first for segment in log.segments] == [0, 5]

    def test_a_failed_flush_leaves_everything_in_memory(self, store, log, disk):
        store.append(log, messages(3))
        store.flush(log)
        store.append(log, messages(3, first=3))
        for n in range(1, 4):
            disk.before = FailAt(n, "write", errno.ENOSPC, torn=True)
            with pytest.raises(WriteFailed):
                store.flush(log)
            disk.before = None
            assert log.has_pending
            assert bodies(log.read([(0, 6)])) == numbers(0, 6)
        store.flush(log)
        assert not log.has_pending
        assert bodies(log.read([(0, 6)])) == numbers(0, 6)

    def test_a_view_names_the_segments_and_where_they_end(self, store, log):
        store.append(log, messages(3))
        assert (log.view().segments, log.view().stop) == ((), 0)
        store.flush(log)
        store.append(log, messages(3))
        view = log.view()
        assert [info.rows for info in view.segments] == [3]
        assert (view.log_id, view.directory, view.stop) == (log.id, "logs/0000000000000001", 3)

    def test_a_read_that_begins_in_a_gap_finds_what_is_behind_it(self, disk):
        image = LogImage(LogSpec(1), 0, 0)
        log = Log(disk, image, report=print, cache=BlockCache(), segment_bytes=1000)
        log.add(batch(0, 2))
        log.add(batch(10, 2))
        assert bodies(log.read([(5, 11)])) == [b"10"]
        assert log.read_one(5) is None

    def test_thawing_puts_what_was_frozen_before_what_came_since(self, disk):
        image = LogImage(LogSpec(1), 0, 0)
        log = Log(disk, image, report=print, cache=BlockCache(), segment_bytes=1000)
        log.add(batch(0, 2))
        log.freeze()
        log.add(batch(2, 2))
        assert [each.first for each in log.frozen()] == [0]
        assert list(log.present()) == [(0, 2), (2, 4)]
        assert bodies(log.read([(1, 3)])) == numbers(1, 3)
        log.thaw()
        assert bodies(log.read([(0, 4)])) == numbers(0, 4)
        assert log.pending_bytes == batch(0, 2).size + batch(2, 2).size


class TestBlockCache:
    def test_the_blocks_that_were_read_last_are_kept(self, disk, monkeypatch):
        store = make_store(disk, options=Options(segment_bytes=1))
        log = store.create_log()
        for number in range(20):
            store.append(log, messages(1, first=number))
            store.flush(log)
        loaded = []
        load = type(log.segments[0]).load
        monkeypatch.setattr(
            type(log.segments[0]),
            "load",
            lambda segment, block: loaded.append(block.first) or load(segment, block),
        )
        for offset in (0, 1, 0, *range(2, 17), 0, 1):
            assert log.read_one(offset).body == b"%d" % offset
        assert loaded == [*range(17), 1]  # 1 was the oldest when the cache was full, 0 had been read again


class TestMeasuring:
    def test_bytes_and_whether_all_are_persistent(self):
        assert measure([Message(b"e", b"k", b"hh", b"body", PERSISTENT, 0)]) == (8, True)
        assert measure([message(b"", flags=0), message(b"")])[1] is False

    def test_few_and_many_are_measured_alike(self):
        for flags in (0, PERSISTENT):
            some = [message(b"x" * n, flags=PERSISTENT if n else flags) for n in range(4)]
            many, persistent = measure(some * 5)
            assert (many, persistent) == (measure(some)[0] * 5, measure(some)[1])

    @pytest.mark.parametrize(
        "bad",
        [
            Message(b"e" * 256, b"", b"", b"", 0, 0),
            Message(b"", b"k" * 256, b"", b"", 0, 0),
            Message(b"", b"", b"", b"", 0x80, 0),
            Message(b"", b"", b"", b"", 0x100, 0),
            Message(b"", b"", b"", b"", -1, 0),
            Message(b"", b"", b"", b"", 0, 256),
            Message(b"", b"", b"", b"", 0, -1),
        ],
    )
    def test_what_does_not_fit_the_format_is_refused_and_changes_nothing(self, store, log, bad):
        store.append(log, messages(2))
        store.sync()
        for change in (store.append, append_in_transaction):
            with pytest.raises(BadRequest) as caught:
                change(*((store,) if change is append_in_transaction else ()), log, [message(b"good"), bad])
            assert caught.value.hint
            with pytest.raises(BadRequest):
                change(*((store,) if change is append_in_transaction else ()), log, [*messages(20), bad])
        assert log.next == 2
        assert store.ticket == store.safe_ticket

    def test_the_longest_names_and_highest_numbers_fit(self, store, log):
        store.append(log, [Message(b"e" * 255, b"k" * 255, b"", b"", 0x7F, 255)])
        store.flush(log)
        record = log.read_one(0)
        assert (len(record.exchange), len(record.routing_key)) == (255, 255)
        assert (record.flags, record.priority) == (0x7F, 255)

    def test_an_append_of_nothing_is_refused(self, store, log):
        with pytest.raises(BadRequest) as caught:
            store.append(log, [])
        assert caught.value.hint

    @pytest.mark.parametrize("n", [1, 3])
    def test_more_than_a_gibibyte_at_once_is_refused(self, n):
        class Huge(bytes):
            def __len__(self) -> int:
                return APPEND_BYTES_MAX // n

        with pytest.raises(BadRequest) as caught:
            measure([message(Huge()) for _ in range(n)])
        assert caught.value.hint


def append_in_transaction(store, log, appended) -> None:
    transaction = store.transaction()
    transaction.append(log, appended)
    transaction.commit()
