"""The part of a stream reader that does not depend on what Spark's offsets mean, for readers over Flight.

Owns the connection of the driver and the way from planned messages to tasks and rows. `leases`, `topics` and
`peek` derive from the class here and decide what an offset is and what is acked. The rule: the constructor
touches nothing outside the object, because Spark pickles readers and builds them again in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.flight import actions
from leveret.spark import limits
from leveret.spark.endpoint import Endpoint
from leveret.spark.flight_calls import AnswerT, Calls
from leveret.spark.options import SourceOptions
from leveret.spark.read_tasks import Messages, Planned, divided, read_messages
from leveret.spark.refusals import ask


class FlightStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Connects at the first request on the driver; each task on an executor has its own connection."""

    def __init__(self, options: SourceOptions, endpoint: Endpoint) -> None:
        self._options = options
        self._endpoint = endpoint
        self._calls: Calls | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        return limits.default_limit(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        return read_messages(partition, self._options, self._endpoint)

    def stop(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _connected(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(self._endpoint)
        return self._calls

    def _ask(self, request: actions.Request, kind: type[AnswerT]) -> AnswerT:
        return ask(self._connected(), request, kind, self._options)

    def _tasks(self, planned: Sequence[Planned]) -> list[InputPartition]:
        return divided(planned, self._connected().location, at_least=self._options.min_partitions)
