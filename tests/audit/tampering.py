"""A data directory changed behind its broker's back, with checksums that are right: for the audit to notice.

What is changed is what a checkpoint names: segments are written anew, with a record less or one twice, or a
journal gets an entry that nobody made; a checkpoint names them instead. Files of the old ones stay.
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
            said = json.loads(image.spec.label) if image.spec.label and not image.spec.parent else None
            if isinstance(said, list) and said[1] == queue:
                return image
        raise LookupError(queue)

    def journal(self, queue: str) -> LogImage:
        parent = self.log(queue).spec.id
        images = self._checkpoint.logs.values()
        return next(image for image in images if image.spec.parent == parent and image.spec.name == "queue")

    # what can be done

    def remove(self, queue: str, offset: int) -> None:
        """The message is not in its segment, and everything is right with that."""
        self._rewrite(self.log(queue), lambda records: [each for each in records if each.offset != offset])

    def double(self, queue: str, offset: int) -> None:
        """The message is in its segment twice."""
        self._rewrite(
            self.log(queue),
            lambda records: [twin for each in records for twin in [each] * (1 + (each.offset == offset))],
        )

    def remove_segment(self, queue: str) -> None:
        """The file is gone."""
        for info in self.log(queue).segments:
            (self.path / self.log(queue).spec.directory / f"msgs.{info.name}").unlink()

    def damage(self, queue: str, body: bytes) -> None:
        """A bit of the message has changed."""
        for info in self.log(queue).segments:
            path = self.path / self.log(queue).spec.directory / f"msgs.{info.name}"
            data = bytearray(path.read_bytes())
            if body in data:
                data[data.index(body)] ^= 1
                path.write_bytes(data)
                return
        raise LookupError(body)

    def settle(self, queue: str, offset: int, outcome: int, who: bytes) -> None:
        """The journal says once more that it is settled."""
        image = self.journal(queue)
        message = Entry(Kind.SETTLED, [(offset, offset + 1)], outcome, who).message()
        batch = Batch(image.next, image.segments[-1].newest_us, [message], size_of([message]))
        image.segments[-1] = self._segment(image, image.segments[-1]).extended([batch]).info
        image.next += 1
        self._save()

    def forget(self, queue: str, kind: Kind, offset: int) -> None:
        """The journal says nothing of that kind of a message."""

        def without(records: Iterable[Record]) -> list[Record]:
            return [each for each in records if not _tells(Entry.of(each), kind, offset)]

        self._rewrite(self.journal(queue), without)

    # how

    def _rewrite(self, image: LogImage, change: Callable[[Iterable[Record]], Sequence[Record]]) -> None:
        for number, info in enumerate(image.segments):
            records = change(self._segment(image, info).records([(0, info.last + 1)]))
            messages = [(each, Message(*each[2:])) for each in records]
            batches = [Batch(r.offset, r.time_us, [message], size_of([message])) for r, message in messages]
            copy = self._segment(image, SegmentInfo(info.first, edition=info.edition + 1))
            image.segments[number] = copy.extended(batches).info
        self._save()

    def _segment(self, image: LogImage, info: SegmentInfo) -> Segment:
        return Segment(self._files, image.spec.directory, info, log_id=image.spec.id, report=_never)

    def _save(self) -> None:
        self._checkpoint.number += 1
        write_checkpoint(self._files, self._checkpoint)


def _tells(entry: Entry, kind: Kind, offset: int) -> bool:
    return entry.kind is kind and any(start <= offset < stop for start, stop in entry.ranges)


def _never(damage: Damage) -> None:
    raise AssertionError(damage)
