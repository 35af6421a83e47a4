"""A broker without sockets over a simulated disk: started, synced, on a full disk, crashed, started again.

`BrokerLife` owns disk, definitions and broker. What clients do and what must be true is left to the
histories. `start_broker` and `full_disk` serve histories whose lives are of another kind. The rule:
everything follows from the seed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Protocol, TypeVar

from leveret.broker.broker import Broker
from leveret.broker.definitions import Change, Row
from leveret.storage.errors import WriteFailed
from leveret.storage.store import Store
from leveret.testing.definitions import MemoryDefinitions
from leveret.testing.disk import CutAt, FailAt, PowerCut, SimulatedDisk
from tests.faults.history import SMALL


class Definitions(Protocol):
    """Where a broker keeps what it knows of queues, exchanges and users."""

    def load(self) -> list[Row]: ...

    def put(self, number: int, changes: Sequence[Change]) -> None: ...


def open_store(disk: SimulatedDisk, *, random: Random, clock: Callable[[], int]) -> Store:
    return Store(disk, clock=clock, entropy=lambda: random.getrandbits(64), options=SMALL)


def start_broker(
    store: Store, definitions: Definitions, *, random: Random, clock: Callable[[], int]
) -> Broker:
    return Broker(
        store,
        clock=clock,
        token=lambda: f"{random.getrandbits(32):08x}",
        define=definitions.put,
        rows=definitions.load(),
    )


def full_disk(after: int, *, number: int = errno.ENOSPC, torn: bool = False) -> FailAt:
    """From so many writes on, nothing can be written."""
    return FailAt(after, ("write", "allocate", "create"), number, times=1 << 30, torn=torn)


class BrokerLife:
    """`open` is a subclass's own: it calls `start` and lets clients come back."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.definitions = MemoryDefinitions()
        self.now_us = 1_000_000
        self.broker: Broker

    def open(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the broker over what the disk holds."""
        self.definitions.close()
        store = open_store(self.disk, random=self.random, clock=self.clock)
        self.broker = start_broker(store, self.definitions, random=self.random, clock=self.clock)
        self.definitions.start(self.broker.committed, lambda error: None)

    def clock(self) -> int:
        return self.now_us

    def turn(self) -> None:
        self.broker.end_turn()

    def sync(self) -> bool:
        """Return whether everything is on disk now."""
        self.turn()
        try:
            self.broker.store.sync()
        except WriteFailed as error:
            self.broker.write_failed(error)
            return False
        else:
            self.broker.synced()
            return True
        finally:
            self.turn()

    def checkpoint(self) -> None:
        with suppress(WriteFailed):
            self.broker.store.checkpoint()

    # what goes wrong

    def fail(self, after: int, *, torn: bool = False) -> None:
        """Nothing can be written, from so many writes on."""
        self.disk.before = full_disk(after, torn=torn)

    def heal(self) -> None:
        self.disk.before = None

    def crash(self, *, power_loss: bool) -> None:
        self.disk = self.disk.crash(self.random) if power_loss else self.disk.restart()
        self.open()


Life = TypeVar("Life", bound=BrokerLife)


def live(history: Life, random: Random, step: Callable[[Life, Random], None]) -> None:
    """Until the power goes, or the process is killed. Each step is checked."""
    with suppress(PowerCut, WriteFailed):
        if random.random() < 0.7:
            history.disk.before = CutAt(random.randrange(1, random.choice([20, 80, 200])))
        for _ in range(random.randrange(60)):
            step(history, random)
            history.check()
