"""Faults on demand: tests cause what goes wrong in production.

    broker.faults.drop_connection_at_ack(3)    # the network breaks as the third ack arrives
    broker.faults.withhold_confirms(2)         # two confirms never reach their publisher
    broker.faults.nack_confirms()              # the next confirm becomes a nack
    broker.faults.duplicate_delivery("orders") # the next message of the queue comes twice
    broker.faults.slow_disk(0.2), .full_disk(), .heal_disk()

Each fault of a connection happens once, or `n` times. Faults change bytes at sockets and operations of the
disk; the broker itself is unchanged.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from leveret.amqp.events import Event, Settlement
from leveret.amqp.scanner import ACK
from leveret.server.socket import AmqpSocket
from leveret.storage.records import Message, Record
from leveret.testing.disk import Operation, SimulatedDisk

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue
    from leveret.broker.vhosts.vhost import VirtualHost
    from leveret.server.server import Server
    from leveret.server.turns import Turns

T = TypeVar("T")

_CONFIRM_BYTES = 21
_ACK_IDS, _NACK_IDS = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"


class FaultyBroker(Protocol):
    """What faults need of the test kit's broker."""

    disk: SimulatedDisk | None

    @property
    def server(self) -> Server: ...

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the broker's thread."""


class Faults:
    """Faults of a broker: `broker.faults`."""

    def __init__(self, broker: FaultyBroker) -> None:
        self._broker = broker
        self.acks_until_drop = 0
        self.confirms_to_withhold = 0
        self.confirms_to_nack = 0
        self._duplicates: dict[Queue, int] = {}

    def drop_connection_at_ack(self, n: int = 1) -> None:
        """Drop the connection that sends the n-th ack from now on, before that ack takes effect."""
        self.acks_until_drop = n

    def withhold_confirms(self, n: int = 1) -> None:
        """Do not send the next n confirm frames."""
        self.confirms_to_withhold = n

    def nack_confirms(self, n: int = 1) -> None:
        """Send the next n confirms as nacks; their messages are stored nevertheless."""
        self.confirms_to_nack = n

    def duplicate_delivery(self, queue: str, n: int = 1, *, vhost: str = "/") -> None:
        """Append a copy of each of the next n messages that the queue delivers."""
        self._broker.call(lambda: self._duplicate(self._broker.server.broker.vhosts[vhost], queue, n))

    def _duplicate(self, vhost: VirtualHost, name: str, n: int) -> None:
        queue = vhost.plain_queue(name, what="duplicate_delivery")
        if queue in self._duplicates:
            self._duplicates[queue] += n
            return
        self._duplicates[queue] = n
        original = queue.deliverer.take

        def take(count: int, *, who: bytes, unbegun: bool = False) -> tuple[int, list[Record]]:
            taken, records = original(count, who=who, unbegun=unbegun)
            copies = records[: self._duplicates[queue]]
            self._duplicates[queue] -= len(copies)
            if copies:
                queue.append([Message(*record[2:]) for record in copies])
            if not self._duplicates[queue]:
                del self._duplicates[queue], queue.deliverer.take
            return taken, records

        queue.deliverer.take = take  # type: ignore[method-assign]

    # the disk of an in-memory broker

    def slow_disk(self, sync_s: float) -> None:
        """Make every sync take `sync_s` longer."""

        def before(operation: Operation) -> None:
            if operation.kind == "sync":
                time.sleep(sync_s)

        self._set_hook(before)

    def full_disk(self) -> None:
        """Fail all writes, as on a full disk."""
        self._fail(errno.ENOSPC, "write", "allocate", "create", "truncate")

    def failing_sync(self) -> None:
        """Fail all syncs. A broker ends after the first one."""
        self._fail(errno.EIO, "sync")

    def _fail(self, error: int, *kinds: str) -> None:
        def before(operation: Operation) -> None:
            if operation.kind in kinds:
                raise OSError(error, os.strerror(error), operation.path)

        self._set_hook(before)

    def heal_disk(self) -> None:
        self._set_hook(None)

    def _set_hook(self, before: Callable[[Operation], None] | None) -> None:
        disk = self._broker.disk
        assert disk is not None, "faults of the disk need a broker in memory"
        disk.before = before


class FaultySocket(AmqpSocket):
    """A socket that applies the faults of connections."""

    def __init__(self, turns: Turns, faults: Faults) -> None:
        super().__init__(turns)
        self._faults = faults

    def scan(self, data: bytes) -> list[Event]:
        events = super().scan(data)
        if not self._faults.acks_until_drop:
            return events
        passed: list[Event] = []
        for event in events:
            if isinstance(event, Settlement) and event.kind == ACK:
                left = self._faults.acks_until_drop
                count = event.last - event.first + 1
                if count >= left:
                    self._faults.acks_until_drop = 0
                    if left > 1:
                        passed.append(event._replace(last=event.first + left - 2))
                    self.abort()
                    return passed
                self._faults.acks_until_drop -= count
            passed.append(event)
        return passed

    def write_out(self) -> None:
        faults = self._faults
        if faults.confirms_to_withhold or faults.confirms_to_nack:
            self.connection.out[:] = [*filter(None, map(self._falsified, self.connection.out))]
        super().write_out()

    def _falsified(self, piece: bytes) -> bytes:
        if len(piece) != _CONFIRM_BYTES or piece[7:11] != _ACK_IDS:
            return piece
        if self._faults.confirms_to_withhold:
            self._faults.confirms_to_withhold -= 1
            return b""
        if self._faults.confirms_to_nack:
            self._faults.confirms_to_nack -= 1
            return piece[:7] + _NACK_IDS + piece[11:]
        return piece
