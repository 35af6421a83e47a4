"""What a store tells of its messages as rows: what is there, what journals say, where cursors stand."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from leveret.storage import message_events
from leveret.storage.cursor import Cursor
from leveret.storage.errors import Damage
from leveret.storage.files import OsFiles
from leveret.storage.journal import Kind, Outcome
from leveret.storage.log import Log
from leveret.storage.message_events import SCHEMA, Event, Piece, damage_of, damaged, pieces, rows
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Options, Store
from leveret.storage.store_snapshot import StoreSnapshot, snapshot_closed
from tests.storage.builders import Clock, make_store, messages

T0 = 1_000_000
PLENTY = Options(wal_bytes=1 << 20, reserve_ahead=10_000)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return make_store(OsFiles(str(tmp_path / "data")), clock, options=PLENTY)


class RowsIn:
    """`rows_in(store, log)` returns all events of a log as rows, read from a snapshot of the store."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._taken = 0
        self.damage: list[Damage] = []

    def snapshot(self, store: Store) -> StoreSnapshot:
        store.sync()
        self._taken += 1
        place = OsFiles(str(self._tmp_path / f"snapshot-{self._taken}"))
        return snapshot_closed(
            OsFiles(str(self._tmp_path / "data"), read_only=True), place, self.damage.append
        )

    def __call__(self, store: Store, log: Log) -> list[dict]:
        snapshot = self.snapshot(store)
        return rows_of(snapshot, pieces(snapshot, [log.id]), self.damage)


def rows_of(snapshot: StoreSnapshot, chosen: Iterable[Piece], damage: list[Damage]) -> list[dict]:
    found = []
    for piece in chosen:
        for batch in rows(snapshot, piece, damage.append):
            assert batch.schema == SCHEMA
            found += batch.to_pylist()
    return found


@pytest.fixture
def rows_in(tmp_path: Path) -> RowsIn:
    return RowsIn(tmp_path)


def runs(found: list[dict], event: int) -> list[tuple[int, int]]:
    return [(row["start"], row["stop"]) for row in found if row["event"] == event]


class TestPublished:
    def test_a_run_is_of_one_time_one_exchange_and_one_kind(self, store, log, rows_in, clock):
        store.append(log, [Message(b"a", b"", b"", b"", PERSISTENT, 0)] * 3)
        store.append(log, [Message(b"b", b"", b"", b"", PERSISTENT, 0)] * 2)
        store.append(log, [Message(b"b", b"", b"", b"", 0, 0)])
        clock.now_us += 1
        store.append(log, [Message(b"b", b"", b"", b"", PERSISTENT, 0)])
        store.checkpoint()
        found = [
            (row["start"], row["stop"], row["why"], row["code"], row["time_us"])
            for row in rows_in(store, log)
            if row["event"] == Event.PUBLISHED
        ]
        assert found == [
            (0, 3, "a", 1, T0),
            (3, 5, "b", 1, T0),
            (5, 6, "b", 0, T0),
            (6, 7, "b", 1, T0 + 1),
        ]

    def test_where_something_is_missing_a_run_ends(self, store, log, cursor, rows_in):
        store.append(log, messages(5))
        cursor.take(3)
        cursor.settle([(2, 3)])
        store.checkpoint()
        assert runs(rows_in(store, log), Event.PUBLISHED) == [(0, 2), (3, 5)]

    def test_names_that_are_not_utf_8_have_replacement_characters(self, store, log, rows_in):
        store.append(log, [Message(b"\xff!", b"", b"", b"", PERSISTENT, 0)])
        assert rows_in(store, log)[0]["why"] == "�!"

    def test_an_empty_log_has_no_rows(self, store, log, rows_in):
        assert rows_in(store, log) == []


class TestEntryRows:
    def test_every_entry_says_what_who_when_and_why(self, store, log, cursor, rows_in, clock):
        store.append(log, messages(6))
        clock.now_us += 5
        cursor.note_synced([(0, 6)], published_us=T0, exchange=b"orders")
        cursor.take(4, who=b"alice")
        cursor.settle([(0, 1), (2, 3)], Outcome.REJECTED, who=b"alice")
        cursor.give_back([(1, 2)], not_before_us=77, who=b"alice", why=b"no answer in time")
        found = [
            (
                Kind(row["event"]).name,
                row["start"],
                row["stop"],
                row["code"],
                row["who"],
                row["why"],
                row["other_us"],
            )
            for row in rows_in(store, log)
            if 0 < row["event"] < Event.PASSED and row["time_us"] == T0 + 5
        ]
        assert found == [
            ("SYNCED", 0, 6, 0, "", "orders", T0),
            ("DELIVERED", 0, 4, 0, "alice", "", 0),
            ("SETTLED", 0, 1, Outcome.REJECTED, "alice", "", 0),
            ("SETTLED", 2, 3, Outcome.REJECTED, "alice", "", 0),
            ("RETURNED", 1, 2, 1, "alice", "no answer in time", 77),
        ]

    def test_that_a_consumer_has_begun_is_no_further_delivery(self, store, log, cursor, rows_in):
        store.append(log, messages(2))
        cursor.take(2, unbegun=True)
        cursor.begin([(0, 1)])
        found = [(row["event"], row["start"], row["stop"], row["code"]) for row in rows_in(store, log)]
        assert [row for row in found if row[0] == Kind.DELIVERED] == [(Kind.DELIVERED, 0, 2, 0)]

    def test_entries_are_numbered_in_their_order_and_marks_are_left_out(self, store, log, cursor, rows_in):
        store.append(log, messages(2))
        cursor.settle(cursor.take(2))
        found = [row for row in rows_in(store, log) if 0 < row["event"] < Event.PASSED]
        assert [row["event"] for row in found] == [Kind.DELIVERED, Kind.SETTLED]
        assert found[0]["number"] < found[1]["number"]
        assert {row["reader"] for row in found} == {cursor.journal.id}
        assert {row["log"] for row in found} == {log.id}

    def test_a_cursor_that_begins_later_says_so(self, store, log, rows_in):
        store.append(log, messages(5))
        store.create_cursor(log, "late", start=3)
        assert runs(rows_in(store, log), Kind.STARTED) == [(0, 3), (0, 3)]

    def test_a_seek_tells_what_is_left_behind_and_what_comes_again(self, store, log, cursor, rows_in):
        store.append(log, messages(8))
        cursor.seek(3)
        cursor.seek(0)
        found = rows_in(store, log)
        assert runs(found, Event.PASSED) == [(0, 3)]
        assert runs(found, Kind.SOUGHT) == [(3, 8), (0, 8)]

    def test_a_seek_to_the_end_leaves_everything_behind(self, store, log, cursor, rows_in):
        store.append(log, messages(8))
        cursor.seek(8)
        found = rows_in(store, log)
        assert runs(found, Event.PASSED) == [(0, 8)]
        assert runs(found, Kind.SOUGHT) == []

    def test_a_recall_a_lease_and_its_release_have_rows(self, store, log, cursor, rows_in):
        store.append(log, messages(3))
        cursor.settle(cursor.take(1))
        cursor.recall([(0, 1)])
        cursor.release(cursor.lease(2))
        found = rows_in(store, log)
        assert runs(found, Kind.RECALLED) == [(0, 1)]
        assert runs(found, Kind.LEASED) == runs(found, Kind.RELEASED) == [(0, 2)]


class TestLoops:
    def test_repeated_events_keep_their_first_and_last_time(self, store, log, cursor, rows_in, clock):
        store.append(log, messages(3))
        cursor.settle(cursor.take(1))
        for _ in range(50):
            clock.now_us += 1
            cursor.give_back(cursor.take(1, who=b"alice"), who=b"alice", why=b"again")
        cursor.give_back(cursor.take(1, who=b"bob"))
        found = [
            (Kind(row["event"]).name, row["start"], row["who"], row["count"], row["time_us"] - T0)
            for row in rows_in(store, log)
            if row["event"] in (Kind.DELIVERED, Kind.RETURNED, Kind.SETTLED)
        ]
        assert found == [
            ("DELIVERED", 0, "", 1, 0),
            ("SETTLED", 0, "", 1, 0),
            ("DELIVERED", 1, "alice", 1, 1),
            ("RETURNED", 1, "alice", 1, 1),
            ("DELIVERED", 1, "alice", 49, 50),
            ("RETURNED", 1, "alice", 49, 50),
            ("DELIVERED", 1, "bob", 1, 50),
            ("RETURNED", 1, "", 1, 50),
        ]

    def test_what_happened_before_a_seek_is_not_counted_with_what_happened_after_it(
        self, store, log, cursor, rows_in
    ):
        store.append(log, messages(3))
        for _ in range(2):
            for _ in range(5):
                cursor.give_back(cursor.take(1))
            cursor.seek(0)
        found = [row["count"] for row in rows_in(store, log) if row["event"] == Kind.DELIVERED]
        assert found == [1, 4, 1, 4]


class TestStanding:
    def test_settled_messages_and_messages_in_flight_have_rows(self, store, log, cursor, rows_in):
        store.append(log, messages(9))
        cursor.take(7)
        cursor.settle([(0, 2), (4, 5)])
        found = rows_in(store, log)
        assert runs(found, Event.STANDING) == [(0, 2), (4, 5)]
        assert runs(found, Event.HELD) == [(2, 4), (5, 7)]

    def test_it_knows_what_the_journal_has_forgotten(self, store, log, cursor, rows_in, tmp_path):
        small = replace(PLENTY, segment_bytes=4 << 10, snapshot_bytes=100)
        store.append(log, messages(400))
        store.close()
        store = make_store(OsFiles(str(tmp_path / "data")), options=small)
        log = store.log(log.id)
        cursor = store.cursors(log.id)["reader"]
        cursor.take(1, who=b"the holder")
        for offset in range(1, 400):
            cursor.settle(cursor.take(1))
            if offset % 50 == 0:
                store.checkpoint()
        found = rows_in(store, log)
        assert (0, 1) not in runs(found, Kind.DELIVERED)
        assert runs(found, Event.HELD) == [(0, 1)]
        assert runs(found, Event.STANDING) == [(1, 400)]

    def test_a_cursor_with_nothing_settled_has_no_rows(self, store, log, cursor, rows_in):
        store.append(log, messages(2))
        found = rows_in(store, log)
        assert runs(found, Event.STANDING) == runs(found, Event.HELD) == []


CHUNK = 64


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_events, "CHUNK_BITS", 6)


@pytest.mark.usefixtures("_small_chunks")
class TestChunks:
    def test_a_run_over_the_end_of_a_chunk_is_split(self, store, log, rows_in):
        cursor = reaching_over(store, log)
        found = rows_in(store, log)
        parts = [(0, CHUNK), (CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK + 5)]
        assert runs(found, Event.PUBLISHED) == parts
        synced = [row for row in found if row["event"] == Kind.SYNCED]
        assert [(row["start"], row["stop"]) for row in synced] == parts
        assert [row["chunk"] for row in synced] == [0, 1, 2]
        assert len({row["number"] for row in synced}) == 1
        assert runs(found, Event.STANDING) == parts
        assert cursor.progress.low == 2 * CHUNK + 5

    def test_every_row_lies_in_its_chunk(self, store, log, rows_in):
        reaching_over(store, log)
        for row in rows_in(store, log):
            assert row["chunk"] * CHUNK <= row["start"] < row["stop"] <= (row["chunk"] + 1) * CHUNK


def reaching_over(store: Store, log: Log) -> Cursor:
    """Two chunks and some messages, of which all is settled."""
    cursor = store.create_cursor(log, "reader")
    store.append(log, messages(2 * CHUNK + 5))
    cursor.note_synced([(0, log.next)])
    cursor.drop([(0, log.next)], Outcome.PURGED)
    return cursor


class TestPieces:
    def test_they_are_the_segments_the_journals_and_where_they_stand(self, store, log, cursor, rows_in):
        store.append(log, messages(2))
        cursor.take(1)
        other = store.create_log()
        store.append(other, messages(1))
        snapshot = rows_in.snapshot(store)
        found = list(pieces(snapshot, [log.id]))
        assert found == [
            Piece("published", log.id, 0),
            Piece("standing", cursor.journal.id),
            Piece("told", cursor.journal.id, 0),
        ]
        assert list(pieces(snapshot, [other.id])) == [Piece("published", other.id, 0)]

    def test_damage_is_reported_and_the_rest_is_read(self, store, log, rows_in, tmp_path):
        store.append(log, messages(3, size=100))
        store.checkpoint()
        path = next((tmp_path / "data" / log.spec.directory).glob("msgs.*"))
        data = bytearray(path.read_bytes())
        data[data.index(b"1....")] ^= 0xFF
        path.write_bytes(data)
        assert runs(rows_in(store, log), Event.PUBLISHED) == [(0, 1), (2, 3)]
        assert [each.offset for each in rows_in.damage] == [1]

    def test_a_segment_with_only_damaged_records_has_no_rows(self, store, log, rows_in, tmp_path):
        store.append(log, messages(1, size=100))
        store.checkpoint()
        path = next((tmp_path / "data" / log.spec.directory).glob("msgs.*"))
        data = bytearray(path.read_bytes())
        data[data.index(b"0....")] ^= 0xFF
        path.write_bytes(data)
        assert rows_in(store, log) == []
        assert [each.offset for each in rows_in.damage] == [0]

    @pytest.mark.parametrize("kind", ["msgs", "index"])
    @pytest.mark.parametrize("journal", [False, True])
    def test_a_file_that_is_missing_is_reported(self, store, log, cursor, rows_in, tmp_path, kind, journal):
        store.append(log, messages(3))
        cursor.settle(cursor.take(1))
        store.checkpoint()
        directory = (cursor.journal if journal else log).spec.directory
        next((tmp_path / "data" / directory).glob(f"{kind}.*")).unlink()
        found = rows_in(store, log)
        assert any(each.file.startswith(f"{directory}/{kind}") for each in rows_in.damage)
        expected = [] if kind == "msgs" and not journal else [(1, 3)]
        assert runs(found, Event.PUBLISHED) == expected

    def test_what_was_found_damaged_is_rows_that_are_read_as_they_were_written(self, store, log, rows_in):
        found = [Damage("logs/1/msgs.0", 64, 7, "a record is damaged"), Damage("x", 0, None, "gone")]
        batch = damaged(found)
        assert batch.schema == SCHEMA
        assert set(batch["event"].to_pylist()) == {Event.DAMAGED}
        assert damage_of(batch) == found
        assert damage_of(batch.slice(0, 0)) == []


def test_a_view_of_no_segments_has_no_rows(store, log, rows_in):
    snapshot = rows_in.snapshot(store)
    assert rows_of(snapshot, [Piece("published", log.id)], rows_in.damage) == []
