"""The part of the broker that queues, streams, groups and their rules use: turns, the clock, the store.

They are given a `Broker` but know only `Core`, so that they need not import `broker`. The broker schedules
objects of type `Runs`: deliverers, streams, readers, groups.
"""

from __future__ import annotations

from typing import Any, Protocol

from leveret.broker.counters import BrokerCounters
from leveret.broker.definition_changes import Defining, Undo
from leveret.broker.definitions import Change
from leveret.broker.ledger import Ledger
from leveret.broker.limits import Limits
from leveret.broker.timers import Timers
from leveret.storage.store import Store


class Runs(Protocol):
    """An object that the broker can schedule."""

    def run(self) -> None:
        """Deliver all messages that can be delivered now."""


class Scheduled(Protocol):
    """An object whose messages a `Runs` delivers: a queue with its deliverer."""

    @property
    def runs(self) -> Runs: ...


class Named(Protocol):
    """A virtual host, where only its name is needed."""

    name: str


class Core(Protocol):
    """The part of the broker that queues and groups use; `broker.Broker` documents the methods."""

    store: Store
    timers: Timers
    counters: BrokerCounters
    limits: Limits
    turn_us: int
    """Time at which the present turn began."""
    ledger: Ledger[Any, Runs]
    """Confirms, answers and callbacks that wait for the disk."""

    def now_us(self) -> int: ...

    def wake(self, runs: Runs) -> None: ...

    def wake_later(self, runs: Runs) -> None: ...

    def flush(self) -> None: ...

    def note_stale(self, partition: str, count: int, so_far: int) -> None: ...

    def bring_up_to_date(self, scheduled: Scheduled) -> None: ...


class DefiningCore(Core, Protocol):
    """The part of the broker that virtual hosts use; it also writes definitions."""

    definitions: Defining
    seen_headers: dict[bytes, int]
    """Cached meanings of content headers by their bytes: see `content_headers`."""

    def define(self, *changes: Change, undo: Undo | None = None) -> int: ...
