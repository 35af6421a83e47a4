"""Traces through Spark: messages keep their context from source to sink, and micro-batches have spans."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from leveret.client import BlockingConnection, Message, Queue, Topology
from leveret.spark.errors import BadSchema
from leveret.spark.tracing import QueryTracing, observed
from leveret.testing.broker import Broker
from tests.client.spans import Spans, is_child
from tests.spark.spooling import wait_until

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

WAIT_S = 120


def test_a_trace_goes_on_through_a_query_from_source_to_sink(
    spark: SparkSession, leveret: Broker, fresh, tmp_path: Path
) -> None:
    spans, source, target = Spans(), fresh("source"), fresh("target")
    listener = QueryTracing(tracer_provider=spans.provider)
    topology = Topology(Queue(source), Queue(target))
    spark.streams.addListener(listener)
    try:
        with BlockingConnection(leveret.url, hooks=spans.tracing, topology=topology) as connection:
            with connection.publisher() as publisher:
                publisher.publish_many([Message(b"%d" % number, source) for number in range(20)])
            sends = {f"{span.context.trace_id:032x}": span for span in spans.of("send")}
            assert len(sends) == 20
            rows = spark.readStream.format("leveret").options(
                url=leveret.url, queue=source, cursor="lake", includeProperties="true"
            )
            onward = observed(rows.load()).select("body", "headers", f.lit(target).alias("routing_key"))
            writing = onward.writeStream.format("leveret").option("url", leveret.url).queryName("onward")
            query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
            assert query.awaitTermination(WAIT_S)
            for delivery in connection.consume(target, limit=20):
                with spans.tracing.processing([delivery.delivery]):
                    delivery.ack()
        processed = spans.of(f"process {target}")
        assert {f"{span.context.trace_id:032x}" for span in processed} == sends.keys()
        assert all(is_child(span, sends[f"{span.context.trace_id:032x}"]) for span in processed)

        wait_until(lambda: spans.of("process onward"), "the micro-batch has a span")
        batch = spans.one("process onward")
        assert (batch.kind, batch.parent) == (SpanKind.CONSUMER, None)
        assert batch.attributes["messaging.batch.message_count"] == 20
        assert batch.attributes["spark.streaming.batch_id"] == 0
        assert batch.end_time > batch.start_time
        assert 1 < len(batch.links) <= 8
        assert {f"{link.context.trace_id:032x}" for link in batch.links} <= sends.keys()

        # A query that fails has a span that says so.
        broken = spark.readStream.format("leveret").options(url=leveret.url, queue=fresh(), cursor="lake")
        failing = broken.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "b"))
        with pytest.raises(StreamingQueryException):
            failing.queryName("failing").trigger(availableNow=True).start().awaitTermination(WAIT_S)
        wait_until(lambda: spans.of("process failing"), "the failure has a span")
        assert spans.one("process failing").status.status_code is StatusCode.ERROR
    finally:
        spark.streams.removeListener(listener)


def test_contexts_need_the_column_of_headers_and_a_bound(spark: SparkSession) -> None:
    with pytest.raises(BadSchema, match="includeProperties"):
        observed(spark.range(1))
    with pytest.raises(ValueError, match="links must be from 1 to 64"):
        observed(spark.range(1), links=65)
