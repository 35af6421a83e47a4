"""One damaged place in any file: it is named, the store opens, and nothing else is lost.

What may be missing follows from the damaged bytes alone: a message, when they are its own; the effect of one
journal entry, when they are the entry's; after a cut, all that lay behind it. A settled message may come back
then, an unsettled one never vanishes. Bytes that nobody reads may be damaged unnoticed: the padding and the
stale frames of WAL files, the lock file, the snapshot kept in reserve.

Two things are weaker. The last round of the WAL after an unclean stop can't be told from one that a power cut
tore apart: a flipped byte in it is put right by trying; where that fails, because the record is large, the
round is lost, and said to be lost. And a WAL file that was deleted is only missed when a later one is found.

LEVERET_EVERY_BYTE=1 flips every byte and cuts at every length. Without it there is a seeded sample, which is
larger in `make test-all`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import NamedTuple

import pytest

from leveret.storage import formats, frames
from leveret.storage.catalog import CATALOG_LOG, LogImage, read_checkpoints
from leveret.storage.errors import Damage
from leveret.storage.frames import Frame
from leveret.storage.records import PERSISTENT, ROW, ROW_BYTES, Message, batch_bytes, extent
from leveret.storage.recovery import UNFINISHED
from leveret.storage.segment import BLOCK, Segment
from leveret.storage.store import Store
from leveret.testing.disk import SimulatedDisk
from tests.faults.sample_store import LARGE_BYTES, SampleStore, View, look, open_store

EVERY_BYTE = bool(os.environ.get("LEVERET_EVERY_BYTE"))
VARIANTS = ["unclean", "clean", "unclean without states", "clean without states"]


class Span(NamedTuple):
    """Where a record is: its data, and the end of that and of its digest."""

    path: str
    log_id: int
    offset: int
    data_from: int
    data_to: int
    end: int


@dataclass
class Allowed:
    """What some damage may cost: messages by log and offset, journal entries by journal and number."""

    messages: set[tuple[int, int]] = field(default_factory=set)
    entries: set[tuple[int, int]] = field(default_factory=set)


class Subject:
    """A sample, and where each record of it is in the files."""

    def __init__(self, *, clean: bool, states: bool) -> None:
        self.sample = SampleStore(clean=clean, states=states)
        self.disk = self.sample.disk
        self.truth = self.sample.truth
        self.sizes = {path: len(self.disk.read_bytes(path)) for path in self.disk.paths()}
        self.checkpoint = read_checkpoints(self.disk, pytest.fail)[0]
        self.frames = [f for path in self.sizes if path.startswith("wal/") for f in self.live_frames(path)]
        self.last = max(self.frames, key=lambda frame: frame.head.ticket, default=None)
        self.spans = list(self.find_spans())

    def live_frames(self, path: str) -> Iterator[Frame]:
        content = self.disk.read_bytes(path)
        header = formats.read_header(content, path, formats.WAL)
        position = frames.SECTOR_BYTES
        while header and (position := frames.find(content, position, header.number)) >= 0:
            head = frames.read_head(content, position, header.number)
            assert head is not None
            if head.ticket > self.checkpoint.ticket:
                yield Frame(path, position, head, content[position : position + head.length])
            position += head.length

    def segments(self) -> Iterator[tuple[LogImage, Segment]]:
        """The segments that the checkpoint names, each with the log that it belongs to."""
        store = open_store(self.disk.copy())
        for image in self.checkpoint.logs.values():
            for segment in store._open_log(image).segments:
                yield image, segment

    def find_spans(self) -> Iterator[Span]:
        for image, segment in self.segments():
            rows = segment.rows()
            for block in segment.blocks():
                digests_end = block.position + BLOCK.size + batch_bytes(block.rows)
                part = rows[block.row * ROW_BYTES : (block.row + block.rows) * ROW_BYTES]
                yield from spans_of(part, segment.path, image.spec.id, start=0, digests_end=digests_end)
        for frame in self.frames:
            at = frame.head.rows_from
            digests_end = frame.position + at + batch_bytes(frame.head.records)
            for log_id, n in frame.groups() or ():
                part = frame.content[at : at + n * ROW_BYTES]
                yield from spans_of(part, frame.path, log_id, start=frame.position, digests_end=digests_end)
                at += len(part)

    def allowed_by_flip(self, path: str, position: int) -> Allowed:
        """The record whose data it is in; rows and digests cost nothing."""
        found = Allowed()
        for span in self.spans:
            if span.path == path and span.data_from <= position < span.data_to:
                self.charge(found, span)
        assert len(found.messages) + len(found.entries) <= 1
        return found

    def allowed_by_cut(self, path: str, size: int) -> Allowed:
        """All that ended behind it, and logs whose creation did."""
        found = Allowed()
        for span in self.spans:
            if span.path == path and size < span.end:
                self.charge(found, span)
                if span.log_id == CATALOG_LOG:
                    fresh = self.truth.records.keys() - self.checkpoint.logs.keys()
                    found.messages |= {(log, o) for log in fresh for o in self.sample.sent[log]}
        return found

    def allowed_by_the_loss_of(self, frame: Frame) -> Allowed:
        found = Allowed()
        for span in self.spans:
            if span.path == frame.path and 0 <= span.data_from - frame.position < frame.head.length:
                self.charge(found, span)
        return found

    def charge(self, found: Allowed, span: Span) -> None:
        if span.log_id in self.sample.parents:
            found.entries.add((span.log_id, span.offset))
        elif span.log_id != CATALOG_LOG:
            found.messages.add((span.log_id, span.offset))

    def is_read(self, path: str, position: int) -> bool:
        """Whether a byte is looked at when the store is opened and read."""
        if path.startswith("checkpoint."):
            return True
        if path.startswith("wal/"):
            live = (f for f in self.frames if f.path == path)
            return position < 64 or any(0 <= position - f.position < f.head.length for f in live)
        return any(start <= position < stop for start, stop in self.read_ranges.get(path, ()))

    @cached_property
    def read_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Of segments, indexes and snapshots. Of a journal only what its snapshot does not know is read, and
        nothing when its cursor's state is in the checkpoint."""
        paths = {path for each in read_checkpoints(self.disk, pytest.fail) for path in each.files()}
        ranges = {path: [(0, 64)] for path in paths}
        for image, segment in self.segments():
            since = image.snapshot if image.spec.parent else 0
            if image.state:
                since = image.next
            read = [(b.position, b.position + b.length) for b in segment.blocks() if b.last >= since]
            ranges[segment.path] += read
            ranges[segment.index_path] += [(64, 64 + segment.info.rows * ROW_BYTES)] if read else []
        for image in self.checkpoint.logs.values():
            if image.snapshot and not image.state:
                path = f"{image.spec.directory}/snapshot.{image.snapshot:020d}"
                ranges[path] = [(0, self.sizes[path])]
        return ranges

    def positions(self, path: str, n: int) -> list[int]:
        """Every byte; or the first, the last and a sample, most of it where bytes are read."""
        size = self.sizes[path]
        if EVERY_BYTE:
            return list(range(size))
        read = [p for p in range(size) if self.is_read(path, p)] or list(range(size))
        random = Random(path)
        n *= 5 if path.startswith("wal/") else 1
        return sorted({0, size - 1, random.randrange(size), *random.sample(read, min(n, len(read)))})


def spans_of(rows: bytes, path: str, log_id: int, *, start: int, digests_end: int) -> Iterator[Span]:
    for at in range(0, len(rows), ROW_BYTES):
        position, size = extent(rows[at : at + ROW_BYTES])
        data_to = start + position + size
        offset = ROW.unpack_from(rows, at)[0]
        yield Span(path, log_id, offset, start + position, data_to, max(digests_end, data_to))


@cache
def subject(variant: str) -> Subject:
    return Subject(clean=not variant.startswith("unclean"), states="without states" not in variant)


def files(variant: str, *, every: int = 1) -> list[str]:
    """Return the paths of all files, or of each n-th."""
    return [path for path in subject(variant).sizes if path != "lock"][::every]


def opened(disk: SimulatedDisk) -> tuple[Store, View]:
    """Open the store; a checkpoint drops settled messages, which a store without damage keeps until then."""
    store = open_store(disk)
    store.checkpoint()
    return store, look(store)


# what must be true


def compare(whole: Subject, view: View, allowed: Allowed) -> set[tuple[int, int]]:
    """Fails when more is different than is allowed; returns the messages that are missing."""
    truth = whole.truth
    missing = set()
    for log_id, records in truth.records.items():
        found = view.records.get(log_id, {})
        missing |= {(log_id, offset) for offset in records.keys() - found.keys()}
        for offset, record in found.items():
            assert record.body == whole.sample.sent[log_id][offset]
            assert offset not in records or record == records[offset]
        assert log_id not in view.next or view.next[log_id] >= max(whole.sample.sent[log_id])
    assert missing <= allowed.messages, "messages are lost that were not damaged"
    for journal_id in truth.cursors:
        compare_cursor(whole, view, allowed, journal_id)
    return missing


def compare_cursor(whole: Subject, view: View, allowed: Allowed, journal_id: int) -> None:
    sample, unsettled = whole.sample, whole.truth.cursors[journal_id]
    entries = sample.entries[journal_id]
    touched = {o for journal, n in allowed.entries if journal == journal_id for o in entries.get(n, ())}
    lost = {offset for log, offset in allowed.messages if log == sample.parents[journal_id]}
    found = view.cursors.get(journal_id)
    if found is None:
        assert unsettled.keys() <= lost, "a cursor is gone"
        return
    assert unsettled.keys() - found.keys() <= lost, "unsettled messages have vanished"
    assert found.keys() - unsettled.keys() <= touched, "settled messages are back"
    changed = {o for o, state in found.items() if unsettled.get(o, state) != state}
    assert changed <= touched, "counts or delays are wrong"
    delivered = sample.delivered[journal_id] & found.keys() & whole.truth.redelivered[journal_id]
    assert delivered - touched <= view.redelivered[journal_id], "a redelivery does not say so"


def check_named(path: str, missing: set[tuple[int, int]], damage: list[Damage]) -> None:
    for log_id, offset in missing:
        assert any(
            each.offset == offset
            and each.file == path
            and (f"logs/{log_id:016x}/msgs." in path or f"log {log_id} " in each.what)
            for each in damage
        ), f"offset {offset} of log {log_id} is not named in {damage}"


def check_goes_on(store: Store, disk: SimulatedDisk, view: View) -> None:
    """The store can be used and closed, and shows the same when it is opened again."""
    for log in store.logs.values():
        store.append(log, [Message(b"", b"", b"", b"new", PERSISTENT)])
    store.checkpoint()
    store.close()
    again = look(open_store(disk))
    for log_id, records in view.records.items():
        assert {o: r for o, r in again.records[log_id].items() if r.body != b"new"} == records
    for journal_id, unsettled in view.cursors.items():
        assert unsettled.keys() <= again.cursors[journal_id].keys() | damaged_offsets(view)


def damaged_offsets(view: View) -> set[int]:
    return {each.offset for each in view.damage if each.offset is not None}


# flips


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_flipped_byte_costs_at_most_its_record_and_is_named(variant: str, full_run: bool) -> None:
    whole = subject(variant)
    for number, path in enumerate(files(variant, every=1 if full_run else 3)):
        for position in whole.positions(path, 8 if full_run else 3):
            mask = Random(f"{path} {position}").randrange(1, 256)
            disk = whole.disk.copy()
            disk.flip(path, position, mask)
            try:
                check_flip(whole, path, position, disk, go_on=(number + position) % 10 == 0)
            except BaseException as error:
                error.add_note(f"{variant}: byte {position} of {path}, mask {mask:#x}")
                raise


def check_flip(whole: Subject, path: str, position: int, disk: SimulatedDisk, *, go_on: bool) -> None:
    store, view = opened(disk)
    if any(each.what == UNFINISHED for each in view.damage):
        assert whole.last is not None
        assert path == whole.last.path
        assert whole.allowed_by_flip(path, position).messages, "only a large message may cost its round"
        compare(whole, view, whole.allowed_by_the_loss_of(whole.last))
        return
    missing = compare(whole, view, whole.allowed_by_flip(path, position))
    assert len(missing) <= 1
    check_named(path, missing, view.damage)
    assert whole.is_read(path, position) == any(each.file == path for each in view.damage), view.damage
    if go_on:
        check_goes_on(store, disk, view)


def test_a_large_message_that_is_damaged_in_the_wal_is_named_with_its_offset() -> None:
    whole = subject("unclean")
    (span,) = [s for s in whole.spans if s.path.startswith("wal/") and s.data_to - s.data_from > LARGE_BYTES]
    disk = whole.disk.copy()
    disk.flip(span.path, span.data_from + 1000, 1)
    store = open_store(disk)
    assert [(d.file, d.position, d.offset) for d in store.damage] == [
        (span.path, span.data_from, span.offset)
    ]
    assert store.log(span.log_id).read_one(span.offset) is None
    assert compare(whole, look(store), Allowed({(span.log_id, span.offset)})) == {(span.log_id, span.offset)}


# cuts and deletions


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cut_file_costs_what_was_cut_off_and_is_named(variant: str, full_run: bool) -> None:
    whole = subject(variant)
    for number, path in enumerate(files(variant, every=1 if full_run else 3)):
        for size in whole.positions(path, 4 if full_run else 2):
            disk = whole.disk.copy()
            disk.cut(path, size)
            try:
                check_cut(whole, path, size, disk, go_on=(number + size) % 5 == 0)
            except BaseException as error:
                error.add_note(f"{variant}: {path} cut from {whole.sizes[path]} to {size} bytes")
                raise


def check_cut(whole: Subject, path: str, size: int, disk: SimulatedDisk, *, go_on: bool) -> None:
    store, view = opened(disk)
    missing = compare(whole, view, whole.allowed_by_cut(path, size))
    if not path.startswith("wal/"):
        check_named(path, missing, view.damage)
    if missing or whole.is_read(path, size):
        assert any(each.file == path for each in view.damage)
    if go_on:
        check_goes_on(store, disk, view)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_deleted_file_costs_what_was_in_it(variant: str) -> None:
    whole = subject(variant)
    for path in files(variant):
        disk = whole.disk.copy()
        disk.unlink(path)
        try:
            store, view = opened(disk)
            missing = compare(whole, view, whole.allowed_by_cut(path, 0))
            if path.startswith("logs/"):
                check_named(path, missing, view.damage)
                assert path not in whole.read_ranges or any(each.file == path for each in view.damage)
            check_goes_on(store, disk, view)
        except BaseException as error:
            error.add_note(f"{variant}: without {path}")
            raise
