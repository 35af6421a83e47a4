"""Queues for tests of the source: filled over AMQP, read by driving a reader as Spark does."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from leveret.client import BlockingConnection, Message, Queue, Topology
from leveret.spark.columns import schema_of
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.options import SourceOptions


def publish(url: str, queue: str, bodies: Iterable[bytes], **properties: Any) -> None:
    """Declares the queue, and returns when all are confirmed."""
    messages = [Message(body, queue, properties=properties) for body in bodies]
    with (
        BlockingConnection(url, topology=Topology(Queue(queue))) as connection,
        connection.publisher() as publisher,
    ):
        for receipt in publisher.publish_many(messages):
            receipt.check()


def bodies(first: int, stop: int) -> list[bytes]:
    return [b"m%d" % number for number in range(first, stop)]


def reader(**options: str) -> DataSourceStreamReader:
    """As Spark makes one; `source` is pickled on the way."""
    source = pickle.loads(pickle.dumps(LeveretDataSource(options)))
    return source.streamReader(schema_of(SourceOptions.parse(options)))


class Run:
    """One run of a query, by hand: `run.batch()` is what Spark does in a trigger, up to its commit log."""

    def __init__(self, checkpoint: dict[str, Any], **options: str) -> None:
        """`checkpoint` is filled, and outlives the run: planned and committed offsets."""
        self.checkpoint = checkpoint
        self.reader = reader(**options)
        self.executor = pickle.loads(pickle.dumps(reader(**options)))

    def start(self) -> dict[str, Any]:
        if "committed" not in self.checkpoint:
            self.checkpoint["committed"] = self.reader.initialOffset()
        return self.checkpoint["committed"]

    def plan(self, limit: ReadLimit | None = None) -> list[InputPartition]:
        """Writes the offset log; a batch that was planned before comes again."""
        start = self.start()
        if "planned" not in self.checkpoint:
            end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
            if end == start:
                return []
            self.checkpoint["planned"] = end
        return list(self.reader.partitions(start, self.checkpoint["planned"]))

    def rows(self, partitions: Iterable[InputPartition]) -> list[dict[str, Any]]:
        found = []
        for partition in partitions:
            for batch in self.executor.read(pickle.loads(pickle.dumps(partition))):
                found += batch.to_pylist()
        return found

    def commit(self) -> None:
        """Writes the commit log."""
        self.checkpoint["committed"] = self.checkpoint.pop("planned")

    def batch(self, limit: ReadLimit | None = None) -> list[dict[str, Any]]:
        partitions = self.plan(limit)
        rows = self.rows(partitions)
        if partitions:
            self.commit()
        return rows
