"""A publisher that repeats itself, a broker that fails and falls, and what must be true of the two.

`DedupHistory` drives a broker without sockets over a simulated disk. What it publishes names sequences, some
of them again and again; the queue may refuse them, the disk may be full, the power may go at any operation.
Each message says in its body which sequence it is, so that the queue alone shows what is stored. The rule
that `check` holds it to: a sequence is stored at most once, it is known if and only if it was stored, and
what was confirmed was stored. The same history serves `tests/properties` and `tests/faults`.
"""

from __future__ import annotations

from pamqp import commands

from leveret.broker.queues.queue import Queue
from tests.faults.broker_life import BrokerLife
from tests.faults.broker_wire import Wire

Name = tuple[str, int]
"""A producer and a sequence."""
TRANSIENT = "transient"
"""This producer's messages do not survive a restart."""
CONFIRMED, TX = 1, 2
"""The channels."""


class DedupHistory(BrokerLife):
    """`publish`, `fail`, `crash` … in any order; each ends with a look at what is so."""

    def __init__(self, seed: int, *, limit: int | None = None) -> None:
        super().__init__(seed)
        self.limit = limit
        self.confirmed: set[Name] = set()
        self.consumed: dict[Name, int] = {}
        """With the offset under which it was stored."""
        self._unconfirmed: dict[int, Name] = {}
        self._sequence = 0
        self.wire: Wire
        self.open()

    # what the publisher does

    def publish(self, names: list[Name]) -> None:
        """All in one read."""
        for name in names:
            self._sequence += 1
            self._unconfirmed[self._sequence] = name
        self.wire.publish(CONFIRMED, "", "q", [_content(name) for name in names])

    def commit(self, names: list[Name]) -> None:
        """All in one transaction, which may be too much for the queue."""
        self.wire.publish(TX, "", "q", [_content(name) for name in names])
        self.wire.send(TX, commands.Tx.Commit())
        self._read()
        if TX not in self.wire.connection.channels:
            self.wire.send(TX, commands.Channel.CloseOk())
            self._open_tx()

    def roll_back(self, names: list[Name]) -> None:
        self.wire.publish(TX, "", "q", [_content(name) for name in names])
        self.wire.send(TX, commands.Tx.Rollback())

    # what the broker does

    def turn(self) -> None:
        super().turn()
        self._read()

    def consume(self, count: int) -> None:
        """Takes messages that are durable out of the queue, and makes that durable."""
        if not self.sync():
            return
        for _ in range(count):
            ranges = self.queue.cursor.take(1)
            for record in self.queue.log.read(ranges):
                self.consumed[_name(record.body)] = record.offset
                self.queue.deliverer.ack(ranges)
        self.sync()

    # what goes wrong

    def restart(self) -> None:
        self.heal()
        self.wire.lose()
        self.turn()
        self.broker.store.close()
        self.disk = self.disk.restart()
        self.open()

    def open(self) -> None:
        """What was not confirmed by now never is; what was transient is gone."""
        self._unconfirmed.clear()
        self._sequence = 0
        self.confirmed = {name for name in self.confirmed if name[0] != TRANSIENT}
        self.consumed = {name: offset for name, offset in self.consumed.items() if name[0] != TRANSIENT}
        self.start()
        self.wire = Wire(self.broker, "publisher")
        self.wire.send(CONFIRMED, commands.Channel.Open(), commands.Confirm.Select())
        limited = {} if self.limit is None else {"x-max-length": self.limit, "x-overflow": "reject-publish"}
        arguments = {"x-dedup": True, **limited}
        self.wire.send(CONFIRMED, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
        self._open_tx()
        self.turn()

    def _open_tx(self) -> None:
        self.wire.send(TX, commands.Channel.Open(), commands.Tx.Select())

    @property
    def queue(self) -> Queue:
        return self.broker.vhosts["/"].queues["q"]

    def _read(self) -> None:
        for frame in self.wire.received():
            if isinstance(frame.method, commands.Basic.Ack | commands.Basic.Nack):
                last = frame.method.delivery_tag
                resolved = [each for each in self._unconfirmed if each <= last]
                for sequence in resolved if frame.method.multiple else [last]:
                    name = self._unconfirmed.pop(sequence)
                    if isinstance(frame.method, commands.Basic.Ack):
                        self.confirmed.add(name)

    # what must be true

    def check(self) -> None:
        self.turn()
        queue = self.queue
        held: dict[Name, int] = {}
        for record in queue.log.read(list(queue.cursor.progress.ready_ranges())):
            name = _name(record.body)
            assert name not in held, f"stored twice: {name}"
            held[name] = record.offset
            earlier = self.consumed.pop(name, record.offset)  # a crash may bring it back, where it was
            assert earlier == record.offset, f"{name} is stored again, though it was there and was consumed"
        stored = self.consumed.keys() | held.keys()
        assert self.confirmed <= stored, f"confirmed and not stored: {self.confirmed - stored}"
        assert queue.dedup is not None
        producers = {producer for producer, _ in stored} | {"a", "b", TRANSIENT}
        known = {
            (producer, number)
            for producer in producers
            for number in range(64)
            if queue.dedup.has(producer.encode(), number, lasting=producer != TRANSIENT)
        }
        assert known == stored, f"known and not stored, or the other way round: {known ^ stored}"


def _content(name: Name) -> tuple[dict[str, object], bytes]:
    producer, number = name
    mode = 1 if producer == TRANSIENT else 2
    headers = {"x-producer": producer, "x-seq": number}
    return {"headers": headers, "delivery_mode": mode}, f"{producer} {number}".encode()


def _name(body: bytes) -> Name:
    producer, _, number = body.decode().partition(" ")
    return producer, int(number)
