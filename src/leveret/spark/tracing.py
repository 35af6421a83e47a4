"""Spans for the micro-batches of streaming queries, with links to messages that they read.

    spark.streams.addListener(QueryTracing())
    rows = observed(spark.readStream.format("leveret")....option("includeProperties", "true").load())

`observed` lets Spark pick a few contexts of each micro-batch while it runs, without a job of its own.
`QueryTracing` makes a span on the driver when Spark reports the micro-batch. The messages themselves keep
their context without this module: it is in the column `headers`, which the sink writes as it is. The rule:
what the driver is told of a micro-batch is bounded. Needs the extra `otel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from leveret import __version__
from leveret.client.tracing import Attributes, operation
from leveret.spark.errors import BadSchema

LINKS: Final = 8
LINKS_MAX: Final = 64
_METRICS: Final = "leveret.contexts"


def observed(rows: DataFrame, *, links: int = LINKS, name: str = "") -> DataFrame:
    """Return the rows of a source, of which Spark reports up to `links` contexts in each micro-batch.

    A query with several sources gives each of them another `name`.
    """
    if not 1 <= links <= LINKS_MAX:
        raise ValueError(f"links must be from 1 to {LINKS_MAX}, not {links}")
    if "headers" not in rows.columns:
        raise BadSchema(
            f"there is no column 'headers'; the columns are: {', '.join(rows.columns)}",
            hint="set option includeProperties of the source",
        )
    metrics = [_one_of(f.col("headers")["traceparent"], number) for number in range(links)]
    return rows.observe(f"{_METRICS}.{name}", *metrics)


def _one_of(context: Column, number: int) -> Column:
    """Return an aggregate that picks one of the contexts, by another order for each number."""
    order = f.when(context.isNotNull(), f.xxhash64(context, f.lit(number)))
    return f.max_by(context, order).alias(f"context_{number}")


class QueryTracing(StreamingQueryListener):
    """`spark.streams.addListener(QueryTracing())`: a span for each micro-batch that had rows or failed."""

    def __init__(self, *, tracer_provider: TracerProvider | None = None) -> None:
        """Without an argument, OpenTelemetry's global provider is used."""
        self._tracer = trace.get_tracer("leveret.spark", __version__, tracer_provider)
        self._names: dict[str, str] = {}
        """Names of the queries that run, by the ids of their runs."""

    # what Spark calls, on the driver

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  (Spark's name, as are the others)
        self._names[str(event.runId)] = event.name or ""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        duration_ms = progress.durationMs.get("triggerExecution")
        if not progress.numInputRows or duration_ms is None:
            return
        start_ns = round(datetime.fromisoformat(progress.timestamp).timestamp() * 1e9)
        attributes = _of_query(str(progress.id), progress.name or "") | {
            "spark.streaming.batch_id": progress.batchId,
            "messaging.batch.message_count": progress.numInputRows,
        }
        if progress.sink.numOutputRows >= 0:
            attributes["spark.streaming.output_rows"] = progress.sink.numOutputRows
        span = self._tracer.start_span(
            _span_name(progress.name or ""),
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=list(_links(progress)),
            start_time=start_ns,
        )
        span.end(start_ns + duration_ms * 1_000_000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """A trigger without rows has no span."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        name = self._names.pop(str(event.runId), "")
        if event.exception is None:
            return
        span = self._tracer.start_span(
            _span_name(name),
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=_of_query(str(event.id), name)
            | {"error.type": event.errorClassOnException or "StreamingQueryException"},
        )
        span.set_status(Status(StatusCode.ERROR, event.exception))
        span.end()


def _span_name(query: str) -> str:
    return f"process {query}" if query else "process"


def _of_query(query_id: str, name: str) -> Attributes:
    attributes = operation("process", "process") | {"spark.streaming.query_id": query_id}
    return attributes | ({"spark.streaming.query_name": name} if name else {})


def _links(progress: StreamingQueryProgress) -> Iterator[Link]:
    """Yield a link for each context that Spark picked, each once."""
    rows = [row for name, row in progress.observedMetrics.items() if name.startswith(f"{_METRICS}.")]
    for context in dict.fromkeys(value for row in rows for value in row if value is not None):
        found = TraceContextTextMapPropagator().extract({"traceparent": context}, Context())
        span = trace.get_current_span(found).get_span_context()
        if span.is_valid:
            yield Link(span)
