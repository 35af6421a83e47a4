import pytest

from leveret.storage import frames
from leveret.storage.frame_repair import repair
from leveret.storage.frames import HEAD_BYTES, SECTOR_BYTES, Frame, batches_of
from leveret.storage.records import ROW_BYTES, Record
from tests.storage.builders import batch

GENERATION = 0xABCDEF
ROUND = {3: [batch(0, 2), batch(2, 1)], 1: [batch(9, 1, time_us=8)]}


def encoded(round_=ROUND, *, generation: int = GENERATION, ticket: int = 5) -> bytes:
    return frames.encode(round_, generation=generation, ticket=ticket, previous=4, synced_us=77)


def frame_of(content: bytes) -> Frame:
    head = frames.read_head(content, 0, GENERATION)
    assert head is not None
    return Frame("wal/1", 0, head, content[: head.length])


def flipped(content: bytes, *positions: int) -> bytes:
    changed = bytearray(content)
    for position in positions:
        changed[position] ^= 1
    return bytes(changed)


def offsets_by_log(found) -> dict[int, list[int]]:
    return {log: [record.offset for record in records] for log, records in dict(found).items()}


def test_a_round_comes_back_by_log_and_in_order():
    frame = frame_of(encoded())
    assert frame.is_intact
    assert frame.has_both_heads
    assert frame.groups() == [(3, 3), (1, 1)]
    assert dict(frame.records()) == {
        3: [*batch(0, 2).records(0, 9), *batch(2, 1).records(0, 9)],
        1: [*batch(9, 1, time_us=8).records(0, 99)],
    }


def test_a_head_tells_ticket_previous_and_time():
    head = frame_of(encoded()).head
    assert (head.ticket, head.previous, head.synced_us, head.records) == (5, 4, 77, 4)


@pytest.mark.parametrize("round_", [{}, ROUND])
def test_a_frame_fills_whole_sectors(round_):
    assert len(encoded(round_)) % SECTOR_BYTES == 0


def test_an_empty_round_is_a_frame_too():
    frame = frame_of(encoded({}))
    assert frame.is_intact
    assert list(frame.records()) == []


def test_a_frame_of_another_generation_is_none():
    assert frames.read_head(encoded(), 0, GENERATION + 1) is None


def test_one_of_two_heads_is_enough():
    for position in (0, HEAD_BYTES):
        damaged = flipped(encoded(), position + 20)
        assert frames.read_head(damaged, 0, GENERATION) == frames.read_head(encoded(), 0, GENERATION)
        assert not frame_of(damaged).has_both_heads
    assert frames.read_head(flipped(encoded(), 20, HEAD_BYTES + 20), 0, GENERATION) is None


def test_a_head_that_the_content_cuts_is_none():
    assert frames.read_head(encoded()[: HEAD_BYTES - 1], 0, GENERATION) is None


class TestFinding:
    content = bytes(SECTOR_BYTES) + encoded(ticket=5) + bytes(SECTOR_BYTES) + encoded(ticket=6)

    def test_frames_are_found_one_after_the_other(self):
        first = frames.find(self.content, 0, GENERATION)
        assert first == SECTOR_BYTES
        second = frames.find(self.content, first + SECTOR_BYTES, GENERATION)
        head = frames.read_head(self.content, second, GENERATION)
        assert head.ticket == 6
        assert frames.find(self.content, second + SECTOR_BYTES, GENERATION) == -1

    def test_a_frame_is_found_by_its_second_head(self):
        assert frames.find(flipped(self.content, SECTOR_BYTES), 0, GENERATION) == SECTOR_BYTES

    def test_a_frame_that_does_not_begin_with_a_sector_is_none(self):
        """Bytes that look like a frame may be in the body of a message."""
        assert frames.find(b"x" + encoded(), 0, GENERATION) == -1


class TestSalvage:
    def body_of(self, number: int) -> int:
        content = encoded()
        return content.index(b"header%d" % number) + len(b"header")

    def test_a_damaged_record_costs_itself_alone_and_is_named(self):
        frame = frame_of(flipped(encoded(), self.body_of(1)))
        assert not frame.is_intact
        found, lost = frame.salvage()
        assert offsets_by_log(found) == {3: [0, 2], 1: [9]}
        assert [(each.log, each.offset) for each in lost] == [(3, 1)]

    def test_one_of_two_copies_of_the_groups_is_enough(self):
        found, lost = frame_of(flipped(encoded(), 2 * HEAD_BYTES)).salvage()
        assert offsets_by_log(found) == {3: [0, 1, 2], 1: [9]}
        assert lost == []

    def test_without_the_groups_nobody_knows_whose_records_they_are(self):
        size = 2 * 16
        frame = frame_of(flipped(encoded(), 2 * HEAD_BYTES, 2 * HEAD_BYTES + size))
        assert frame.groups() is None
        assert list(frame.records()) == []
        found, lost = frame.salvage()
        assert found == {}
        assert [(each.log, each.offset) for each in lost] == [(None, None)] * 4

    def test_a_frame_that_was_cut_says_so_and_keeps_what_is_left(self):
        whole = frame_of(encoded())
        cut = whole._replace(content=whole.content[: self.body_of(2)])
        assert cut.is_cut
        assert not whole.is_cut
        assert offsets_by_log(cut.salvage()[0]) == {3: [0, 1], 1: []}

    def test_a_record_whose_row_is_gone_is_lost_without_a_name(self):
        whole = frame_of(encoded())
        cut = whole._replace(content=whole.content[: whole.head.rows_from])
        assert [each.offset for each in cut.salvage()[1]] == [None] * 4

    def test_a_record_whose_row_makes_no_sense_is_lost_without_a_name(self):
        row = frame_of(encoded()).head.rows_from + ROW_BYTES
        found, lost = frame_of(flipped(encoded(), row + 19)).salvage()  # the highest byte of its position
        assert offsets_by_log(found) == {3: [0, 2], 1: [9]}
        assert [(each.log, each.offset) for each in lost] == [(3, None)]

    def test_a_frame_without_groups_cannot_be_repaired(self):
        assert repair(frame_of(flipped(encoded(), 2 * HEAD_BYTES, 2 * HEAD_BYTES + 32))) is None


class TestBatchesOf:
    def records(self, *pairs: tuple[int, int]) -> list[Record]:
        return [Record(offset, time_us, b"", b"", b"", b"x", 1, 0) for offset, time_us in pairs]

    def test_no_records_are_no_batches(self):
        assert batches_of([]) == []

    def test_dense_records_of_one_time_are_one_batch(self):
        (only,) = batches_of(self.records((3, 7), (4, 7), (5, 7)))
        assert (only.first, only.stop, only.time_us, only.size) == (3, 6, 7, 3)

    def test_a_gap_or_another_time_begins_a_batch(self):
        found = batches_of(self.records((3, 7), (5, 7), (6, 8)))
        assert [(each.first, each.stop, each.time_us) for each in found] == [(3, 4, 7), (5, 6, 7), (6, 7, 8)]
