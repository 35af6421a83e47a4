"""Definition changes that are being written, and the undo of changes that can't be written.

`Defining` owns the numbers of the changes and the undo function of each put. `leveret.server.definitions`
writes them, and the broker informs clients. A removal is never undone, because the store has already deleted
the object; it is written as soon as the disk allows, and its answer waits. A removal may put a row in the
same change: a note about what is left to delete.

The rule: puts that can't be written are undone in reverse order, with all puts that came after them, before
anything else is defined. So no change that is kept was built on a change that was undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from leveret.broker.definitions import Change
from leveret.storage.errors import StorageError

Undo = Callable[[], object]

_REMEMBERED = 64
"""Number of refusals that `refusal_of` can still return."""


class Defining:
    """`number = defining.write([Change(row)], undo=...)`, then `done(number)` or `refuse([number], why)`."""

    def __init__(self, write_down: Callable[[int, Sequence[Change]], None]) -> None:
        self._write_down = write_down
        self._undo: deque[tuple[int, Undo]] = deque()
        self._awaited: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks, each with the number of the change that it waits for."""
        self._refused: deque[tuple[frozenset[int], StorageError]] = deque(maxlen=_REMEMBERED)
        self._watchers: dict[Callable[[], None], None] = {}
        self.number = 0
        """Number of the last change."""
        self.last_put = 0
        """Number of the last change that is not a removal."""
        self.committed = 0
        """Number up to which all changes are on disk or were refused."""
        self.refusal: StorageError | None = None
        """Why nothing can be defined at present, or None."""

    def check(self) -> None:
        """Raise if nothing can be defined at present; callers check before they change anything in memory."""
        if self.refusal is not None:
            # Without `with_traceback(None)` the traceback would grow with every raise.
            raise self.refusal.with_traceback(None)

    def write(self, changes: Sequence[Change], *, undo: Undo | None = None) -> int:
        """Pass on changes to be written, all puts or a removal first; return their number."""
        removes = changes[0].removed
        assert removes or not any(change.removed for change in changes), "a put removes nothing"
        self.number += 1
        if not removes:
            self.last_put = self.number
            if undo is not None:
                self._undo.append((self.number, undo))
        self._write_down(self.number, changes)
        return self.number

    def done(self, number: int) -> None:
        """Mark changes up to this number as committed."""
        self.committed = max(self.committed, number)
        while self._undo and self._undo[0][0] <= number:
            self._undo.popleft()
        while self._awaited and self._awaited[0][0] <= number:
            self._awaited.popleft()[1]()

    def when_committed(self, call: Callable[[], None]) -> None:
        """Call `call` when the last change, a removal, is committed."""
        self._awaited.append((self.number, call))

    def refuse(self, numbers: Collection[int], error: StorageError) -> None:
        """Undo puts that can't be written, and refuse all definitions until `resume`."""
        self.refusal = error
        if not numbers:
            return
        self._refused.append((frozenset(numbers), error))
        undone = [(number, undo) for number, undo in self._undo if number in numbers]
        self._undo = deque((number, undo) for number, undo in self._undo if number not in numbers)
        for _, undo in reversed(undone):
            undo()
        for watcher in list(self._watchers):
            watcher()

    def resume(self) -> None:
        """Allow definitions again."""
        self.refusal = None

    def refusal_of(self, after: int, last: int) -> StorageError | None:
        """Return why a change numbered above `after` and up to `last` was refused, or None if none was."""
        for numbers, error in self._refused:
            if any(after < number <= last for number in numbers):
                return error
        return None

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each refusal, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        del self._watchers[watcher]
