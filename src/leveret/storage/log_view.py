"""A view of a log for readers in other processes: its segments and their lengths at one moment.

The process that writes the log takes a view (`Log.view`), and any process reads it with `arrow.LogReader`. A
view does not keep its files: settled segments are deleted, others are rewritten under new names. A reader
that finds a file missing raises `SegmentGone`, and its caller takes a new view. The rule for the writer: a
file never changes below the length that a view gives.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from leveret.storage.errors import StorageError
from leveret.storage.segment import SegmentInfo


@dataclass(frozen=True, slots=True)
class LogView:
    """The segments of a log at one moment, small enough to be sent to another process."""

    log_id: int
    directory: str
    segments: tuple[SegmentInfo, ...]
    stop: int
    """End of the view: no offset at or above it can be read."""

    def without(self, paths: Collection[str]) -> LogView:
        """Return the view without these segments: lost ones, whose files a later view still names."""
        kept = (info for info in self.segments if f"{self.directory}/msgs.{info.name}" not in paths)
        return replace(self, segments=tuple(kept))


class SegmentGone(StorageError):
    """A segment that the view names was deleted or rewritten before it could be opened."""

    hint = "Take a new view of the log and read again."

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was deleted or rewritten after the view was taken")
        self.path = path
