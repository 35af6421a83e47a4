"""A reserve of disk space: a file of zeros that is cut when the disk is full.

Deleting needs a little space too: a checkpoint without the deleted files, or a commit that removes a row.
Callers decide when the disk is full and which writes may use the reserve. The rule: nothing depends on the
reserve; without one, the operator has to make room on a full disk.
"""

from __future__ import annotations

from leveret.storage.files import Files


class Reserve:
    """A file that reserves space: `reserve.hold()` reserves it, `reserve.give_way()` frees some of it."""

    def __init__(self, files: Files, path: str, size_bytes: int) -> None:
        self._files = files
        self._path = path
        self._size_bytes = size_bytes
        self._left_bytes = -1 if size_bytes else 0
        """Reserved bytes; -1 if unknown."""

    def hold(self) -> bool:
        """Reserve all of the space; return whether that succeeded."""
        if self._left_bytes == self._size_bytes:
            return True
        try:
            with self._files.open(self._path, create=True) as file:
                before = file.size()
                try:
                    file.allocate(self._size_bytes)
                except OSError:
                    file.truncate(before)
                    self._left_bytes = min(before, self._size_bytes)
                    return False
        except OSError:
            return False
        self._left_bytes = self._size_bytes
        return True

    def give_way(self, *, parts: int = 1) -> bool:
        """Free one of `parts` equal parts of the space; return whether any was still reserved."""
        if not self._left_bytes:
            return False
        try:
            with self._files.open(self._path) as file:
                before = file.size()
                self._left_bytes = max(0, before - -(-self._size_bytes // parts))
                if before:
                    file.truncate(self._left_bytes)
        except OSError:
            return False
        return before > 0
