"""What queues, streams, groups and their rules need of the broker: turns, times, the store.

They are given a `Broker` and know no more of it than `Core` says, so that none of them imports it. What is
scheduled is a `Runs`: a deliverer, a stream, a reader, a group.
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
    """Something that has turns."""

    def run(self) -> None:
        """Let messages move as far as they can now."""


class Scheduled(Protocol):
    """Something whose messages are moved by a `Runs`: a queue by its deliverer."""

    @property
    def runs(self) -> Runs: ...


class Named(Protocol):
    """A virtual host, for those who need no more than its name."""

    name: str


class Core(Protocol):
    """The broker, as its queues and groups know it."""

    store: Store
    timers: Timers
    counters: BrokerCounters
    limits: Limits
    turn_us: int
    """When this turn began."""
    ledger: Ledger[Any, Runs]
    """What waits for the disk."""

    def now_us(self) -> int: ...

    def wake(self, runs: Runs) -> None:
        """Run it in this turn; one that waits for a sync, after that."""

    def wake_later(self, runs: Runs) -> None:
        """Run it in the next turn, when what this one has to say is written."""

    def flush(self) -> None:
        """Append what was published in this turn."""

    def note_stale(self, partition: str, count: int, so_far: int) -> None:
        """So many settlements in a group's partition came too late; `so_far` in all its group."""

    def bring_up_to_date(self, scheduled: Scheduled) -> None:
        """Do what this turn has left to do for one queue, before somebody looks at it or changes it."""


class DefiningCore(Core, Protocol):
    """The broker, as its virtual hosts know it: what is to last is defined."""

    definitions: Defining
    seen_headers: dict[bytes, int]
    """What content headers mean, by their bytes: see `content_headers`."""

    def define(self, *changes: Change, undo: Undo | None = None) -> int:
        """Hand changes of definitions over to be written down; return their number."""
