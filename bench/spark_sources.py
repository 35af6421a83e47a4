"""What Leveret's source is measured beside, as Python data sources: from memory, and row by row with pika.

`bench-memory` yields Arrow batches that every worker has made before: whatever it takes is Spark's own part,
and no Python source can be faster. `bench-pika` does what people write today: a task consumes from a queue,
acks, and yields tuples. Both have the columns of Leveret's source, and give batches of the sizes that the
option `sizes` names, in `tasks` tasks at least; the last size is repeated for ever with `endless`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pika
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench.spark_queue import QUEUE
from leveret.spark.columns import schema_of
from leveret.spark.options import SourceOptions

TASK_ROWS = 262_144
"""As many as Leveret's source gives to one task at most."""
ARROW_ROWS = 25_000
"""About as many as a batch of Leveret's has, with 100-byte bodies."""
BODY_BYTES = 100
BEGAN_US = 1_750_000_000_000_000
PREFETCH = 1_000
Offset = dict[str, Any]


def columns() -> StructType:
    return schema_of(SourceOptions.parse({"queue": QUEUE}))


@cache
def row_batch(rows: int) -> pa.RecordBatch:
    """Rows as they come from a queue. Kept by the process that asks for them."""
    numbers = np.arange(rows)
    filler = np.random.default_rng(1).integers(0, 256, BODY_BYTES, np.uint8)
    bodies = np.tile(filler, (rows, 1))
    bodies[:, :8] = numbers.astype(">u8").view(np.uint8).reshape(rows, 8)
    ends = np.arange(rows + 1, dtype=np.int32) * BODY_BYTES
    schema = to_arrow_schema(columns(), timezone="UTC")
    found = {
        "queue": pa.repeat(QUEUE, rows),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "offset": pa.array(numbers, pa.int64()),
        "exchange": pa.repeat("", rows),
        "routing_key": pa.repeat(QUEUE, rows),
        "body": pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(bodies)]),
        "enqueued_at": pa.array(BEGAN_US + numbers, pa.int64()).cast(schema.field("enqueued_at").type),
        "priority": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "redelivered": pa.repeat(False, rows),
        "delivery_count": pa.repeat(pa.scalar(0, pa.int32()), rows),
    }
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


@dataclass(frozen=True)
class Part(InputPartition):
    rows: int


class Sized(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches of given sizes, cut into tasks of about equal size; the offset is the number of the batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self._sizes = [int(size) for size in options["sizes"].split(",")]
        self._tasks_min = int(options.get("tasks", "1"))
        self._is_endless = options.get("endless") == "true"

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name, as are the others)
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        following = start["batch"] + 1
        return {"batch": following} if self._is_endless or following <= len(self._sizes) else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        size = self._sizes[min(end["batch"], len(self._sizes)) - 1]
        tasks = max(self._tasks_min, -(-size // TASK_ROWS))
        return [Part(size * (task + 1) // tasks - size * task // tasks) for task in range(tasks)]


class FromMemory(Sized):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        whole = row_batch(ARROW_ROWS)
        for first in range(0, partition.rows, ARROW_ROWS):
            left = partition.rows - first
            yield whole if left >= ARROW_ROWS else whole.slice(0, left)


class FromPika(Sized):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Part)
        connection = pika.BlockingConnection(pika.URLParameters(self.options["url"]))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        for came, (method, properties, body) in enumerate(channel.consume(QUEUE), 1):
            channel.basic_ack(method.delivery_tag)
            yield (
                *(QUEUE, 0, method.delivery_tag, method.exchange, method.routing_key, body, None),
                *(properties.priority or 0, method.redelivered, 0),
            )
            if came == partition.rows:
                break
        connection.close()


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench-memory"

    def schema(self) -> StructType:
        return columns()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return FromMemory(dict(self.options))


class PikaSource(MemorySource):
    @classmethod
    def name(cls) -> str:
        return "bench-pika"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return FromPika(dict(self.options))
