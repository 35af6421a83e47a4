"""The data source with gates in it: it does what `leveret` does, and can be stopped at each phase of a batch.

Everything is handed on to the readers and writers that users get; nothing of them is replaced. The phases of
a source, in the order of Spark's calls, are in `SOURCE_PHASES`, those of a sink in `SINK_PHASES`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from leveret.spark.datasource import LeveretDataSource
from tests.soak.gates import Gates

PLANNED = "planned"
"""The batch is in Spark's offset log, the broker has not been asked what is in it."""
RUNNING = "running"
"""A task has handed over rows, and is not at its end."""
WRITTEN = "written"
"""The table has the batch, Spark's commit log has not."""
LOGGED = "logged"
"""The commit log has it: seen from outside, in the checkpoint."""
BEFORE_ACK = "before-ack"
"""Spark asks for the next batch: the broker is about to be told that the last one is done."""
AFTER_ACK = "after-ack"
"""The broker has acked it and made the next lease, Spark has heard of neither."""
SOURCE_PHASES = (PLANNED, RUNNING, WRITTEN, LOGGED, BEFORE_ACK, AFTER_ACK)

WRITING = "writing"
"""A task has sent rows to the broker, and is not at its end."""
STAGED = "staged"
"""All its rows are there, its driver has not heard of it."""
BEFORE_COMMIT = "before-commit"
"""All tasks have ended, the broker has not been told."""
AFTER_COMMIT = "after-commit"
"""The broker shows the rows, Spark's commit log does not have the batch."""
SINK_PHASES = (WRITING, STAGED, BEFORE_COMMIT, AFTER_COMMIT)


class GatedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: DataSourceStreamReader, gates: Gates) -> None:
        self._inner = inner
        self._gates = gates
        self._acked: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as are the others)
        return self._inner.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._inner.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._inner.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Its gates are for calls that have something to ack: a query that is idle makes many others."""
        acks = self._acked is not None and start != self._acked
        if acks:
            self._gates.hold(BEFORE_ACK)
        end = self._inner.latestOffset(start, limit)
        if acks:
            self._gates.hold(AFTER_ACK)
        self._acked = start
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._inner.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._gates.hold(PLANNED)
        return self._inner.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._inner.read(partition):
            yield batch
            self._gates.hold(RUNNING)

    def commit(self, end: dict[str, Any]) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()


class GatedWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: DataSourceStreamArrowWriter, gates: Gates) -> None:
        self._inner = inner
        self._gates = gates

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._inner.write(self._passing(iterator))
        self._gates.hold(STAGED)
        return message

    def _passing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self._gates.hold(WRITING)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._gates.hold(BEFORE_COMMIT)
        self._inner.commit(messages, batchId)
        self._gates.hold(AFTER_COMMIT)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._inner.abort(messages, batchId)


class GatedDataSource(LeveretDataSource):
    """`format("gated")`, with the option `gates`, a directory, beside those of `leveret`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name.lower() != "gates"})
        self._gates = Gates(Path(options["gates"]))

    @classmethod
    def name(cls) -> str:
        return "gated"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return GatedReader(super().streamReader(schema), self._gates)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return GatedWriter(super().streamWriter(schema, overwrite), self._gates)
