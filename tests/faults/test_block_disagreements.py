"""Blocks with a right checksum that are not what the index says: they are damage, and the rest is read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from leveret.storage.arrow import LogReader
from leveret.storage.errors import Damage
from leveret.storage.files import OsFiles
from leveret.storage.formats import HEADER_BYTES
from leveret.storage.log_view import LogView
from leveret.storage.records import ROW_BYTES
from leveret.storage.segment import BLOCK, CHECKSUM_FROM, Segment, SegmentInfo
from leveret.testing.disk import SimulatedDisk
from tests.audit.reckoning import reckon_directory
from tests.storage.builders import batch, make_store, messages

COUNT = 50
FIRST_AT, COUNT_AT = 16, 24
ROWS_AT = BLOCK.size
CHANGES: dict[str, tuple[int, int, int]] = {
    "fewer records": (COUNT_AT, 4, 40),
    "no records": (COUNT_AT, 4, 0),
    "more records than the block is long": (COUNT_AT, 4, 1 << 20),
    "another first offset": (FIRST_AT, 8, 7),
    "another offset of a record": (ROWS_AT + 5 * ROW_BYTES, 8, 99),
    "data far behind the block": (ROWS_AT + 5 * ROW_BYTES + 16, 4, 1 << 31),
    "data before the block": (ROWS_AT + 5 * ROW_BYTES + 16, 4, 0),
    "a body longer than the block": (ROWS_AT + 5 * ROW_BYTES + 20, 4, 1 << 31),
}
"""Where in the block, how many bytes, and what they then are."""


def rewritten(content: bytes, at: int, size: int, value: int) -> bytes:
    """The file with a change in its first block, whose checksum is made right again."""
    changed = bytearray(content)
    place = HEADER_BYTES + at
    changed[place : place + size] = value.to_bytes(size, "little")
    length = int.from_bytes(changed[HEADER_BYTES + 4 : HEADER_BYTES + 8], "little")
    checked = bytes(changed[HEADER_BYTES + CHECKSUM_FROM : HEADER_BYTES + length])
    seal = xxh3_64_intdigest(checked, seed=HEADER_BYTES).to_bytes(8, "little")
    changed[HEADER_BYTES + 8 : HEADER_BYTES + CHECKSUM_FROM] = seal
    return bytes(changed)


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return lambda content: rewritten(content, *CHANGES[request.param])


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def change_file(disk: SimulatedDisk, path: str, change: Callable[[bytes], bytes]) -> None:
    with disk.open(path) as file:
        file.write(change(disk.read_bytes(path)), 0)


@pytest.fixture
def info(disk: SimulatedDisk) -> SegmentInfo:
    """Two blocks in one segment."""
    disk.make_directory("log")
    empty = Segment(disk, "log", SegmentInfo(first=0), log_id=1, report=lambda _: None)
    return empty.extended([batch(0, COUNT)]).extended([batch(COUNT, COUNT)]).info


def found_in(disk: SimulatedDisk, info: SegmentInfo, damage: list[Damage]) -> Segment:
    return Segment(disk, "log", info, log_id=1, report=damage.append)


def test_records_are_read_with_the_rows_of_the_index(
    disk: SimulatedDisk, info: SegmentInfo, change: Callable[[bytes], bytes]
) -> None:
    path = f"log/msgs.{info.name}"
    whole = list(found_in(disk, info, []).records([(0, 2 * COUNT)]))
    change_file(disk, path, change)
    damage: list[Damage] = []
    assert list(found_in(disk, info, damage).records([(0, 2 * COUNT)])) == whole
    assert [(each.file, each.position) for each in damage] == [(path, HEADER_BYTES)]
    with LogReader(disk, LogView(1, "log", (info,), 2 * COUNT)) as reader:
        offsets = [each for part in reader.read([(0, 2 * COUNT)]) for each in part["offset"].to_pylist()]
    assert offsets == list(range(2 * COUNT))
    assert len(reader.damage) == 1


def test_without_an_index_what_can_be_read_is_read_and_the_block_is_named(
    disk: SimulatedDisk, info: SegmentInfo, change: Callable[[bytes], bytes]
) -> None:
    path = f"log/msgs.{info.name}"
    change_file(disk, path, change)
    disk.unlink(f"log/index.{info.name}")
    damage: list[Damage] = []
    read = [record.offset for record in found_in(disk, info, damage).records([(0, 2 * COUNT)])]
    assert read[-COUNT:] == list(range(COUNT, 2 * COUNT))
    named = [each.position for each in damage if each.file == path]
    assert named == [HEADER_BYTES] or read == list(range(2 * COUNT))


def test_without_an_index_a_file_that_ends_too_early_is_named(disk: SimulatedDisk, info: SegmentInfo) -> None:
    path = f"log/msgs.{info.name}"
    second = found_in(disk, info, []).blocks()[1]
    disk.cut(path, second.position)
    disk.unlink(f"log/index.{info.name}")
    damage: list[Damage] = []
    assert len(list(found_in(disk, info, damage).records([(0, 2 * COUNT)]))) == COUNT
    assert path in {each.file for each in damage}


def test_the_audit_names_the_file_once_and_audits_the_rest(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    store = make_store(OsFiles(str(tmp_path)))
    log = store.create_log(label='["/", "orders"]')
    store.create_cursor(log, "queue")
    store.append(log, messages(COUNT))
    store.close()
    path = next(tmp_path.glob("logs/*/msgs.*"))
    path.write_bytes(change(path.read_bytes()))
    found = reckon_directory(tmp_path)
    assert len(found.damage) == 1
    assert path.name in found.damage[0]
    assert len(found.of("orders")) == COUNT


def test_a_missing_index_is_one_line_of_the_audit(tmp_path: Path) -> None:
    store = make_store(OsFiles(str(tmp_path)))
    log = store.create_log(label='["/", "orders"]')
    store.create_cursor(log, "queue")
    store.append(log, messages(COUNT))
    store.close()
    path = next(tmp_path.glob("logs/*/index.*"))
    path.unlink()
    (line,) = reckon_directory(tmp_path).damage
    assert path.name in line
    assert "a reader writes nothing" not in line
