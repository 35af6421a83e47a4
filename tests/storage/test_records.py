import pytest

from leveret.storage import records
from leveret.storage.records import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    DIGEST_BYTES,
    FIRST,
    FLAGS_BYTE,
    PERSISTENT,
    ROW,
    ROW_BYTES,
    Batch,
    Message,
    Record,
    size_of,
)
from tests.storage.builders import batch

MIXED = Batch(
    5,
    99,
    [Message(b"e", b"key", b"head", b"body", PERSISTENT, 3), Message(b"", b"", b"", b"", 0x7E, 255)],
    12,
)


class TestBatch:
    def test_a_batch_knows_where_it_stops(self):
        assert batch(5, 3).stop == 8

    def test_a_slice_that_covers_it_is_the_batch_itself(self):
        whole = batch(5, 3)
        assert whole.slice(0, 100) is whole
        assert whole.slice(5, 8) is whole

    @pytest.mark.parametrize(("start", "stop", "expected"), [(6, 7, [6]), (0, 6, [5]), (7, 99, [7])])
    def test_a_slice_holds_its_offsets_and_their_size(self, start, stop, expected):
        part = batch(5, 3).slice(start, stop)
        assert list(range(part.first, part.stop)) == expected
        assert [message.body for message in part.messages] == [b"%d" % offset for offset in expected]
        assert part.size == size_of(part.messages)

    def test_its_records_carry_offset_and_time(self):
        assert list(batch(5, 3, time_us=42).records(6, 99)) == [
            Record(6, 42, b"exchange", b"key", b"header", b"6", PERSISTENT, 0),
            Record(7, 42, b"exchange", b"key", b"header", b"7", PERSISTENT, 0),
        ]

    def test_the_size_of_messages_is_that_of_all_their_parts(self):
        assert size_of(MIXED.messages) == MIXED.size == 12


class TestLayout:
    def test_what_is_encoded_is_decoded(self):
        rows, content = records.encode([MIXED, batch(9, 2)], position=1000)
        found = records.decode(rows, content, start=1000)
        assert found == [*MIXED.records(0, 99), *batch(9, 2).records(0, 99)]

    def test_rows_stand_first_then_digests_then_data(self):
        rows, content = records.encode([MIXED], position=0)
        assert len(rows) == 2 * ROW_BYTES
        assert content.startswith(rows)
        assert content[records.batch_bytes(2) :] == b"ekeyheadbody"
        assert records.batch_bytes(2) == 2 * (ROW_BYTES + DIGEST_BYTES)

    def test_the_first_row_alone_is_marked_as_first(self):
        rows, _ = records.encode([MIXED, batch(9)], position=0)
        assert rows[FLAGS_BYTE::ROW_BYTES] == bytes([PERSISTENT | FIRST, 0x7E, PERSISTENT])
        assert [row[8] for row in ROW.iter_unpack(rows)] == [3, 255, 0]

    def test_a_row_tells_where_its_data_is(self):
        rows, _ = records.encode([MIXED], position=1000)
        start = 1000 + records.batch_bytes(2)
        assert records.extent(rows[:ROW_BYTES]) == (start, 12)
        assert records.extent(rows[ROW_BYTES:]) == (start + 12, 0)

    def test_a_digest_of_data_outside_the_content_is_none(self):
        rows, content = records.encode([MIXED], position=1000)
        row = rows[:ROW_BYTES]
        assert records.digest(row, content, start=1000) >= 0
        assert records.digest(row, content, start=2000) == -1
        assert records.digest(row, content[:90], start=1000) == -1


class TestSortingOut:
    def damaged(self, *positions: int) -> bytes:
        _, content = records.encode([batch(0, 3)], position=0)
        changed = bytearray(content)
        for position in positions:
            changed[position] ^= 1
        return bytes(changed)

    def offsets(self, rows: bytes, content: bytes) -> list[int]:
        return [record.offset for record in records.decode(rows, content, start=0)]

    def test_nothing_is_lost_of_a_batch_that_is_whole(self):
        content = self.damaged()
        rows, lost = records.sort_out(content, table=0, count=3)
        assert (self.offsets(rows, content), lost) == ([0, 1, 2], [])

    @pytest.mark.parametrize("position", [0, ROW_BYTES - 1, 3 * ROW_BYTES, records.batch_bytes(3)])
    def test_a_damaged_row_digest_or_body_costs_its_record_alone(self, position):
        content = self.damaged(position)
        rows, lost = records.sort_out(content, table=0, count=3)
        assert (self.offsets(rows, content), lost) == ([1, 2], [0])

    def test_a_second_copy_of_the_rows_makes_good_for_a_damaged_one(self):
        rows, _ = records.encode([batch(0, 3)], position=0)
        content = self.damaged(0)
        found, lost = records.sort_out(content, table=0, count=3, other=rows)
        assert (found, lost) == (rows, [])

    def test_a_damaged_second_copy_does_no_harm(self):
        rows, content = records.encode([batch(0, 3)], position=0)
        found, lost = records.sort_out(content, table=0, count=3, other=b"\xff" + rows[1:])
        assert (found, lost) == (rows, [])


class TestPieces:
    def test_small_batches_are_joined(self):
        small = [batch(0, 2), batch(2, 3)]
        assert list(records.pieces(small)) == [small]

    def test_nothing_makes_no_piece(self):
        assert list(records.pieces([])) == []

    def test_pieces_keep_to_the_number_of_records(self):
        many = [batch(first, 1000) for first in range(0, 10_000, 1000)]
        found = list(records.pieces(many))
        assert [each for piece in found for each in piece] == many
        assert all(sum(len(each.messages) for each in piece) <= BATCH_RECORDS_MAX for piece in found)
        assert len(found) == 5

    def test_a_batch_that_is_too_large_is_cut(self):
        found = list(records.pieces([batch(0, 3 * BATCH_RECORDS_MAX)]))
        parts = [each for piece in found for each in piece]
        assert all(len(each.messages) <= BATCH_RECORDS_MAX for each in parts)
        assert [r.offset for each in parts for r in each.records(0, 1 << 40)] == [
            *range(3 * BATCH_RECORDS_MAX)
        ]

    def test_pieces_keep_to_the_number_of_bytes(self):
        large = batch(0, 4, size=BATCH_BYTES_MAX // 3)
        found = list(records.pieces([large]))
        assert [[len(each.messages) for each in piece] for piece in found] == [[2], [2]]

    def test_a_message_larger_than_a_piece_is_a_piece(self):
        huge = batch(0, 2, size=2 * BATCH_BYTES_MAX)
        assert [[each.first for each in piece] for piece in records.pieces([huge])] == [[0], [1]]
