"""The data source that Spark knows as `leveret`: which reader or writer serves which broker.

Owns this choice and the checks that need only options and schema. Spark builds this object, pickles it, and
asks it for readers and writers in several processes of the driver. Errors are raised there, each as one
sentence, before a task runs.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from leveret.spark import columns
from leveret.spark.endpoint import Endpoint, find
from leveret.spark.errors import BadOption, SparkSideError
from leveret.spark.options import SinkOptions, SourceOptions
from leveret.spark.stream_runner import end_quietly_without_spark

NAME: Final = "leveret"
_COMMITTING: Final = "pyspark.sql.worker.python_streaming_sink_runner"


class LeveretDataSource(DataSource):
    """Queues, streams and topics as DataFrames, DataFrames as messages; acked when Spark has committed.

    A stream of what comes into a queue, each message exactly once in the table::

        (spark.readStream.format("leveret")
            .option("url", "amqp://user:password@broker:5672/")
            .option("queue", "orders")
            .option("cursor", "orders-to-lake")     # the query's name at the broker
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", "/lake/checkpoints/orders")
            .start("/lake/orders"))

    A topic, each of its partitions in tasks of its own; other queries and groups read it independently::

        spark.readStream.format("leveret").option("topic", "orders").option("cursor", "to-lake").load()

    What is in a queue, a stream or a topic now, without consuming it::

        spark.read.format("leveret").option("queue", "orders").load()

    Rows as messages (columns `body`, `routing_key`, `exchange`, properties)::

        df.write.format("leveret").option("exchange", "orders").mode("append").save()

    Options of the source, case does not matter:

    ====================== ================================================================================
    url                    AMQP URL, or several with commas; amqp://guest:guest@localhost:5672/ by default
    user, password         win over those of the URL; never shown in plans, logs or checkpoints
    tlsCaFile              certificates to trust, a PEM file that driver and executors can read
    flightUrl              where Flight is reached, grpc+tcp://host:port, if not where the broker says
    brokerTimeout          how long a broker that is away is waited for; 60s
    queue                  what is read; or:
    stream                 a stream, by its offsets
    topic                  on Leveret: all streams of a topic, by their offsets
    cursor                 the query's name at the broker; for streaming reads; RabbitMQ's streams need none
    spoolLocation          a directory that driver and executors share; needed for queues off Leveret
    startingPosition       of a stream or topic: earliest (default), latest, an offset, or a timestamp; of a
                           topic also offsets by stream, {"orders-0": 17, "orders-1": 5}
    startingOffset, endingOffset, startingTimestamp, endingTimestamp
                           ranges of a batch read: from the first, up to before the second
    maxMessagesPerTrigger  the largest batch, in messages
    maxBytesPerTrigger     the largest batch, in bytes of bodies: 64m
    minPartitions          tasks per batch, at least
    decode                 body as binary (default), text, or json
    jsonSchema             for json: a DDL string; bodies that do not fit are null, and in column raw
    includeProperties      columns message_id, correlation_id, content_type, timestamp, headers, properties
    pushdown               batch reads take filters on offset, enqueued_at and routing_key
    leaseTimeout           how long the query may be away before its messages go back to the queue; 24h
    dedupWindow            off Leveret: how long ids of messages are remembered; 24h
    failOnDataLoss         whether messages that are gone fail the query (true) or are left out
    ackMode                commit (default), or none: nothing is acked or held, for trying a query out
    ====================== ================================================================================

    Options of the sink: url, user, password, tlsCaFile, flightUrl, brokerTimeout as above; exchange,
    routingKey (where no column says it), mandatory (true: a row that no queue takes fails the batch),
    unroutableExchange (where such rows go instead), stageTimeout (24h), queryName (the query's identity,
    for exactly once), batchId (with queryName: which write of a foreachBatch this is; it happens once).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        return columns.declared(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = columns.with_body_type(SourceOptions.parse(self.options), schema)
        options.check_batch()
        endpoint = _find(options)
        if endpoint.is_leveret:
            from leveret.spark import snapshot

            if options.queue is not None:
                queues = snapshot.PushdownSnapshotReader if options.pushdown else snapshot.SnapshotReader
                return queues(options, endpoint)
            if options.pushdown:
                return snapshot.PushdownStreamSnapshotReader(options, endpoint)
            return snapshot.StreamSnapshotReader(options, endpoint)
        if options.stream is not None:
            from leveret.spark import streams

            kind = streams.PushdownStreamBatchReader if options.pushdown else streams.StreamBatchReader
            return kind(options)
        raise BadOption(
            f"a batch read of queue '{options.queue}' is not possible on {endpoint.product}: "
            "there a queue can't be read without consuming it",
            hint="use spark.readStream, or option stream for a stream",
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        end_quietly_without_spark()
        try:
            return self._stream_reader(schema)
        except SparkSideError as error:
            return RefusedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = columns.with_body_type(SourceOptions.parse(self.options), schema)
        options.check_stream()
        endpoint = _find(options)
        if endpoint.is_leveret:
            return _reader_of_leveret(options, endpoint)
        if options.stream is not None:
            from leveret.spark.streams import StreamReader

            return StreamReader(options)
        if options.spool_location is None:
            raise BadOption(
                f"option spoolLocation is missing: {endpoint.product} can't give a batch twice",
                hint="a directory that driver and executors reach: /shared/spool, file:///shared/spool, s3://…",
            )
        from leveret.spark.spool_stream import SpoolStreamReader

        return SpoolStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from leveret.spark import addressing, publishing_sink, sink

        options = self._sink(overwrite)
        endpoint = find(options)
        writer: DataSourceArrowWriter
        if endpoint.is_leveret:
            writer = sink.StageWriter(options, schema, endpoint)
        else:
            writer = publishing_sink.PublishWriter(options, schema)
        addressing.check(schema, options, endpoint)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from leveret.spark import addressing, publishing_sink, sink

        options = self._sink(overwrite)
        endpoint = find(options)
        writer: DataSourceStreamArrowWriter
        if endpoint.is_leveret:
            writer = sink.StageStreamWriter(options, schema, endpoint)
        else:
            writer = publishing_sink.PublishStreamWriter(options, schema)
        if not _is_committing():
            addressing.check(schema, options, endpoint)
        return writer

    def _sink(self, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise BadOption("messages can't be overwritten", hint="use mode append")
        return SinkOptions.parse(self.options)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises an error at Spark's first call: Spark hides an error that is raised while it makes a reader."""

    def __init__(self, error: SparkSideError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self._error

    initialOffset = getDefaultReadLimit = latestOffset = partitions = read = _refuse  # noqa: N815


def _is_committing() -> bool:
    """Return whether Spark runs this process to commit or abort a batch: its rows are written already."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _COMMITTING in sys.modules or (main is not None and main.name == _COMMITTING)


def _find(options: SourceOptions) -> Endpoint:
    endpoint = find(options)
    if options.topic is not None and not endpoint.is_leveret:
        raise BadOption(
            f"option topic is for Leveret: {endpoint.product} has no topics",
            hint="use option stream or queue",
        )
    return endpoint


def _reader_of_leveret(options: SourceOptions, endpoint: Endpoint) -> DataSourceStreamReader:
    peeks = options.ack_mode == "none"
    if options.queue is None:
        from leveret.spark.topics import TopicStreamReader

        if not peeks:
            options.check_cursor()
        return TopicStreamReader(options, endpoint)
    from leveret.spark.leases import LeaseStreamReader
    from leveret.spark.peek import PeekStreamReader

    return (PeekStreamReader if peeks else LeaseStreamReader)(options, endpoint)
