"""The last round of a WAL in which bytes have changed: what is put right by trying, and what is not.

Any other damage is in tests/faults/test_damage.py.
"""

from leveret.storage import formats, frames
from leveret.storage.frame_repair import DATA_TRIED_BYTES
from leveret.storage.frames import Frame
from leveret.storage.recovery import UNFINISHED
from leveret.storage.store import Store
from leveret.testing.disk import SimulatedDisk
from tests.storage.builders import make_store, message

LARGE_BYTES = DATA_TRIED_BYTES + 1000


def with_a_last_round(*bodies: bytes) -> tuple[SimulatedDisk, Frame]:
    """A disk whose WAL ends with a round of these messages, after an unclean stop."""
    disk = SimulatedDisk()
    store = make_store(disk)
    log = store.create_log()
    store.append(log, [message(b"first")])
    store.sync()
    store.append(log, [message(body) for body in bodies])
    store.sync()
    disk = disk.restart()
    content = disk.read_bytes("wal/00000001")
    header = formats.read_header(content, "", formats.WAL)
    assert header is not None
    position = content.rindex(b"LvWF") // 512 * 512
    head = frames.read_head(content, position, header.number)
    assert head is not None
    return disk, Frame("wal/00000001", position, head, content[position : position + head.length])


def bodies_in(store: Store) -> list[bytes]:
    (log,) = store.logs.values()
    return [record.body for record in log.read([(0, log.next)])]


def test_a_flip_anywhere_in_the_last_round_is_put_right() -> None:
    disk, frame = with_a_last_round(b"second", b"third")
    for position in range(frame.head.length):
        damaged = disk.copy()
        damaged.flip(frame.path, frame.position + position, 0x41)
        store = make_store(damaged)
        assert bodies_in(store) == [b"first", b"second", b"third"], position
        assert [each.file for each in store.damage] == [frame.path], position


def test_a_flip_in_a_large_message_of_the_last_round_costs_the_round_and_says_so() -> None:
    disk, frame = with_a_last_round(b"second", bytes(LARGE_BYTES))
    disk.flip(frame.path, frame.position + frame.head.length - 100, 1)
    store = make_store(disk)
    assert bodies_in(store) == [b"first"]
    assert [(d.file, d.position, d.what) for d in store.damage] == [(frame.path, frame.position, UNFINISHED)]


def test_a_last_round_with_two_damaged_records_does_not_count_in_part() -> None:
    disk, frame = with_a_last_round(b"second", b"third", b"fourth")
    for at in (1, 8):
        disk.flip(frame.path, frame.position + frame.head.length - at, 1)
    store = make_store(disk)
    assert bodies_in(store) == [b"first"]
    assert [each.what for each in store.damage] == [UNFINISHED]


def test_of_a_round_whose_file_was_cut_the_readable_part_is_used() -> None:
    disk, frame = with_a_last_round(b"second", b"third")
    disk.cut(frame.path, frame.position + frame.head.length - 3)
    store = make_store(disk)
    assert bodies_in(store) == [b"first", b"second"]
    assert [(d.file, d.offset) for d in store.damage] == [(frame.path, None), (frame.path, 2)]
