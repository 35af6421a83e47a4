"""Queries of `bench.spark` that read: large batches into nothing and into Parquet, small ones every second.

A contender is a source. Per round each runs one query: a small batch first, which is not counted, then large
ones, which are; Leveret's second one acks the first. Beside Leveret: rows from memory, what Spark itself
reads from Parquet files, and pika on RabbitMQ, whose batches are smaller because it takes so long. The small
batches come by the clock, a thousand rows a second, some triggers for one source and then some for the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.peer import Client
from bench.servers import Server
from bench.spark_queue import QUEUE, fill, first_lease, queue_on, url_of
from bench.spark_session import Batch, Meter, batches_of, run_to_end, scratch
from bench.spark_sources import ARROW_ROWS, TASK_ROWS, columns, row_batch

FIRST_ROWS = 1_000
FIRST_TASKS = 2
"""So that both Python workers have loaded everything before the batches that count."""
LARGE_BATCHES = 2
TRIGGER_S = 1.0
UNCOUNTED_TRIGGERS = 3
"""At the start of a block: Spark starts processes in the first, and the next are late because of it."""
BLOCK_LIMIT_S = 120.0
Measured = dict[str, Any]
_runs = count()


class Miscounted(Exception):
    """A query read more or less than what there was."""


@dataclass(frozen=True)
class Reads:
    """What the contenders read with, and how much."""

    spark: SparkSession
    leveret: Server
    rabbitmq: Server | None
    batch_rows: int
    pika_rows: int
    files: Path
    """Parquet files with the rows of the large batches."""

    def leveret_queue(self, sink: str) -> list[Batch]:
        with queue_on(self.leveret) as operator:
            fill(self.leveret, FIRST_ROWS + LARGE_BATCHES * self.batch_rows)
            cursor = f"bench-{next(_runs)}"
            first_lease(self.leveret, cursor, FIRST_ROWS)
            rows = self.queue_stream(cursor, self.batch_rows, tasks=FIRST_TASKS)
            found = run_to_end(rows, sink=sink, broker=self.leveret.pid)
            _check_empty(operator)
        return found

    def queue_stream(self, cursor: str, batch_rows: int, tasks: int = 1) -> DataFrame:
        options = {
            "url": url_of(self.leveret),
            "queue": QUEUE,
            "cursor": cursor,
            "maxMessagesPerTrigger": str(batch_rows),
            "minPartitions": str(tasks),
        }
        return self.spark.readStream.format("leveret").options(**options).load()

    def memory(self, sink: str) -> list[Batch]:
        rows = self.memory_stream(FIRST_ROWS, *[self.batch_rows] * LARGE_BATCHES, tasks=FIRST_TASKS)
        return run_to_end(rows, sink=sink, broker=self.leveret.pid)

    def memory_stream(self, *sizes: int, tasks: int = 1, endless: bool = False) -> DataFrame:
        options = {
            "sizes": ",".join(map(str, sizes)),
            "tasks": str(tasks),
            "endless": str(endless).lower(),
        }
        return self.spark.readStream.format("bench-memory").options(**options).load()

    def parquet_files(self, sink: str) -> list[Batch]:
        stream = self.spark.readStream.schema(columns())
        rows = stream.option("maxFilesPerTrigger", tasks_of(self.batch_rows)).parquet(str(self.files))
        return run_to_end(rows, sink=sink, broker=self.leveret.pid)

    def pika_queue(self, sink: str) -> list[Batch]:
        assert self.rabbitmq is not None
        with queue_on(self.rabbitmq) as operator:
            fill(self.rabbitmq, FIRST_ROWS + self.pika_rows)
            sizes = f"{FIRST_ROWS},{self.pika_rows}"
            options = {"url": url_of(self.rabbitmq), "sizes": sizes, "tasks": str(FIRST_TASKS)}
            rows = self.spark.readStream.format("bench-pika").options(**options).load()
            found = run_to_end(rows, sink=sink, broker=self.rabbitmq.pid)
            _check_empty(operator)
        return found

    def large(self, contender: Callable[[str], list[Batch]], sink: str) -> Measured:
        """One query of one contender; the batches after the first count."""
        batches = contender(sink)[1:]
        rows = self.pika_rows if contender == self.pika_queue else self.batch_rows
        if not batches or any(batch.rows != rows for batch in batches):
            raise Miscounted(f"batches of {[batch.rows for batch in batches]} rows, not of {rows:,}")
        return figures(batches)


def figures(batches: list[Batch]) -> Measured:
    rows, seconds = sum(batch.rows for batch in batches), sum(batch.seconds for batch in batches)
    spent = {name: sum(batch.cpu[name] for batch in batches) for name in ("broker_s", "spark_s", "others_s")}
    return {
        "rows": rows,
        "seconds": round(seconds, 3),
        "rate": round(rows / seconds, 1),
        "spark_cpu_us": round(spent["spark_s"] / rows * 1e6, 3),
        "broker_cpu_us": round(spent["broker_s"] / rows * 1e6, 3),
        "cpu_us": round((spent["spark_s"] + spent["broker_s"]) / rows * 1e6, 3),
        "others_cpu_share": round(spent["others_s"] / seconds, 3),
        "batches": [{"rows": b.rows, "phases_ms": b.phases_ms} for b in batches],
    }


def tasks_of(rows: int) -> int:
    return -(-rows // TASK_ROWS)


@contextmanager
def parquet_of(batch_rows: int) -> Iterator[Path]:
    """As many files as the batches have tasks; the first batch, which is not counted, is a large one too."""
    with scratch() as place:
        tasks = tasks_of(batch_rows)
        for number in range((1 + LARGE_BATCHES) * tasks):
            task = number % tasks
            rows = batch_rows * (task + 1) // tasks - batch_rows * task // tasks
            whole = row_batch(ARROW_ROWS)
            parts = [whole.slice(0, min(ARROW_ROWS, rows - at)) for at in range(0, rows, ARROW_ROWS)]
            pq.write_table(pa.Table.from_batches(parts), place / f"{number}.parquet")
        yield place


def _check_empty(operator: Client) -> None:
    if left := operator.depth(QUEUE):
        raise Miscounted(f"{left} messages are left in the queue")


# small batches by the clock


def small(reads: Reads, contender: str, triggers: int, rows: int) -> Measured:
    """One block of triggers of one source: what `triggerExecution` was for each that counts."""
    wanted = UNCOUNTED_TRIGGERS + triggers
    if contender == "memory":
        return _block(reads.memory_stream(rows, endless=True), reads, wanted)
    with queue_on(reads.leveret), _trickle(reads.leveret, rows):
        return _block(reads.queue_stream(f"bench-{next(_runs)}", rows), reads, wanted)


def _block(stream: DataFrame, reads: Reads, wanted: int) -> Measured:
    with scratch() as place, Meter(reads.leveret.pid) as meter:
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(place))
        query = writer.trigger(processingTime=f"{TRIGGER_S:g} seconds").start()
        deadline_s = time.monotonic() + BLOCK_LIMIT_S
        while sum(1 for progress in query.recentProgress if progress.numInputRows) < wanted:
            query.awaitTermination(1)  # raises what the query failed with
            if time.monotonic() > deadline_s:
                query.stop()
                raise Miscounted(f"not {wanted} batches in {BLOCK_LIMIT_S:.0f} s")
        query.stop()
    batches = batches_of(query, meter)[UNCOUNTED_TRIGGERS:wanted]
    return {"triggers": [asdict(batch) for batch in batches]}


@contextmanager
def _trickle(server: Server, rows: int) -> Iterator[None]:
    """So many messages half a second after each trigger."""
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(TRIGGER_S - (time.time() + TRIGGER_S / 2) % TRIGGER_S):
            fill(server, rows)

    fill(server, rows)
    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
