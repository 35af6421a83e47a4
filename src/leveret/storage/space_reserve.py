"""A reserve of disk space: a file of zeros that gives way when the disk is full.

Removing things needs a little space too: a checkpoint without what was deleted, a commit that removes a row.
Owns the file; when the disk counts as full, and for which writes space is given up, is left to others.
Everything here is best effort: without a reserve, somebody else has to make room on a full disk.
"""

from __future__ import annotations

from leveret.storage.files import Files


class Reserve:
    """`reserve.hold()` while there is space; `reserve.give_way()` frees it, or a part of it."""

    def __init__(self, files: Files, path: str, size_bytes: int) -> None:
        self._files = files
        self._path = path
        self._size_bytes = size_bytes
        self._left_bytes = -1 if size_bytes else 0
        """Bytes that are reserved; -1 when that is not known."""

    def hold(self) -> bool:
        """Reserve all of it; return whether it is."""
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
        """Free one part of so many; return whether there was something left to be freed."""
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
