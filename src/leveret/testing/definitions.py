"""Definitions that are kept in memory for as long as the object lives: over restarts of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.broker.terms import identity

_ORDER = (VhostRow, UserRow, PermissionRow, ExchangeRow, QueueRow, BindingRow)


class MemoryDefinitions:
    """In place of `leveret.server.definitions.Definitions`; every change is committed at once."""

    def __init__(self) -> None:
        self._rows: dict[object, Row] = {}
        self._committed: Callable[[int], None] | None = None
        self._number = 0

    def load(self) -> list[Row]:
        return sorted(self._rows.values(), key=lambda row: _ORDER.index(type(row)))

    def start(self, committed: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        self._committed = committed
        if self._number:
            committed(self._number)

    def put(self, number: int, changes: Sequence[Change]) -> None:
        for row, removed in changes:
            if removed:
                self._rows.pop(_key(row), None)
            else:
                self._rows[_key(row)] = row
        self._number = number
        if self._committed is not None:
            self._committed(number)

    def close(self) -> None:
        self._committed = None
        self._number = 0


def _key(row: Row) -> object:
    if isinstance(row, BindingRow):
        arguments = identity(row.arguments)
        return BindingRow, row.vhost, row.source, row.to_queue, row.destination, row.routing_key, arguments
    return type(row), row.key
