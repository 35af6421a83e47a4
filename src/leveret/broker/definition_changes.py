"""Changes of definitions on their way to the disk, and the undoing of those that can't be written.

Owns the numbers of the changes and how each put is undone. Writing is left to `leveret.server.definitions`,
telling clients to the broker. A removal is never undone, because what it removes is gone from the store. It
is written as soon as the disk takes it, and its answer waits.

The rule: puts that can't be written are undone in reverse order, with all puts that came after them, before
anything else is defined. So no change that is kept was built on a change that was undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from leveret.broker.definitions import Change
from leveret.storage.errors import StorageError

Undo = Callable[[], None]

_REMEMBERED = 64
"""Refusals that are kept for those who ask a little later."""


class Defining:
    """`number = defining.write([Change(row)], undo=...)`, then `done(number)` or `refuse([number], why)`."""

    def __init__(self, write_down: Callable[[int, Sequence[Change]], None]) -> None:
        self._write_down = write_down
        self._undo: deque[tuple[int, Undo]] = deque()
        self._refused: deque[tuple[frozenset[int], StorageError]] = deque(maxlen=_REMEMBERED)
        self._watchers: dict[Callable[[], None], None] = {}
        self.number = 0
        """Of the last change."""
        self.last_put = 0
        """Of the last change that is not a removal."""
        self.committed = 0
        """Changes up to this number are on disk, or were refused."""
        self.refusal: StorageError | None = None
        """Why nothing can be defined at present."""

    def check(self) -> None:
        """Raise if nothing can be defined at present; call it before anything is changed in memory."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # or it would grow with every raise

    def write(self, changes: Sequence[Change], *, undo: Undo | None = None) -> int:
        """Hand changes over to be written, all of them puts or all of them removals; return their number."""
        removes = changes[0].removed
        assert all(change.removed == removes for change in changes), "a change puts or removes"
        self.number += 1
        if not removes:
            self.last_put = self.number
            if undo is not None:
                self._undo.append((self.number, undo))
        self._write_down(self.number, changes)
        return self.number

    def done(self, number: int) -> None:
        """Changes up to this number are on disk."""
        self.committed = max(self.committed, number)
        while self._undo and self._undo[0][0] <= number:
            self._undo.popleft()

    def refuse(self, numbers: Collection[int], error: StorageError) -> None:
        """These puts are not on disk and never will be: undo them. Nothing can be defined until `resume`."""
        self.refusal = error
        if not numbers:
            return
        self._refused.append((frozenset(numbers), error))
        undone = [each for each in self._undo if each[0] in numbers]
        self._undo = deque(each for each in self._undo if each[0] not in numbers)
        for _, undo in reversed(undone):
            undo()
        for watcher in list(self._watchers):
            watcher()

    def resume(self) -> None:
        """Definitions can be written again."""
        self.refusal = None

    def refusal_of(self, after: int, last: int) -> StorageError | None:
        """Return why a change with a number above `after`, up to `last`, was refused; None if none was."""
        for numbers, error in self._refused:
            if any(after < number <= last for number in numbers):
                return error
        return None

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have it called after each refusal, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        del self._watchers[watcher]
