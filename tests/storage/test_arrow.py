"""Ranges of logs as Arrow batches: always what `Log.read` says, or less by exactly what is damaged."""

import pickle
from itertools import count
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from leveret.storage import arrow
from leveret.storage.ack_set import AckSet
from leveret.storage.arrow import COLUMNS, SCHEMA, LogReader, schema_of
from leveret.storage.errors import BadRequest, OffsetOutOfRange
from leveret.storage.files import OsFiles
from leveret.storage.journal import Kind, Outcome
from leveret.storage.log import Log
from leveret.storage.log_view import LogView, SegmentGone
from leveret.storage.records import BATCH_RECORDS_MAX, FIRST, PERSISTENT, ROW, Message, Record
from leveret.storage.retention import Retention
from leveret.storage.store import Options, Store
from leveret.testing.disk import SimulatedDisk

SMALL = Options(segment_bytes=4 << 10, wal_bytes=1 << 20)


def open_store(files, options: Options = SMALL) -> Store:
    clock = count(1_700_000_000_000_000, 1_000)
    return Store(files, clock=lambda: next(clock), entropy=lambda: 1, options=options)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk) -> Store:
    return open_store(disk)


def plain(n: int) -> list[Message]:
    return [Message(b"orders", b"eu.de", b"header", b"body %d" % i, PERSISTENT) for i in range(n)]


def random_message(random: Random) -> Message:
    def piece(*sizes: int) -> bytes:
        return random.randbytes(random.choice(sizes))

    return Message(
        piece(0, 3, 255),
        piece(0, 5, 255),
        piece(0, 14, 300),
        piece(0, 1, 100, 700),
        random.randrange(0x80),
        random.randrange(0x100),
    )


def random_ranges(random: Random, stop: int) -> list[tuple[int, int]]:
    edges = sorted(random.sample(range(stop + 1), 2 * random.randint(1, min(40, stop // 2))))
    return list(zip(edges[::2], edges[1::2], strict=True))


def records_of(batches) -> list[Record]:
    """Return the records of the batches as the log returns them."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        assert batch.num_rows
        values = {name: batch.column(name).to_pylist() for name in COLUMNS}
        values["timestamp"] = batch.column("timestamp").cast(pa.int64()).to_pylist()
        order = ("offset", "timestamp", "exchange", "routing_key", "header", "body", "flags", "priority")
        found.extend(map(Record, *(values[name] for name in order)))
    return found


def read(files, log: Log, ranges=None, **how) -> list[Record]:
    view = log.view()
    with LogReader(files, view) as reader:
        found = records_of(reader.read([(0, view.stop)] if ranges is None else ranges, **how))
        assert reader.damage == []
    return found


def bodies_of(batches) -> list[bytes]:
    return [body for batch in batches for body in batch.column("body").to_pylist()]


class TestRanges:
    @pytest.mark.histories(sample=6, full=20)
    def test_any_ranges_are_what_the_log_reads(self, disk, store, seed):
        random = Random(seed)
        log = store.create_log(retention=Retention(keep_settled=True))
        for _ in range(30):
            store.append(log, [random_message(random) for _ in range(random.randint(1, 40))])
            if random.random() < 0.3:
                store.flush(log)
        store.flush(log)
        assert len(log.segments) > 3
        assert read(disk, log) == log.read([(0, log.next)])
        for _ in range(10):
            ranges = random_ranges(random, log.next)
            how = {
                "batch_bytes": random.choice([1, 3_000, 1 << 20]),
                "batch_rows": random.choice([1, 7, 999]),
            }
            assert read(disk, log, ranges, **how) == log.read(ranges)

    @pytest.mark.histories(sample=6, full=20)
    def test_rewritten_segments_are_read_by_offset_too(self, disk, store, seed):
        random = Random(seed)
        log = store.create_log()
        cursor = store.create_cursor(log, "reader")
        for _ in range(10):
            store.append(log, [random_message(random) for _ in range(40)])
        store.checkpoint()
        (taken,) = cursor.take(400)
        kept = set(random.sample(range(*taken), 12))
        cursor.settle([(offset, offset + 1) for offset in range(*taken) if offset not in kept])
        store.checkpoint()
        assert any(segment.info.edition for segment in log.segments)
        live = [record.offset for record in read(disk, log)]
        assert kept <= set(live)
        for _ in range(10):
            ranges = random_ranges(random, log.next)
            assert read(disk, log, ranges) == log.read(ranges)
        settled = cursor.progress.settled
        assert [r.offset for r in read(disk, log, settled=settled)] == sorted(kept)

    def test_a_full_block_is_one_batch(self, disk):
        store = open_store(disk, Options())
        log = store.create_log()
        store.append(log, plain(BATCH_RECORDS_MAX))
        store.flush(log)
        assert len(log.segments[0].blocks()) == 1
        with LogReader(disk, log.view()) as reader:
            (batch,) = reader.read([(0, BATCH_RECORDS_MAX)])
        assert records_of([batch]) == log.read([(0, BATCH_RECORDS_MAX)])

    def test_bodies_larger_than_a_batch_come_one_by_one(self, disk):
        store = open_store(disk, Options())
        log = store.create_log()
        bodies = [bytes([i]) * (3 << 20) for i in range(3)]
        store.append(log, [Message(b"", b"", b"", body) for body in bodies])
        store.flush(log)
        with LogReader(disk, log.view()) as reader:
            batches = list(reader.read([(0, 3)], columns=["body"]))
        assert len(batches) == 3
        assert bodies_of(batches) == bodies

    def test_a_batch_has_no_more_rows_than_asked_for(self, disk, store):
        log = store.create_log()
        store.append(log, plain(25))
        store.flush(log)
        with LogReader(disk, log.view()) as reader:
            assert [b.num_rows for b in reader.read([(0, 25)], batch_rows=10)] == [10, 10, 5]

    def test_blocks_that_nobody_asked_for_are_not_read(self, disk, store):
        log = store.create_log()
        for _ in range(5):
            store.append(log, plain(4))
            store.flush(log)
        segment = log.segments[0]
        for block in segment.blocks()[1:4:2]:
            disk.flip(segment.path, block.position + 50, 0xFF)
        ranges = [(0, 3), (9, 11), (16, 17)]
        with LogReader(disk, log.view()) as reader:
            (batch,) = reader.read(ranges)  # three blocks that are not neighbours, one batch
            assert reader.damage == []
        assert batch.column("offset").to_pylist() == [0, 1, 2, 9, 10, 16]

    def test_no_ranges_are_no_batches(self, disk, store):
        log = store.create_log()
        with LogReader(disk, log.view()) as reader:
            assert list(reader.read([])) == []

    @pytest.mark.parametrize("bad", [(-1, 1), (0, 6), (5, 6), (3, 3), (3, 2)])
    def test_offsets_that_never_were_are_refused_before_anything_is_read(self, disk, store, bad):
        log = store.create_log()
        store.append(log, plain(5))
        store.flush(log)
        view = log.view()
        disk.unlink(log.segments[0].path)
        with LogReader(disk, view) as reader, pytest.raises(OffsetOutOfRange, match="ends at 5"):
            reader.read([(0, 1), bad])

    def test_ranges_that_do_not_ascend_are_refused(self, disk, store):
        log = store.create_log()
        store.append(log, plain(5))
        store.flush(log)
        with LogReader(disk, log.view()) as reader:
            with pytest.raises(BadRequest, match="Sort and join"):
                reader.read([(2, 4), (3, 5)])
            assert len(records_of(reader.read([(0, 2), (2, 3)]))) == 3

    def test_a_journal_is_a_log_like_any_other(self, disk, store):
        log = store.create_log()
        cursor = store.create_cursor(log, "reader")
        store.append(log, plain(10))
        store.sync()
        cursor.settle(cursor.take(3), who=b"me")
        store.flush(cursor.journal)
        found = read(disk, cursor.journal)
        assert found == cursor.journal.read([(0, cursor.journal.next)])
        assert (found[-1].flags >> 1, found[-1].priority) == (Kind.SETTLED, Outcome.ACKED)
        assert found[-1].routing_key == b"me"


class TestSettled:
    @pytest.mark.histories(sample=6, full=10)
    def test_what_is_settled_is_left_out(self, disk, store, seed):
        random = Random(seed)
        log = store.create_log(retention=Retention(keep_settled=True))
        for _ in range(5):
            store.append(log, plain(60))
        store.flush(log)
        settled = AckSet(random.randrange(50), random_ranges(random, 300))
        ranges = random_ranges(random, 300)
        expected = [record for record in log.read(ranges) if record.offset not in settled]
        assert read(disk, log, ranges, settled=settled, batch_bytes=3_000) == expected

    def test_every_other_one_of_many(self, disk):
        store = open_store(disk, Options())
        log = store.create_log()
        store.append(log, plain(20_000))
        store.flush(log)
        settled = AckSet(0, [(i, i + 1) for i in range(1, 20_000, 2)])
        assert [r.offset for r in read(disk, log, settled=settled)] == list(range(0, 20_000, 2))

    def test_segments_that_are_wholly_settled_need_not_be_there(self, disk, store):
        log = store.create_log()
        for _ in range(4):
            store.append(log, plain(60))
        store.flush(log)
        first, second = log.segments[0], log.segments[1]
        disk.unlink(first.path)
        found = read(disk, log, settled=AckSet(first.info.last + 1))
        assert found[0].offset == second.info.first


class TestColumns:
    def test_types_are_those_of_the_format_and_names_are_bytes(self):
        assert [(field.name, str(field.type)) for field in SCHEMA] == [
            ("offset", "uint64"),
            ("timestamp", "timestamp[us, tz=UTC]"),
            ("flags", "uint8"),
            ("priority", "uint8"),
            ("exchange", "binary"),
            ("routing_key", "binary"),
            ("header", "binary"),
            ("body", "binary"),
        ]

    def test_the_row_of_numpy_is_the_row_of_the_store(self):
        values = (1 << 62, 2, 3, 4, 5, 6, 7, 8, 9)
        assert np.frombuffer(ROW.pack(*values), arrow._ROW)[0].item() == values

    def test_columns_come_in_the_order_they_are_asked_for(self, disk, store):
        log = store.create_log()
        store.append(log, plain(3))
        store.flush(log)
        with LogReader(disk, log.view()) as reader:
            (batch,) = reader.read([(1, 3)], columns=["body", "offset"])
            assert batch.schema == schema_of(["body", "offset"])
            assert batch.to_pydict() == {"body": [b"body 1", b"body 2"], "offset": [1, 2]}
            (batch,) = reader.read([(1, 3)], columns=["flags"])
            assert batch.to_pydict() == {"flags": [PERSISTENT, PERSISTENT]}

    def test_the_mark_of_a_first_row_is_not_a_flag(self, disk, store):
        log = store.create_log()
        store.append(log, [Message(b"", b"", b"", b"", flags=0x7F)])
        store.flush(log)
        assert log.segments[0].rows()[30] & FIRST
        assert read(disk, log)[0].flags == 0x7F

    @pytest.mark.parametrize(("columns", "named"), [(["offset", "size"], "size"), ([], "no columns")])
    def test_columns_that_are_not_there_are_refused(self, disk, store, columns, named):
        log = store.create_log()
        with LogReader(disk, log.view()) as reader, pytest.raises(BadRequest, match=f"{named}.*routing_key"):
            reader.read([], columns=columns)


class TestViews:
    def test_what_is_in_memory_is_beyond_the_view(self, disk, store):
        log = store.create_log()
        assert log.view() == LogView(log.id, log.spec.directory, (), 0)
        store.append(log, plain(3))
        store.flush(log)
        store.append(log, plain(2))
        view = log.view()
        assert view.stop == 3
        with LogReader(disk, view) as reader, pytest.raises(OffsetOutOfRange):
            reader.read([(0, 5)])
        store.flush(log)
        assert log.view().stop == 5

    def test_what_a_checkpoint_is_writing_is_beyond_the_view_too(self, store):
        log = store.create_log()
        store.append(log, plain(3))
        log.freeze()
        store.append(log, plain(2))
        assert log.view().stop == 0

    def test_what_is_settled_and_gone_is_in_range_and_not_there(self, disk, store):
        log = store.create_log()
        cursor = store.create_cursor(log, "reader")
        store.append(log, plain(100))
        store.checkpoint()
        cursor.settle(cursor.take(100))
        store.checkpoint()
        assert log.view() == LogView(log.id, log.spec.directory, (), 100)
        assert read(disk, log) == []

    def test_a_view_goes_to_another_process_and_is_read_there(self, tmp_path):
        store = open_store(OsFiles(str(tmp_path)))
        log = store.create_log()
        store.append(log, plain(100))
        store.flush(log)
        view = pickle.loads(pickle.dumps(log.view()))
        assert view == log.view()
        with LogReader(OsFiles(str(tmp_path), read_only=True), view) as reader:
            assert records_of(reader.read([(0, 100)])) == log.read([(0, 100)])
        store.close()

    def test_a_segment_without_records_is_passed_over(self, disk, store):
        log = store.create_log()
        store.append(log, plain(3))
        store.flush(log)
        log.install((log.rewritten(log.segments[0], []),))
        assert read(disk, log) == []


class TestDeletedSegments:
    @pytest.fixture
    def log(self, store) -> Log:
        log = store.create_log()
        for _ in range(4):
            store.append(log, plain(100))
        store.flush(log)
        assert len(log.segments) > 2
        return log

    def test_one_that_is_gone_when_the_read_begins_is_named(self, disk, log):
        view = log.view()
        gone = log.segments[1]
        disk.unlink(gone.path)
        disk.unlink(gone.index_path)
        with LogReader(disk, view) as reader:
            with pytest.raises(SegmentGone, match="new view") as raised:
                reader.read([(0, view.stop)])
            assert raised.value.path == gone.path
            assert len(records_of(reader.read([(0, gone.info.first)]))) == gone.info.first
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (copy.path, str(copy)) == (gone.path, str(raised.value))

    def test_one_that_is_lost_is_left_out_when_a_later_view_names_it_too(self, disk, log):
        gone = log.segments[1]
        disk.unlink(gone.path)
        view = log.view().without({gone.path})
        assert len(view.segments) == len(log.segments) - 1
        with LogReader(disk, view) as reader:
            found = [record.offset for record in records_of(reader.read([(0, view.stop)]))]
        assert found == [*range(gone.info.first), *range(gone.info.last + 1, view.stop)]

    def test_one_that_is_deleted_after_the_read_began_is_read_to_its_end(self, disk, log):
        view = log.view()
        expected = log.read([(0, view.stop)])
        with LogReader(disk, view) as reader:
            batches = reader.read([(0, view.stop)])
            disk.remove_directory(log.spec.directory)
            assert records_of(batches) == expected
            assert records_of(reader.read([(0, view.stop)])) == expected  # what was opened stays open
            assert reader.damage == []

    def test_one_that_is_deleted_while_it_is_opened_is_gone_and_not_damaged(self, disk, log):
        segment = log.segments[0]
        paths = [segment.path, segment.index_path]  # in the order in which a checkpoint removes them

        class DeletedAfterTheFirstOpen:
            def open(self, path):
                file = disk.open(path)
                for each in paths:
                    disk.unlink(each)
                return file

        with LogReader(DeletedAfterTheFirstOpen(), log.view()) as reader:
            for _ in range(2):
                with pytest.raises(SegmentGone):
                    reader.read([(0, 1)])
            assert reader.damage == []

    def test_a_closed_reader_gives_no_more_batches(self, tmp_path):
        store = open_store(OsFiles(str(tmp_path)))
        log = store.create_log()
        store.append(log, plain(3))
        store.flush(log)
        with LogReader(OsFiles(str(tmp_path), read_only=True), log.view()) as reader:
            batches = reader.read([(0, 3)])
        with pytest.raises(OSError, match="Bad file descriptor"):
            next(batches)
        store.close()


class TestDamage:
    def test_a_damaged_byte_costs_its_record_and_no_other(self, disk, store):
        log = store.create_log()
        store.append(log, plain(60))
        store.flush(log)
        store.append(log, plain(3))
        store.flush(log)
        expected = log.read([(0, 63)])
        segment = log.segments[0]
        position = disk.read_bytes(segment.path).index(b"body 17")
        disk.flip(segment.path, position, 0x20)
        with LogReader(disk, log.view()) as reader:
            assert records_of(reader.read([(0, 63)])) == expected[:17] + expected[18:]
            assert [(damage.file, damage.offset) for damage in reader.damage] == [(segment.path, 17)]
            assert records_of(reader.read([(17, 18)])) == []

    def test_any_damaged_byte_costs_at_most_one_record(self, disk, store):
        log = store.create_log()
        store.append(log, plain(3))
        store.flush(log)
        store.append(log, plain(2))
        store.flush(log)
        view, segment = log.view(), log.segments[0]
        expected = log.read([(0, 5)])
        for position in range(64, segment.info.length_bytes):
            disk.flip(segment.path, position, 0x55)
            with LogReader(disk, view) as reader:
                found = records_of(reader.read([(0, 5)]))
                assert reader.damage
            assert len(found) >= 4
            assert set(found) <= set(expected)
            disk.flip(segment.path, position, 0x55)

    def test_zeros_that_a_cut_file_lacks_are_still_what_they_were(self, disk, store):
        log = store.create_log()
        store.append(log, [*plain(2), Message(b"", b"", b"", bytes(10))])
        store.flush(log)
        expected = log.read([(0, 3)])
        segment = log.segments[0]
        disk.cut(segment.path, segment.info.length_bytes - 4)
        with LogReader(disk, log.view()) as reader:
            assert records_of(reader.read([(0, 3)])) == expected
            assert reader.damage

    @pytest.mark.parametrize("how", ["missing", "damaged"])
    def test_without_its_index_a_segment_is_read_all_the_same_and_nothing_is_written(self, tmp_path, how):
        store = open_store(OsFiles(str(tmp_path)))
        log = store.create_log()
        store.append(log, plain(30))
        store.checkpoint()
        index = tmp_path / log.segments[0].index_path
        if how == "missing":
            index.unlink()
        else:
            content = bytearray(index.read_bytes())
            content[100] ^= 1
            index.write_bytes(content)
        before = {path: path.read_bytes() for path in index.parent.iterdir()}
        for read_only in (True, False):
            with LogReader(OsFiles(str(tmp_path), read_only=read_only), log.view()) as reader:
                assert records_of(reader.read([(0, 30)])) == log.read([(0, 30)])
            assert [damage.file for damage in reader.damage] == [log.segments[0].index_path]
        assert {path: path.read_bytes() for path in index.parent.iterdir()} == before
        store.close()
