"""Requests of bulk readers and writers to a broker in memory, without a Flight process: it may crash."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import Event
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from leveret.amqp.properties import encode
from leveret.broker.streams.stream import Stream
from leveret.flight import actions
from leveret.flight.tickets import StageDescriptor, unpack_ranges
from leveret.fronts.flight.answers import Answers
from leveret.storage.errors import StorageFull
from leveret.testing.broker import Broker
from tests.processes import WAIT_S

HOUR_S = 3600.0
QUEUE = "q"
WRITER = "writer"
FULL = StorageFull("wal/1", OSError(errno.ENOSPC, "No space left on device"))


def durably(broker: Broker, do: Callable[[], Any]) -> Any:
    """As the endpoint does it: in a turn, and an answer leaves when what it says is durable."""
    durable = Event()

    def in_a_turn() -> Any:
        broker.server.turns.begin()
        answer = do()
        broker.server.broker.ledger.when_durable(durable.set)
        return answer

    answer = broker.call(in_a_turn)
    assert durable.wait(WAIT_S)
    return answer


class Asked:
    """What the Flight process asks of a broker: `asked(actions.Open(...))`, `asked.stage(...)`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._answers = Answers(broker.server.broker)

    def __call__(self, request: actions.Request, user: str = "guest") -> Any:
        return durably(self.broker, lambda: self._answers.to(user, request))

    def stage(self, stage: str, bodies: list[bytes], *, before: int, **options: Any) -> Any:
        user, batch = options.get("user", "guest"), options.get("batch", 0)
        header = options.get("header", {"delivery_mode": 2})
        descriptor = StageDescriptor("/", "writer", batch, stage, timeout_s=600.0)
        rows = [(b"", QUEUE.encode(), encode(header, len(body)), body) for body in bodies]
        return durably(self.broker, lambda: self._answers.stage(user, descriptor, rows, before=before))

    def lease(self, opened: actions.Opened, start: int, **options: Any) -> Any:
        return self(actions.Lease("/", QUEUE, "nightly", opened.epoch, start, **options))

    def offsets(self, opened: actions.Opened, start: int, end: int) -> list[int]:
        planned = self(actions.Plan("/", QUEUE, "nightly", opened.epoch, start, end))
        ranges = [each for portion in planned.portions for each in unpack_ranges(portion.ranges)]
        return [offset for start, stop in ranges for offset in range(start, stop)]

    def held(self) -> int:
        return self.broker.call(lambda: self.broker.server.broker.vhosts["/"].queues[QUEUE].unacked)

    def open(self, name: str = "nightly") -> actions.Opened:
        opened = self(actions.Open("/", QUEUE, name, HOUR_S))
        assert isinstance(opened, actions.Opened)
        return opened


def declare(
    broker: Broker, bodies: list[bytes], arguments: dict[str, Any] | None = None, **said: str
) -> None:
    """The queue, with messages."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2, **said))
    connection.close()


def ask_on_a_full_disk(broker: Broker, request: actions.Request, before: Callable[[], object] = int) -> Any:
    """Ask on the broker's thread while its store refuses every change. `before` is called first, in time."""
    store = broker.server.broker.store

    def ask() -> Any:
        before()
        store._wal.failed = FULL
        try:
            return Answers(broker.server.broker).to("guest", request)
        finally:
            store._wal.failed = None

    return broker.call(ask)


@contextmanager
def connected(broker: Broker) -> Iterator[BlockingChannel]:
    """A channel of a connection that is closed afterwards."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


class Asking:
    """`asking(actions.Locate(...))`, also after a crash; the streams are `s0`, `s1` … of topic `s`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._answers: Answers | None = None

    def __call__(self, request: actions.Request, user: str = "guest") -> Any:
        return self._durably(lambda answers: answers.to(user, request))

    def stage(self, batch: int, rows: Sequence[bytes], *, key: str = "s0", stage: str = "task") -> Any:
        """Rows for one stream, hidden."""
        header = encode({"delivery_mode": 2}, 0)[12:]
        made = [(b"", key.encode(), b"\0\x3c\0\0" + len(row).to_bytes(8) + header, row) for row in rows]
        descriptor = StageDescriptor("/", WRITER, batch, stage, 3600.0)
        return self._durably(lambda answers: answers.stage("guest", descriptor, made))

    def _durably(self, do: Callable[[Answers], Any]) -> Any:
        if self._answers is None:
            self._answers = Answers(self.broker.server.broker)
        answers = self._answers
        return durably(self.broker, lambda: do(answers))

    def crash(self, power_loss: Random | None = None) -> None:
        """As `kill -9` would, or a power loss."""
        self.broker.crash(power_loss)
        self.broker.start()
        self._answers = None

    def declare(self, count: int, **arguments: Any) -> None:
        """The topic with so many streams."""
        given = {"x-queue-type": "stream"} | {key.replace("_", "-"): arguments[key] for key in arguments}

        def make(channel: Any) -> None:
            channel.exchange_declare("s", "x-consistent-hash", durable=True)
            for number in range(count):
                channel.queue_declare(f"s{number}", durable=True, arguments=given)
                channel.queue_bind(f"s{number}", "s", "1")

        self.on_channel(make)

    def publish(self, *rows: bytes, key: str = "s0") -> None:
        """All are confirmed when this returns."""

        def confirmed(channel: Any) -> None:
            channel.confirm_delivery()
            for row in rows:
                channel.basic_publish("", key, row)

        self.on_channel(confirmed)

    def on_channel(self, do: Callable[[Any], object]) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        do(connection.channel())
        connection.close()

    def stream(self, name: str = "s0") -> Stream:
        found = self.broker.server.broker.vhosts["/"].queues[name]
        assert isinstance(found, Stream)
        return found

    def lag(self, query: str = "q", subject: str = "s0") -> int:
        groups = self.broker.server.broker.vhosts["/"].groups
        return self.broker.call(lambda: groups.get(subject, query).lag)
