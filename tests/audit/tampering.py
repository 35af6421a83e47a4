"""Changes to a data directory that no broker made, with valid checksums; the audit must notice them.

A change rewrites segments without a record or with a record twice, or adds an entry to a journal. A new
checkpoint then names the new segments, and the files of the old segments stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from leveret.storage.catalog import LogImage, read_checkpoints, write_checkpoint
from leveret.storage.errors import Damage
from leveret.storage.files import OsFiles
from leveret.storage.journal import Entry, Kind
from leveret.storage.records import Batch, Message, Record, size_of
from leveret.storage.segment import Segment, SegmentInfo


class Tampering:
    """`Tampering(path).remove("orders", 7)`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = OsFiles(str(path))
        self._checkpoint = read_checkpoints(self._files, _never)[0]

    def log(self, queue: str) -> LogImage:
        for image in self._checkpoint.logs.values():
            label = json.loads(image.spec.label) if image.spec.label and not image.spec.parent else None
            if isinstance(label, list) and label[1] == queue:
                return image
        raise LookupError(queue)

    def journal(self, queue: str) -> LogImage:
        parent = self.log(queue).spec.id
        images = self._checkpoint.logs.values()
        return next(image for image in images if image.spec.parent == parent and image.spec.name == "queue")

    # changes

    def remove(self, queue: str, offset: int) -> None:
        """Remove a message from its segment; the checksums are valid."""
        self._rewrite(
            self.log(queue), lambda records: [record for record in records if record.offset != offset]
        )

    def double(self, queue: str, offset: int) -> None:
        """Write a message into its segment twice."""
        self._rewrite(
            self.log(queue),
            lambda records: [
                copy for record in records for copy in [record] * (1 + (record.offset == offset))
            ],
        )

    def remove_segment(self, queue: str) -> None:
        """Delete the segment files of a queue."""
        for info in self.log(queue).segments:
            (self.path / self.log(queue).spec.directory / f"msgs.{info.name}").unlink()

    def damage(self, queue: str, body: bytes) -> None:
        """Flip a bit of the message with this body."""
        for info in self.log(queue).segments:
            path = self.path / self.log(queue).spec.directory / f"msgs.{info.name}"
            data = bytearray(path.read_bytes())
            if body in data:
                data[data.index(body)] ^= 1
                path.write_bytes(data)
                return
        raise LookupError(body)

    def settle(self, queue: str, offset: int, outcome: int, who: bytes) -> None:
        """Add an entry to the journal that settles a message once more."""
        image = self.journal(queue)
        message = Entry(Kind.SETTLED, [(offset, offset + 1)], outcome, who).message()
        batch = Batch(image.next, image.segments[-1].newest_us, [message], size_of([message]))
        image.segments[-1] = self._segment(image, image.segments[-1]).extended([batch]).info
        image.next += 1
        self._save()

    def forget(self, queue: str, kind: Kind, offset: int) -> None:
        """Remove the entries of one kind about a message from the journal."""

        def without(records: Iterable[Record]) -> list[Record]:
            return [record for record in records if not _is_about(Entry.of(record), kind, offset)]

        self._rewrite(self.journal(queue), without)

    # rewriting

    def _rewrite(self, image: LogImage, change: Callable[[Iterable[Record]], Sequence[Record]]) -> None:
        for number, info in enumerate(image.segments):
            records = change(self._segment(image, info).records([(0, info.last + 1)]))
            messages = [(record, Message(*record[2:])) for record in records]
            batches = [
                Batch(record.offset, record.time_us, [message], size_of([message]))
                for record, message in messages
            ]
            copy = self._segment(image, SegmentInfo(info.first, edition=info.edition + 1))
            image.segments[number] = copy.extended(batches).info
        self._save()

    def _segment(self, image: LogImage, info: SegmentInfo) -> Segment:
        return Segment(self._files, image.spec.directory, info, log_id=image.spec.id, report=_never)

    def _save(self) -> None:
        self._checkpoint.number += 1
        write_checkpoint(self._files, self._checkpoint)


def _is_about(entry: Entry, kind: Kind, offset: int) -> bool:
    return entry.kind is kind and any(start <= offset < stop for start, stop in entry.ranges)


def _never(damage: Damage) -> None:
    raise AssertionError(damage)
