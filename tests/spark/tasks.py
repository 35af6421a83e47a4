"""A writer driven as Spark drives it, without Spark: pickled, given a task's context, committed by another.

What the JVM does beside that (planning, retrying) is left out; tests that need it use a session.
"""

import contextlib
import pickle
from collections.abc import Iterable, Iterator

import pika
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
Delivered = tuple[pika.BasicProperties, bytes]


@contextlib.contextmanager
def task(partition: int = 0, attempt: int = 0, **properties: str) -> Iterator[None]:
    """A task runs here."""
    context = object.__new__(TaskContext)
    context._partitionId, context._attemptNumber, context._localProperties = partition, attempt, properties
    before = TaskContext.get()
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def run_task(
    writer: object,
    batches: Iterable[pa.RecordBatch],
    *,
    query: str = "query-1",
    batch: int = 0,
    partition: int = 0,
    attempt: int = 0,
) -> WriterCommitMessage:
    """What a task of a streaming query tells the driver."""
    travelled = pickle.loads(pickle.dumps(writer))
    with task(partition, attempt, **{QUERY: query, BATCH: str(batch)}):
        return pickle.loads(pickle.dumps(travelled.write(iter(batches))))


def schema_of(batch: pa.RecordBatch) -> StructType:
    return from_arrow_schema(batch.schema)


def bodies(*values: str, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(values, pa.string()), **columns})


@contextlib.contextmanager
def channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def declare(url: str, queue: str, **arguments: object) -> str:
    with channel(url) as declaring:
        declaring.queue_declare(queue, durable=True, arguments=arguments)
    return queue


def drained(url: str, queue: str) -> list[Delivered]:
    """All messages of a queue, taken out."""
    found = []
    with channel(url) as taking:
        while True:
            method, properties, body = taking.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def texts_in(url: str, queue: str) -> list[str]:
    return [body.decode() for _, body in drained(url, queue)]
