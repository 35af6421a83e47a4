"""What a reader in another process is told of a log: which segments there were, and how far they reached.

A view is taken by the process that writes (`Log.view`) and read by any other, with `arrow.LogReader`. It
names files and does not keep them: a segment that is settled meanwhile is unlinked, one of which little is
left goes on under another name. Whoever finds a file gone gets `SegmentGone` and takes a new view. The rule
on the writer's side: a file is never cut, nor changed, below what a view says of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from leveret.storage.errors import StorageError
from leveret.storage.segment import SegmentInfo


@dataclass(frozen=True, slots=True)
class LogView:
    """The files of a log at one moment. Small, and plain enough to be sent to another process."""

    log_id: int
    directory: str
    segments: tuple[SegmentInfo, ...]
    stop: int
    """Offsets below this are in the segments, or gone for good; at or above it nothing can be read."""

    def without(self, paths: Collection[str]) -> LogView:
        """A file that a later view names too was not replaced: it is lost, and what was in it is gone."""
        there = (info for info in self.segments if f"{self.directory}/msgs.{info.name}" not in paths)
        return replace(self, segments=tuple(there))


class SegmentGone(StorageError):
    """A segment that the view names was deleted or rewritten before it could be opened."""

    hint = "Take a new view of the log and read again."

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is gone")
        self.path = path
