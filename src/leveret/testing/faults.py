"""Faults on demand: what goes wrong in production, when the test wants it.

    broker.faults.drop_connection_at_ack(3)    # the network breaks as the third ack arrives
    broker.faults.withhold_confirms(2)         # two confirms never reach their publisher
    broker.faults.nack_confirms()              # the next confirm becomes a nack
    broker.faults.duplicate_delivery("orders") # the next message of the queue comes twice
    broker.faults.slow_disk(0.2), .full_disk(), .heal_disk()

Each happens once (or as often as asked) and is then over. Connections are spoiled at their sockets, the disk
at its operations; the broker itself does what it always does.
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
    """A broker of the test kit, as far as its faults need it."""

    disk: SimulatedDisk | None

    @property
    def server(self) -> Server: ...

    def call(self, function: Callable[[], T]) -> T:
        """Call the function in the broker's thread."""


class Faults:
    """Reached as `broker.faults`."""

    def __init__(self, broker: FaultyBroker) -> None:
        self._broker = broker
        self.acks_until_drop = 0
        self.confirms_to_withhold = 0
        self.confirms_to_nack = 0
        self._duplicates: dict[Queue, int] = {}

    def drop_connection_at_ack(self, n: int = 1) -> None:
        """The connection that sends the n-th ack from now on is dropped, before that ack takes effect."""
        self.acks_until_drop = n

    def withhold_confirms(self, n: int = 1) -> None:
        """The next n confirm frames are not sent."""
        self.confirms_to_withhold = n

    def nack_confirms(self, n: int = 1) -> None:
        """The next n acks to publishers are sent as nacks (what they are about is stored all the same)."""
        self.confirms_to_nack = n

    def duplicate_delivery(self, queue: str, n: int = 1, *, vhost: str = "/") -> None:
        """The next n messages that are delivered from the queue are in it once more, at its end."""
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
            copied = records[: self._duplicates[queue]]
            self._duplicates[queue] -= len(copied)
            if copied:
                queue.append([Message(*record[2:]) for record in copied])
            if not self._duplicates[queue]:
                del self._duplicates[queue], queue.deliverer.take
            return taken, records

        queue.deliverer.take = take  # type: ignore[method-assign]

    # the disk of an in-memory broker

    def slow_disk(self, sync_s: float) -> None:
        """Every sync takes so much longer."""

        def before(operation: Operation) -> None:
            if operation.kind == "sync":
                time.sleep(sync_s)

        self._spoil(before)

    def full_disk(self) -> None:
        """Nothing can be written any more."""

        def before(operation: Operation) -> None:
            if operation.kind in ("write", "allocate", "create", "truncate"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)

        self._spoil(before)

    def failing_sync(self) -> None:
        """Syncs fail: a broker can't go on after that."""

        def before(operation: Operation) -> None:
            if operation.kind == "sync":
                raise OSError(errno.EIO, os.strerror(errno.EIO), operation.path)

        self._spoil(before)

    def heal_disk(self) -> None:
        self._spoil(None)

    def _spoil(self, before: object) -> None:
        disk = self._broker.disk
        assert disk is not None, "faults of the disk are for a broker in memory"
        disk.before = before  # type: ignore[assignment]


class FaultySocket(AmqpSocket):
    """A socket that asks `Faults` before it lets something through."""

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
            self.connection.out[:] = [piece for each in self.connection.out if (piece := self._spoilt(each))]
        super().write_out()

    def _spoilt(self, piece: bytes) -> bytes:
        if len(piece) != _CONFIRM_BYTES or piece[7:11] != _ACK_IDS:
            return piece
        if self._faults.confirms_to_withhold:
            self._faults.confirms_to_withhold -= 1
            return b""
        if self._faults.confirms_to_nack:
            self._faults.confirms_to_nack -= 1
            return piece[:7] + _NACK_IDS + piece[11:]
        return piece
