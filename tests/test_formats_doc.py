"""Keeps `docs/formats/` honest: its tables are the structs of the code, its examples what it writes.

A table of positions stands under a line such as "Row, 32 bytes:". An example is a fenced block tagged `hex`
and a name; each line has a position, bytes, and a note after two spaces.
"""

import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from leveret.broker import auxiliary_logs
from leveret.broker.groups import registry
from leveret.broker.queries import lease_notes, staged_batch_notes, staged_batches
from leveret.broker.queues import deduplication, producer_sequences
from leveret.storage import (
    ack_set,
    cursor,
    durable_io,
    formats,
    frame_repair,
    frames,
    offset_chunk,
    offset_set,
    progress,
    records,
    wal,
)
from leveret.storage import segment as segments
from leveret.storage import store as stores
from leveret.storage.catalog import Checkpoint, LogImage, LogSpec
from leveret.storage.durable_io import WholeFile
from leveret.storage.errors import Damage
from leveret.storage.formats import FileHeader, read_header
from leveret.storage.frames import Frame
from leveret.storage.journal import ENTRY_BYTES, Entry, Kind, Outcome
from leveret.storage.offset_set import OffsetSet
from leveret.storage.progress import Progress
from leveret.storage.records import PERSISTENT, Batch, Message, Record, size_of
from leveret.storage.retention import REWRITE_BELOW, Retention
from leveret.storage.segment import BLOCK, Segment, SegmentInfo
from leveret.testing.disk import SimulatedDisk

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "formats"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
TEXT = "\n".join(PAGES.values())

TIME_US = 1_700_000_000_000_000
GENERATION = 0x1122334455667788
MESSAGES = [
    Message(b"orders", b"eu.de", b"", b"one", PERSISTENT, 0),
    Message(b"orders", b"eu.fr", b"", b"two", 0, 5),
]
RECORDS = [Record(offset, TIME_US, *message) for offset, message in enumerate(MESSAGES)]
SETTLED = Entry(Kind.SETTLED, [(0, 1)], Outcome.ACKED, b"c1", 0, TIME_US)
RETURNED = Entry(Kind.RETURNED, [(3, 5), (9, 10)], 1, b"c1", TIME_US + 5_000_000, TIME_US)
OFFSETS = OffsetSet([(3, 5), (9, 10), (65_536, 131_072)])
LEASE = lease_notes.LeaseNote("lake", 12, [(5, 9), (1000, 1001)], 6, {8: 1})
NOTES = (
    lease_notes.QueryNote,
    lease_notes.LeaseNote,
    lease_notes.FloorNote,
    staged_batch_notes.StageNote,
    staged_batch_notes.CommitNote,
    registry.GroupNote,
)
LAYOUTS = {
    "File header": formats._FIELDS.format + "Q",
    "Whole file": durable_io._LENGTHS.format,
    "Row": records.ROW.format,
    "Digest": records.DIGEST.format,
    "Block header": BLOCK.format,
    "Head": frames._HEAD.format + "Q",
    "Group": "<QQ",
    "Snapshot head": progress._SECTIONS.format,
    "Snapshot tail": progress._TAIL.format,
    "Ack set": ack_set._HEADER.format,
    "Offset set": offset_set._HEADER.format,
    "Chunk": offset_set._ENTRY.format,
    "Producer": producer_sequences._ENTRY.format,
}
SIZES = {
    "File header": formats.HEADER_BYTES,
    "Row": records.ROW_BYTES,
    "Digest": records.DIGEST_BYTES,
    "Block header": BLOCK.size,
    "Head": frames.HEAD_BYTES,
    "Group": frames._GROUP_BYTES,
}


# what the pages say


class Table(NamedTuple):
    """A table of positions: the size in the line above it, and position, size and type of each row."""

    size: int
    rows: list[tuple[int, int, str]]

    @property
    def format(self) -> str:
        letters = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
        counted = {"bytes": "s", "zeros": "x"}
        return "<" + "".join(letters.get(kind) or f"{size}{counted[kind]}" for _, size, kind in self.rows)


def tables() -> dict[str, Table]:
    found = {}
    caption = re.compile(r"^([A-Z][\w ]+), (\d+) bytes[^\n]*:\n\n((?:\|.*\n)+)", re.MULTILINE)
    for name, size, lines in caption.findall(TEXT):
        cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines.splitlines()[2:]]
        assert name not in found
        found[name] = Table(int(size), [(int(at), int(length), kind) for at, length, kind in cells])
    return found


def column(page: str, heading: str, number: int) -> list[str]:
    """The cells of one column of the table that begins with this line."""
    lines = PAGES[page].partition(heading + "\n")[2].splitlines()[1:]
    rows = takewhile(lambda line: line.startswith("|"), lines)
    return [line.split("|")[number + 1].strip().strip("`") for line in rows]


def fenced(tag: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(rf"^```{tag} ([\w-]+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def hex_example(text: str) -> bytes:
    """The bytes of an example; the positions on its left must go on from line to line."""
    data = b""
    start = None
    for line in text.splitlines():
        position, _, rest = line.partition("  ")
        start = int(position, 16) if start is None else start
        assert int(position, 16) == start + len(data), line
        data += bytes.fromhex(rest.partition("  ")[0])
    return data


SHOWN = {name: hex_example(text) for name, text in fenced("hex")}
DOCUMENT = json.loads(dict(fenced("json"))["checkpoint"])


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# the same, made by the code


def batch() -> Batch:
    return Batch(0, TIME_US, MESSAGES, size_of(MESSAGES))


def written_segment() -> tuple[Segment, SimulatedDisk]:
    disk = SimulatedDisk()
    disk.make_directory("log")
    return Segment(disk, "log", SegmentInfo(0), log_id=1, report=pytest.fail).extended([batch()]), disk


def written_journal() -> SegmentInfo:
    started = Entry(Kind.STARTED, [(0, 0)])
    entries = [started, started, Entry(Kind.MARKED, [(0, cursor.MARK_AHEAD)])]
    disk = SimulatedDisk()
    disk.make_directory("journal")
    made = [entry.message() for entry in (*entries, Entry(Kind.DELIVERED, [(0, 1)], who=b"c1"), SETTLED)]
    journal = Segment(disk, "journal", SegmentInfo(0), log_id=2, report=pytest.fail)
    return journal.extended([Batch(0, TIME_US, made, size_of(made))]).info


def written_frame() -> bytes:
    entry = SETTLED.message()
    round_ = {1: [batch().slice(0, 1)], 2: [Batch(4, TIME_US, [entry], size_of([entry]))]}
    frame = frames.encode(round_, generation=GENERATION, ticket=7, previous=6, synced_us=TIME_US - 1000)
    assert frame[336:] == bytes(512 - 336)
    return frame[:336]


def written_checkpoint() -> WholeFile:
    log = LogImage(LogSpec(1, label="orders"), 2, 1_048_578, segments=[written_segment()[0].info])
    spec = LogSpec(2, parent=1, name="billing")
    journal = LogImage(spec, 5, 0, segments=[written_journal()], state=settled_one().encode())
    checkpoint = Checkpoint(3, ticket=9, clean=True, next_id=3, logs={1: log, 2: journal})
    return WholeFile("checkpoint", FileHeader(formats.CHECKPOINT, 0, 3), checkpoint.encode())


def settled_one() -> Progress:
    state = Progress()
    state.extend(0, 2, [])
    state.settle(state.take(1, limit=10))
    state.mark = cursor.MARK_AHEAD
    return state


def snapped() -> Progress:
    state = Progress()
    state.extend(0, 10, [])
    state.take(8, limit=10)
    state.settle([(0, 2), (4, 5)])
    state.give_back([(2, 3)])
    state.give_back([(5, 6)], not_before_us=TIME_US + 5_000_000)
    state.hold([(8, 9)])
    state.mark = cursor.MARK_AHEAD
    return state


def data_of(message: Message) -> bytes:
    return b"".join((message.exchange, message.routing_key, message.header, message.body))


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "file-header": lambda: FileHeader(formats.SEGMENT, 1, 0).encode(),
    "records": lambda: records.encode([batch()], position=formats.HEADER_BYTES + BLOCK.size)[1],
    "segment": lambda: written_segment()[1].read_bytes(written_segment()[0].path)[formats.HEADER_BYTES :],
    "index": lambda: written_segment()[1].read_bytes(written_segment()[0].index_path)[formats.HEADER_BYTES :],
    "frame": written_frame,
    "checkpoint": lambda: written_checkpoint().encode()[:80],
    "entry": lambda: data_of(RETURNED.message()),
    "offset-set": OFFSETS.encode,
    "snapshot": lambda: snapped().encode(),
    "dedup": lambda: (
        bytes([deduplication.Kind.KNOWN])
        + producer_sequences.encode_entry(b"p7", OffsetSet([(3, 5), (9, 10)]))
    ),
    "note": lambda: msgspec.msgpack.encode(LEASE),
}


# tables


def test_every_layout_of_the_code_has_its_table():
    assert tables().keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_table_has_the_types_of_the_struct_and_no_gaps(name):
    table = tables()[name]
    assert table.format == LAYOUTS[name]
    end = 0
    for position, size, _ in table.rows:
        assert position == end
        end += size
    assert table.size == end == SIZES.get(name, end)


def test_the_kinds_of_files_are_those_of_the_code():
    kinds = [kind.split("`")[0] for kind in column("file-header.md", "| kind | file | id | number |", 0)]
    found = (formats.SEGMENT, formats.INDEX, formats.WAL, formats.CHECKPOINT, formats.SNAPSHOT)
    assert kinds == [kind.rstrip(b"\0").decode() for kind in found]


@pytest.mark.parametrize(
    ("page", "heading", "enum"),
    [
        ("cursor.md", "| number | kind | ranges | effect |", Kind),
        ("cursor.md", "| outcome | name | |", Outcome),
        ("dedup.md", "| number | kind | the sequences in it |", deduplication.Kind),
    ],
)
def test_the_kinds_and_outcomes_are_those_of_the_code(page: str, heading: str, enum: type[IntEnum]):
    numbers, names = (column(page, heading, number) for number in (0, 1))
    assert {name: int(number) for name, number in zip(names, numbers, strict=True)} == {
        each.name: each.value for each in enum
    }


def test_the_lists_of_a_checkpoint_have_the_fields_of_the_code():
    page = PAGES["checkpoint.md"]
    found = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    image = ("spec", "next", "reserved", "snapshot", "snapshot_before", "segments", "state")
    wanted = [image, LogSpec._fields, Retention._fields, SegmentInfo._fields]
    assert found == [(str(place), name) for fields in wanted for place, name in enumerate(fields)]
    assert column("checkpoint.md", "| field | type | meaning |", 0) == list(DOCUMENT)


def test_the_notes_have_the_fields_of_the_code():
    found = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGES["notes.md"], re.MULTILINE)
    wanted = [(str(kind.__struct_config__.tag), *kind.__struct_fields__) for kind in NOTES]
    assert found == [(str(place), name) for fields in wanted for place, name in enumerate(fields)]


def test_the_labels_of_logs_beside_a_queue_are_those_of_the_code():
    owners: list[tuple[str, int | str]] = [
        (auxiliary_logs.LEASES, 17),
        (auxiliary_logs.STAGES, "/"),
        (auxiliary_logs.GROUPS, "/"),
    ]
    labels = [auxiliary_logs.label(kind, owner) for kind, owner in owners]
    assert column("notes.md", "| label | log of | made |", 0) == labels
    assert f"`{auxiliary_logs.label(auxiliary_logs.DEDUP, 17)}`" in PAGES["dedup.md"]


@pytest.mark.parametrize(
    ("page", "words", "found", "said"),
    [
        ("README.md", "today it is 4,", formats.VERSION, 4),
        ("README.md", "when more than 3 are free", wal.FREE_FILES_MAX, 3),
        ("records.md", "at most 2,048 records and 2 MiB", records.BATCH_RECORDS_MAX, 2048),
        ("records.md", "2 MiB of data", records.BATCH_BYTES_MAX, 2 << 20),
        ("segment.md", "less than a tenth", REWRITE_BELOW, 0.1),
        ("segment.md", "- 40 × records - 32", (ENTRY_BYTES, BLOCK.size), (40, 32)),
        ("wal.md", "multiples of 512 bytes, the sector", frames.SECTOR_BYTES, 512),
        ("wal.md", "The heads take the bytes 0 to 159", 2 * frames.HEAD_BYTES, 160),
        ("wal.md", "16,777,216 (2²⁴) further", stores.LOST_AHEAD, 16_777_216),
        ("wal.md", "the record has at most 64 KiB", frame_repair.ROW_TRIED_BYTES, 64 << 10),
        ("wal.md", "the record has at most 2 KiB", frame_repair.DATA_TRIED_BYTES, 2 << 10),
        ("checkpoint.md", "more than 2,048 bytes", stores.Options().state_bytes, 2048),
        ("wal.md", "4 files or more are not free", wal.FULL_FILES_MAX, 4),
        ("cursor.md", "half of 65,536 offsets", cursor.MARK_AHEAD, 65_536),
        ("cursor.md", "A chunk stands for 65,536 offsets", offset_chunk.CHUNK_SIZE, 65_536),
        ("cursor.md", "at most 32 runs", offset_chunk.RUNS_MAX, 32),
        ("cursor.md", "8,192 bytes", offset_chunk.BITMAP_BYTES, 8192),
        ("dedup.md", "at most 255", producer_sequences.PRODUCER_BYTES_MAX, 255),
        ("dedup.md", "have 64 KiB", deduplication.WHOLE_AFTER_BYTES, 64 << 10),
        ("notes.md", "at most 10,000 in a virtual host", staged_batches.QUERIES_MAX, 10_000),
    ],
)
def test_a_number_in_the_text_is_the_one_in_the_code(page, words, found, said):
    assert words in PAGES[page]
    assert found == said


# examples


@pytest.mark.parametrize("name", sorted({*EXAMPLES, *SHOWN}))
def test_an_example_is_what_the_code_writes(name):
    assert SHOWN[name].hex(" ") == EXAMPLES[name]().hex(" ")


def test_the_header_of_the_example_is_read():
    assert read_header(SHOWN["file-header"], "", formats.SEGMENT) == FileHeader(formats.SEGMENT, 1, 0)


def test_the_records_of_the_example_are_read_and_match_their_digests():
    start = formats.HEADER_BYTES + BLOCK.size
    rows, lost = records.sort_out(SHOWN["records"], table=0, count=2, start=start)
    assert lost == []
    assert records.decode(rows, SHOWN["records"], start=start) == RECORDS


def test_the_segment_of_the_example_is_read_with_what_its_checkpoint_says():
    said = re.search(r"The checkpoint says of it: `(.*)`", PAGES["segment.md"])
    assert said is not None
    info = SegmentInfo(*json.loads(said[1]))
    disk = SimulatedDisk()
    disk.make_directory("log")
    for name, kind in (("segment", formats.SEGMENT), ("index", formats.INDEX)):
        prefix = "msgs" if name == "segment" else name
        with disk.open(f"log/{prefix}.{info.name}", create=True) as file:
            file.write(FileHeader(kind, 1, 0).encode() + SHOWN[name], 0)
    damage: list[Damage] = []
    segment = Segment(disk, "log", info, log_id=1, report=damage.append)
    assert list(segment.records([(0, 2)])) == RECORDS
    assert segment.info == written_segment()[0].info
    assert damage == []


def test_a_flipped_byte_in_the_block_of_the_example_is_noticed():
    assert segments.is_intact(SHOWN["segment"], formats.HEADER_BYTES, len(SHOWN["segment"]))
    for position in range(len(SHOWN["segment"])):
        damaged = bytearray(SHOWN["segment"])
        damaged[position] ^= 1
        assert not segments.is_intact(bytes(damaged), formats.HEADER_BYTES, len(damaged))


def test_the_frame_of_the_example_is_found_and_read():
    content = bytes(frames.SECTOR_BYTES) + SHOWN["frame"]
    position = frames.find(content, 0, GENERATION)
    assert position == frames.SECTOR_BYTES
    assert frames.find(content, 0, GENERATION + 1) == -1
    head = frames.read_head(content, position, GENERATION)
    assert head is not None
    frame = Frame("", position, head, content[position:])
    assert (frame.is_intact, frame.has_both_heads, head.length) == (True, True, len(SHOWN["frame"]))
    assert (head.ticket, head.previous) == (7, 6)
    (log, found), (journal, entries) = frame.records()
    assert (log, found) == (1, RECORDS[:1])
    assert (journal, [entry.offset for entry in entries]) == (2, [4])
    assert Entry.of(entries[0]) == SETTLED


def test_the_checkpoint_of_the_example_is_read():
    disk = SimulatedDisk()
    with disk.open("checkpoint", create=True) as file:
        file.write(SHOWN["checkpoint"] + as_json(DOCUMENT), 0)
    content = durable_io.read_whole(disk, "checkpoint", formats.CHECKPOINT)
    assert content is not None
    assert content == written_checkpoint().content
    checkpoint = Checkpoint.decode(3, content)
    assert checkpoint.logs[1].segments == [written_segment()[0].info]
    assert checkpoint.logs[2].spec.name == "billing"
    assert Progress.decode(checkpoint.logs[2].state).low == 1


def test_the_entry_of_the_example_is_read():
    who, not_before, body = (SHOWN["entry"][at:to] for at, to in ((0, 2), (2, 10), (10, None)))
    record = Record(0, TIME_US, b"", who, not_before, body, PERSISTENT | Kind.RETURNED << 1, 1)
    assert record.flags == 0x09
    assert Entry.of(record) == RETURNED


def test_the_offset_set_of_the_example_is_read():
    assert OffsetSet.decode(SHOWN["offset-set"]) == OFFSETS


def test_the_snapshot_of_the_example_is_read():
    state = Progress.decode(SHOWN["snapshot"])
    assert (state.low, list(state.settled.settled_above.ranges())) == (2, [(4, 5)])
    assert list(state.in_flight.ranges()) == [(3, 4), (6, 9)]
    assert list(state.leased.ranges()) == [(8, 9)]
    assert list(state.delays()) == [(5, TIME_US + 5_000_000)]
    assert state.counts == {2: 1, 5: 1}
    assert state.mark == cursor.MARK_AHEAD


def test_the_note_of_the_example_is_read():
    kinds = msgspec.msgpack.Decoder(lease_notes.QueryNote | lease_notes.LeaseNote)
    assert kinds.decode(SHOWN["note"]) == LEASE


def test_a_note_of_a_lease_from_before_leases_were_remembered_is_of_a_live_one():
    *said, expired = msgspec.msgpack.decode(SHOWN["note"])
    assert expired is False
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=lease_notes.LeaseNote) == LEASE


# links


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page])
    assert [link for link in links if not (FOLDER / link).exists()] == []
