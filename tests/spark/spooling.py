"""What tests of the spooled source begin with: a queue with messages, and Spark's calls in Spark's order."""

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pika
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.client import BlockingConnection
from leveret.client.passive_checks import depth
from leveret.spark.options import SourceOptions
from leveret.spark.spool_stream import SpoolStreamReader
from tests.processes import WAIT_S

LOST_PATIENCE = "delivery acknowledgement on channel"
"""What RabbitMQ logs when it closes a channel for that."""


def options(url: str, queue: str, spool: Path | str, **more: str) -> SourceOptions:
    given = {
        "url": url,
        "queue": queue,
        "cursor": "to-lake",
        "spoolLocation": str(spool),
        "brokerTimeout": "20s",
    }
    return SourceOptions.parse(given | more)


def publish(url: str, queue: str, bodies: Iterable[str], *, ids: bool = True) -> None:
    """The end of a body is its id; all are in the queue when this returns."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies:
        properties = pika.BasicProperties(message_id=body[-40:] if ids else None, delivery_mode=2)
        channel.basic_publish("", queue, body.encode(), properties, mandatory=True)
    connection.close()


def ready(url: str, queue: str) -> int:
    """How many messages a consumer would get now."""

    async def ask() -> int:
        session = await connection.connection.connected(WAIT_S)
        return await depth(await session.open_channel(), queue)

    with BlockingConnection(url) as connection:
        return connection.run(ask())


def wait_until(holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Looks now and then: what goes on inside a broker tells nobody that it happened."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not in {timeout_s} s: {what}"
        threading.Event().wait(0.02)


class Driver:
    """Spark's calls on the driver, in its order, with a table as the sink and a commit log.

    >>> driver = Driver(options)
    >>> driver.batch()  # plans, reads, commits
    """

    def __init__(self, chosen: SourceOptions) -> None:
        self.options = chosen
        self.offsets: list[dict[str, Any]] = []
        """Spark's offset log: where each batch ends."""
        self.committed = 0
        """How many of them are in the commit log."""
        self.first: dict[str, Any] | None = None
        self.table: dict[int, list[str]] = {}
        self.reader = SpoolStreamReader(chosen)

    @property
    def rows(self) -> list[str]:
        return sorted(row for rows in self.table.values() for row in rows)

    def start(self) -> dict[str, Any]:
        if self.committed:
            return self.offsets[self.committed - 1]
        return self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Whether there is a batch to run: an old one that was not committed, or a new one."""
        if len(self.offsets) > self.committed:
            return True
        start = self.start()
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if end != start:
            self.offsets.append(end)
        return end != start

    def run(self) -> None:
        """Reads the batch and puts it into the table, where it replaces what an earlier try wrote."""
        batch = self.committed
        partitions = self.reader.partitions(self.start(), self.offsets[batch])
        on_executor = pickle.loads(pickle.dumps(SpoolStreamReader(self.options)))
        rows: list[str] = []
        for partition in pickle.loads(pickle.dumps(partitions)):
            for chunk in on_executor.read(partition):
                rows += [body.decode() for body in chunk.column("body").to_pylist()]
        self.table[batch] = rows

    def commit(self) -> None:
        """The batch is in the commit log; Spark tells the source so only while it builds the next one."""
        self.committed += 1

    def in_hand(self, messages: int) -> None:
        """Waits for so many, delivered and not taken: a look gives what has come, and not what may still."""
        consumer = self.reader._connected()
        consumer.begin()
        wait_until(lambda: len(consumer._ready) >= messages, f"{messages} messages in hand")

    def batch(self) -> bool:
        if not self.plan():
            return False
        self.run()
        self.commit()
        return True

    def until(self, messages: int) -> None:
        """Batches, until the table has as many rows, and then one look more, which settles the last."""
        wait_until(lambda: len(self.rows) >= messages or (self.batch() and False), f"{messages} rows")
        self.plan()

    def killed(self) -> None:
        """The driver is gone, with its connection, and has said nothing; another takes its place."""
        with contextlib.suppress(Exception):
            consumer = self.reader._consumer
            if consumer is not None and consumer._connection is not None:
                consumer._connection.run(_abort(consumer._connection))
                consumer.close()
        self.reader = SpoolStreamReader(self.options)


async def _abort(connection: BlockingConnection) -> None:
    session = connection.connection.session
    if session is not None:
        session._abort()


@contextlib.contextmanager
def driving(chosen: SourceOptions) -> Iterator[Driver]:
    driver = Driver(chosen)
    try:
        yield driver
    finally:
        driver.reader.stop()
