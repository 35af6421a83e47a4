"""A store of definitions in memory, which survives restarts of a broker in a test."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    ParameterRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.broker.queues.erlang_terms import identity
from leveret.storage.errors import StorageError, StorageFull

_ORDER = (VhostRow, UserRow, PermissionRow, ParameterRow, ExchangeRow, QueueRow, BindingRow)


class MemoryDefinitions:
    """Replaces `leveret.server.definitions.Definitions`, and commits every change at once.

    After `fill`, changes wait and are refused as on a full disk, until `heal`.
    """

    def __init__(self) -> None:
        self._rows: dict[object, Row] = {}
        self._committed: Callable[[int], None] | None = None
        self._refused: Callable[[StorageError], None] | None = None
        self._resumed: Callable[[], None] | None = None
        self._number = 0
        self._full: StorageError | None = None
        self._waiting: list[tuple[int, Sequence[Change]]] = []
        self.is_new = True
        self.damage: list[object] = []

    def load(self) -> list[Row]:
        return sorted(self._rows.values(), key=lambda row: _ORDER.index(type(row)))

    def start(
        self,
        committed: Callable[[int], None],
        failed: Callable[[BaseException], None],
        *,
        refused: Callable[[StorageError], None] | None = None,
        resumed: Callable[[], None] | None = None,
    ) -> None:
        self.is_new = False
        self._committed, self._refused, self._resumed = committed, refused, resumed
        if self._number:
            committed(self._number)

    def fill(self) -> None:
        """Refuse all changes from now on."""
        self._full = StorageFull("definitions.db", OSError(errno.ENOSPC, "No space left on device"))

    def heal(self) -> None:
        """Commit waiting removals, and accept changes again."""
        self._full = None
        waiting, self._waiting = self._waiting, []
        for number, changes in waiting:
            self.put(number, changes)
        if self._resumed is not None:
            self._resumed()

    def withdraw(self) -> list[int]:
        withdrawn = [number for number, changes in self._waiting if not changes[0].removed]
        self._waiting = [change for change in self._waiting if change[0] not in withdrawn]
        return withdrawn

    def put(self, number: int, changes: Sequence[Change]) -> None:
        if self._full is not None:
            self._waiting.append((number, changes))
            if self._refused is not None:
                self._refused(self._full)
            return
        for row, removed in changes:
            if removed:
                self._rows.pop(_key(row), None)
                if isinstance(row, VhostRow):
                    self._remove_rows_of(row.name)
            else:
                self._rows[_key(row)] = row
        self._number = number
        if self._committed is not None:
            self._committed(number)

    def _remove_rows_of(self, vhost: str) -> None:
        self._rows = {key: row for key, row in self._rows.items() if getattr(row, "vhost", None) != vhost}

    def close(self) -> None:
        self._committed = self._refused = self._resumed = None
        self._waiting.clear()
        self._number = 0


def _key(row: Row) -> object:
    if isinstance(row, BindingRow):
        arguments = identity(row.arguments)
        return BindingRow, row.vhost, row.source, row.to_queue, row.destination, row.routing_key, arguments
    if isinstance(row, PermissionRow):
        return PermissionRow, row.vhost, row.user
    if isinstance(row, ParameterRow):
        return ParameterRow, row.component, row.vhost, row.name
    return type(row), "" if isinstance(row, VhostRow | UserRow) else row.vhost, row.name
