"""RabbitMQ's streams by offset: batches, restarts, ranges, and what retention has deleted."""

import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import datasource as pyspark
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.client import BlockingConnection, Message
from leveret.spark import stream_consumer, streams
from leveret.spark.columns import schema_of
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import BadOption, BrokerAway, BrokerRefused, DataLost, WrongCheckpoint
from leveret.spark.options import SourceOptions
from leveret.spark.spool_stream import SpoolStreamReader
from leveret.spark.stream_consumer import StreamEnds
from leveret.spark.streams import StreamBatchReader, StreamReader
from tests.client.proxy import DELIVERED_BODY, Proxy
from tests.client.publishers import dead_url
from tests.spark.spooling import WAIT_S, publish, ready, wait_until
from tests.spark.spooling import options as spool_options

pytestmark = pytest.mark.needs_rabbitmq


@pytest.fixture(autouse=True)
def exact_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow broker may pause within the last messages: that is not taken for the end so soon."""
    monkeypatch.setattr(stream_consumer, "_QUIET_S", 0.5)


def declare(url: str, stream: str, **arguments: Any) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    given = {"x-queue-type": "stream"} | {key.replace("_", "-"): value for key, value in arguments.items()}
    connection.channel().queue_declare(stream, durable=True, arguments=given)
    connection.close()


def append(url: str, stream: str, bodies: Iterable[str], *, window: int = 1000) -> None:
    """All are in the stream when this returns; with a window of 1 they are in chunks of their own."""
    with BlockingConnection(url) as connection, connection.publisher(window=window) as publisher:
        for receipt in publisher.publish_many(Message(body.encode(), stream) for body in bodies):
            receipt.check()


def options(url: str, stream: str, **more: str) -> SourceOptions:
    return SourceOptions.parse({"url": url, "stream": stream, "brokerTimeout": "20s"} | more)


@pytest.fixture
def stream(rabbitmq, fresh: Callable[..., str]) -> str:
    name = fresh("stream")
    declare(rabbitmq.url, name)
    return name


def rows_of(reader: Any, partitions: Iterable[Any], chosen: SourceOptions) -> list[tuple[int, str]]:
    elsewhere = type(reader)(chosen)
    found = [
        (row["offset"], row["body"].decode())
        for partition in partitions
        for chunk in elsewhere.read(partition)
        for row in chunk.to_pylist()
    ]
    assert found == sorted(found)
    return found


def numbered(count: int, start: int = 0) -> list[tuple[int, str]]:
    return [(number, f"m{number}") for number in range(start, start + count)]


def bodies(count: int, start: int = 0) -> list[str]:
    return [body for _, body in numbered(count, start)]


def grown(reader: StreamReader, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
    """The end of the next batch, as soon as there is one."""
    deadline_s = time.monotonic() + WAIT_S
    while (end := reader.latestOffset(start, limit or reader.getDefaultReadLimit())) == start:
        assert time.monotonic() < deadline_s
    return end


def test_a_stream_is_read_batch_by_batch(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(250))
    chosen = options(rabbitmq.url, stream, maxMessagesPerTrigger="100")
    reader = StreamReader(chosen)
    offset, found, ends = reader.initialOffset(), [], []
    assert offset == {"stream": stream, "vhost": rabbitmq.vhost, "cluster": offset["cluster"], "offset": 0}
    assert offset["cluster"].startswith("leveret"), "the name that the tests give it"
    for _ in range(3):
        end = grown(reader, offset)
        found += rows_of(reader, reader.partitions(offset, end), chosen)
        offset = end
        ends.append(end["offset"])
    assert found == numbered(250)
    assert ends == [100, 200, 250]
    assert reader.latestOffset(offset, reader.getDefaultReadLimit()) == offset
    assert reader.reportLatestOffset()["offset"] == 250
    reader.stop()
    again = StreamBatchReader(options(rabbitmq.url, stream))
    assert rows_of(again, again.partitions(), chosen) == numbered(250)


def test_what_comes_while_the_query_is_idle_is_noticed(rabbitmq, stream):
    chosen = options(rabbitmq.url, stream)
    reader = StreamReader(chosen)
    start = reader.initialOffset()
    for _ in range(3):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(rabbitmq.url, stream, bodies(10))
    end = grown(reader, start)
    while end["offset"] < 10:
        end = grown(reader, end)
    assert rows_of(reader, reader.partitions(start, end), chosen) == numbered(10)
    reader.stop()


def test_a_planned_batch_is_the_same_in_another_run(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(50))
    chosen = options(rabbitmq.url, stream, minPartitions="3")
    first = StreamReader(chosen)
    start = first.initialOffset()
    end = grown(first, start)
    first.stop()
    append(rabbitmq.url, stream, bodies(50, 50))
    second = StreamReader(chosen)
    partitions = second.partitions(second.initialOffset(), end)
    assert len(partitions) == 3
    assert rows_of(second, partitions, chosen) == numbered(50)
    later = grown(second, end)
    assert rows_of(second, second.partitions(end, later), chosen) == numbered(50, 50)
    second.stop()


def test_a_query_that_began_at_the_end_begins_there_again_if_its_first_batch_was_not_committed(
    rabbitmq, stream
):
    append(rabbitmq.url, stream, bodies(20))
    chosen = options(rabbitmq.url, stream, startingPosition="latest")
    first = StreamReader(chosen)
    start = first.initialOffset()
    assert start["offset"] == 20
    assert first.latestOffset(start, ReadAllAvailable()) == start
    append(rabbitmq.url, stream, bodies(5, 20))
    end = grown(first, start, ReadMaxRows(5))
    first.stop()
    append(rabbitmq.url, stream, bodies(5, 25))
    second = StreamReader(chosen)
    assert second.initialOffset()["offset"] == 30
    assert rows_of(second, second.partitions(second.initialOffset(), end), chosen) == numbered(
        end["offset"] - 20, 20
    )
    second.stop()


def test_a_query_can_begin_at_an_offset_or_at_a_time(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(20))
    between = second_after_now()
    append(rabbitmq.url, stream, bodies(20, 20))
    for position, offset in (("7", 7), (between.isoformat(), 20), ("earliest", 0), ("latest", 40)):
        reader = StreamReader(options(rabbitmq.url, stream, startingPosition=position))
        assert reader.initialOffset()["offset"] == offset
        reader.stop()


def second_after_now() -> datetime:
    """Streams know seconds: a full one lies behind what was written before, and before what will be."""
    now_s = int(time.time()) + 1
    wait_until(lambda: time.time() > now_s + 0.1, "a second has passed")
    return datetime.fromtimestamp(now_s, UTC)


def test_available_now_ends_where_the_stream_ended(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(30))
    reader = StreamReader(options(rabbitmq.url, stream, maxMessagesPerTrigger="20"))
    reader.prepareForTriggerAvailableNow()
    append(rabbitmq.url, stream, bodies(30, 30))
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(20))
    second = reader.latestOffset(first, ReadMaxRows(20))
    assert (first["offset"], second["offset"]) == (20, 30)
    assert reader.latestOffset(second, ReadMaxRows(20)) == second
    reader.stop()


def test_a_limit_in_bytes_is_one_in_messages_of_the_usual_size(rabbitmq, stream):
    append(rabbitmq.url, stream, ["x" * 100 for _ in range(50)])
    reader = StreamReader(options(rabbitmq.url, stream, maxBytesPerTrigger="1k"))
    assert reader.getDefaultReadLimit() == ReadMaxBytes(1024)
    assert reader.latestOffset(reader.initialOffset(), ReadMaxBytes(1024))["offset"] == 10
    reader.stop()


def test_a_batch_read_takes_what_is_there_or_a_range_of_it(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(30))
    between = second_after_now()
    append(rabbitmq.url, stream, bodies(30, 30))
    cases: list[tuple[dict[str, str], list[tuple[int, str]]]] = [
        ({}, numbered(60)),
        ({"minPartitions": "4"}, numbered(60)),
        ({"startingOffset": "10", "endingOffset": "20"}, numbered(10, 10)),
        ({"endingOffset": "1000"}, numbered(60)),
        ({"startingOffset": "60"}, []),
        ({"startingTimestamp": between.isoformat()}, numbered(30, 30)),
        ({"startingTimestamp": "1960-01-01T00:00:00Z"}, numbered(60)),
        ({"endingTimestamp": between.isoformat()}, numbered(30)),
    ]
    for more, expected in cases:
        chosen = options(rabbitmq.url, stream, **more)
        reader = StreamBatchReader(chosen)
        assert rows_of(reader, reader.partitions(), chosen) == expected, more


def test_an_empty_stream_is_an_empty_table(rabbitmq, stream):
    chosen = options(rabbitmq.url, stream)
    reader = StreamBatchReader(chosen)
    assert reader.partitions() == []
    assert rows_of(reader, [InputPartition(None)], chosen) == []  # what Spark makes of that


@pytest.mark.parametrize(
    ("pushed", "left", "expected"),
    [
        ([pyspark.GreaterThanOrEqual(("offset",), 7), pyspark.LessThan(("offset",), 9)], 0, [7, 8]),
        ([pyspark.In(("offset",), (2, 5, 99))], 0, [2, 5]),
        ([pyspark.EqualTo(("routing_key",), "no such key")], 0, []),
        ([pyspark.StringStartsWith(("routing_key",), "client")], 0, range(10)),
        ([pyspark.IsNotNull(("enqueued_at",))], 0, []),
        ([pyspark.EqualTo(("body",), b"m3")], 1, range(10)),
    ],
)
def test_filters_are_taken_or_left_to_spark(rabbitmq, fresh, pushed, left, expected):
    stream = fresh("client")
    declare(rabbitmq.url, stream)
    append(rabbitmq.url, stream, bodies(10))
    given = {"url": rabbitmq.url, "stream": stream, "pushdown": "true"}
    reader = LeveretDataSource(given).reader(schema_of(SourceOptions.parse(given)))
    assert len(list(reader.pushFilters(pushed))) == left
    partitions = reader.partitions() or [InputPartition(None)]
    found = [row["offset"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == list(expected)


def test_without_pushdown_there_is_nothing_that_spark_would_refuse(rabbitmq, stream):
    given = {"url": rabbitmq.url, "stream": stream}
    reader = LeveretDataSource(given).reader(schema_of(SourceOptions.parse(given)))
    assert type(reader).pushFilters is pyspark.DataSourceReader.pushFilters


def test_a_wire_that_is_cut_leaves_nothing_out_and_doubles_nothing(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(3000))
    with Proxy(rabbitmq.url) as proxy:
        chosen = options(proxy.url, stream)
        reader = StreamBatchReader(chosen)
        partitions = reader.partitions()
        faults = [proxy.plan(DELIVERED_BODY, number) for number in (500, 1700)]
        assert rows_of(reader, partitions, chosen) == numbered(3000)
        assert all(fault.wait() for fault in faults)


LONG = [f"{number}" + "x" * 1000 for number in range(100)]


def wait_for_retention(url: str, stream: str) -> None:
    """No more is left than twenty thousand bytes, and nothing more will be deleted."""
    with closing(StreamEnds(options(url, stream))) as ends:
        ends.open()
        wait_until(lambda: 0 < ends.stop() - ends.first() < 20, "the first segments are deleted")


@pytest.fixture
def shortened(rabbitmq, fresh: Callable[..., str]) -> str:
    """A stream whose first messages are deleted: segments are small, and only a few are kept."""
    name = fresh("stream")
    declare(rabbitmq.url, name, x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=10_000)
    append(rabbitmq.url, name, LONG, window=1)
    wait_for_retention(rabbitmq.url, name)
    return name


def test_offsets_that_are_deleted_fail_the_query(rabbitmq, shortened):
    chosen = options(rabbitmq.url, shortened, startingPosition="0")
    reader = StreamReader(chosen)
    start = reader.initialOffset()
    end = grown(reader, start)
    with pytest.raises(DataLost, match=r"offset 0 of stream '.*' is deleted: the stream begins at \d+"):
        reader.partitions(start, end)
    reader.stop()
    with pytest.raises(DataLost):
        StreamBatchReader(options(rabbitmq.url, shortened, startingOffset="0")).partitions()


def test_offsets_that_are_deleted_while_the_query_runs_fail_it_before_a_task_does(rabbitmq, fresh):
    name = fresh("stream")
    declare(rabbitmq.url, name, x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=10_000)
    append(rabbitmq.url, name, bodies(6))
    reader = StreamReader(options(rabbitmq.url, name, maxMessagesPerTrigger="3"))
    start = reader.initialOffset()
    end = grown(reader, start)
    assert len(reader.partitions(start, end)) == 1
    append(rabbitmq.url, name, LONG, window=1)
    wait_for_retention(rabbitmq.url, name)
    with pytest.raises(DataLost, match=r"offset 3 of stream '.*' is deleted: the stream begins at \d+"):
        reader.partitions(end, grown(reader, end))
    reader.stop()


def test_offsets_that_are_deleted_after_the_plan_fail_the_task(rabbitmq, shortened):
    chosen = options(rabbitmq.url, shortened, startingOffset="0", failOnDataLoss="false")
    partitions = StreamBatchReader(chosen).partitions()
    strict = options(rabbitmq.url, shortened)
    with pytest.raises(DataLost, match="is deleted"):
        rows_of(StreamBatchReader(strict), partitions, strict)


def test_without_fail_on_data_loss_what_is_left_is_read_and_that_is_said(rabbitmq, shortened, caplog):
    chosen = options(rabbitmq.url, shortened, startingOffset="0", failOnDataLoss="false")
    reader = StreamBatchReader(chosen)
    found = rows_of(reader, reader.partitions(), chosen)
    assert re.search(r"offset 0 of stream '.*' is deleted: .*: the query goes on from there", caplog.text)
    assert [body for _, body in found] == LONG[-len(found) :]
    assert 0 < len(found) < 90
    offsets = [offset for offset, _ in found]
    assert offsets[0] > 0
    assert rows_of(reader, StreamBatchReader(options(rabbitmq.url, shortened)).partitions(), chosen) == found


def test_offsets_that_no_message_ever_had_are_no_loss(rabbitmq, fresh):
    """At each new segment RabbitMQ writes notes of its own into a stream, which take offsets."""
    name = fresh("stream")
    declare(rabbitmq.url, name, x_stream_max_segment_size_bytes=10_000)
    append(rabbitmq.url, name, LONG, window=1)
    chosen = options(rabbitmq.url, name, minPartitions="7")
    reader = StreamBatchReader(chosen)
    found = rows_of(reader, reader.partitions(), chosen)
    assert [body for _, body in found] == LONG
    assert found[-1][0] > len(LONG)


def test_a_queue_is_no_stream_and_loses_nothing_by_being_named_as_one(rabbitmq, fresh):
    queue = fresh()
    publish(rabbitmq.url, queue, ["a", "b"])
    reader = StreamReader(options(rabbitmq.url, queue))
    with pytest.raises(BadOption, match="is a queue and not a stream"):
        reader.initialOffset()
    reader.stop()
    wait_until(lambda: ready(rabbitmq.url, queue) == 2, "both are still there")


def test_a_stream_that_is_not_there_is_one_sentence(rabbitmq, fresh):
    with pytest.raises(BrokerRefused, match="NOT_FOUND"):
        StreamReader(options(rabbitmq.url, fresh())).initialOffset()
    with pytest.raises(BrokerAway):
        StreamReader(options(dead_url(), "s", brokerTimeout="300ms")).initialOffset()


def test_a_checkpoint_of_another_stream_is_refused(rabbitmq, stream):
    reader = StreamReader(options(rabbitmq.url, stream))
    start = reader.initialOffset()
    with pytest.raises(WrongCheckpoint, match="belongs to stream 'other', this query reads stream"):
        reader.latestOffset(start | {"stream": "other"}, ReadAllAvailable())
    reader.stop()


def delete(url: str, stream: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_delete(stream)
    connection.close()


def test_a_checkpoint_of_another_broker_is_refused_unless_loss_is_allowed(rabbitmq, stream, caplog):
    append(rabbitmq.url, stream, bodies(5))
    reader = StreamReader(options(rabbitmq.url, stream))
    start = reader.initialOffset()
    end = grown(reader, start)
    with pytest.raises(
        WrongCheckpoint, match=f"is of a stream of broker 'other@host', not of '{end['cluster']}'"
    ):
        reader.latestOffset(end | {"cluster": "other@host"}, ReadAllAvailable())
    before = {key: end[key] for key in end if key != "cluster"}  # as earlier versions wrote it
    assert reader.latestOffset(before, ReadAllAvailable()) == before
    reader.stop()
    lenient = StreamReader(options(rabbitmq.url, stream, failOnDataLoss="false"))
    append(rabbitmq.url, stream, bodies(3))
    assert grown(lenient, end | {"cluster": "other@host"})["offset"] == 8
    assert caplog.text.count("is of a stream of broker 'other@host'") == 1
    lenient.stop()


@pytest.fixture
def hasty(monkeypatch) -> None:
    """What an earlier stream had is not waited for as long as a slow broker may need."""
    monkeypatch.setattr(streams, "_MISSING_MESSAGE_S", 0.3)


def checkpoint_at_50(url: str, stream: str) -> dict[str, Any]:
    """Of a query that has read the stream to its end."""
    append(url, stream, bodies(50))
    reader = StreamReader(options(url, stream))
    end = grown(reader, reader.initialOffset())
    reader.stop()
    assert end["offset"] == 50
    return end


def declare_again(url: str, stream: str, count: int) -> None:
    delete(url, stream)
    declare(url, stream)
    append(url, stream, bodies(count))


DECLARED_AGAIN = "is at offset 50 of an earlier stream '.*', which was deleted since: .* of this one is at 29"


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(10), ReadMaxBytes(100)])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_checkpoint_of_a_stream_that_was_declared_again_is_refused(
    rabbitmq, stream, hasty, limit, available_now
):
    start = checkpoint_at_50(rabbitmq.url, stream)
    declare_again(rabbitmq.url, stream, 30)
    reader = StreamReader(options(rabbitmq.url, stream))
    if available_now:
        reader.prepareForTriggerAvailableNow()
    with pytest.raises(WrongCheckpoint, match=DECLARED_AGAIN):
        reader.latestOffset(start, limit)
    reader.stop()


def test_a_planned_batch_of_a_stream_that_was_declared_again_is_refused(rabbitmq, stream, hasty):
    end = checkpoint_at_50(rabbitmq.url, stream)
    declare_again(rabbitmq.url, stream, 30)
    reader = StreamReader(options(rabbitmq.url, stream))
    with pytest.raises(WrongCheckpoint, match=DECLARED_AGAIN):
        reader.partitions(reader.initialOffset(), end)
    reader.stop()


def test_without_fail_on_data_loss_a_stream_that_was_declared_again_is_read_from_its_beginning(
    rabbitmq, stream, hasty, caplog
):
    planned = checkpoint_at_50(rabbitmq.url, stream)
    declare_again(rabbitmq.url, stream, 30)
    chosen = options(rabbitmq.url, stream, failOnDataLoss="false")
    reader = StreamReader(chosen)
    assert reader.partitions(reader.initialOffset(), planned) == []
    end = reader.latestOffset(planned, ReadMaxRows(20))
    assert rows_of(reader, reader.partitions(planned, end), chosen) == numbered(20)
    assert "which was deleted since" in caplog.text
    assert "the query goes on from 0" in caplog.text
    reader.stop()
    again = StreamReader(chosen)
    assert rows_of(again, again.partitions(planned, end), chosen) == numbered(20)
    later = grown(again, end)
    assert rows_of(again, again.partitions(end, later), chosen) == numbered(10, 20)
    again.stop()


def test_a_stream_that_was_declared_again_and_is_empty_is_refused_at_its_first_message(
    rabbitmq, stream, hasty
):
    start = checkpoint_at_50(rabbitmq.url, stream)
    declare_again(rabbitmq.url, stream, 0)
    reader = StreamReader(options(rabbitmq.url, stream))
    for _ in range(3):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(rabbitmq.url, stream, bodies(30))
    with pytest.raises(WrongCheckpoint, match=r"offset 50 of an earlier stream"):
        until_noticed(lambda: reader.latestOffset(start, ReadAllAvailable()))
    reader.stop()


def test_a_stream_that_is_declared_again_under_an_idle_query_is_noticed(rabbitmq, stream, hasty, monkeypatch):
    monkeypatch.setattr(streams, "_IDLE_END_AGE_MAX_S", 0.5)
    start = checkpoint_at_50(rabbitmq.url, stream)
    reader = StreamReader(options(rabbitmq.url, stream))
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    declare_again(rabbitmq.url, stream, 30)
    with pytest.raises(WrongCheckpoint, match=DECLARED_AGAIN):
        until_noticed(lambda: reader.latestOffset(start, ReadAllAvailable()))
    reader.stop()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_stream_whose_last_messages_come_late_is_not_taken_for_another_one(
    rabbitmq, stream, monkeypatch, available_now
):
    start = checkpoint_at_50(rabbitmq.url, stream)
    append(rabbitmq.url, stream, bodies(10, 50))
    seen, stop = [30], StreamEnds.stop
    monkeypatch.setattr(StreamEnds, "stop", lambda ends: seen.pop() if seen else stop(ends))
    chosen = options(rabbitmq.url, stream)
    reader = StreamReader(chosen)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_of(reader, reader.partitions(start, end), chosen) == numbered(10, 50)
    assert not seen
    reader.stop()


def test_a_stream_that_ends_where_the_checkpoint_is_goes_on(rabbitmq, stream):
    start = checkpoint_at_50(rabbitmq.url, stream)
    chosen = options(rabbitmq.url, stream)
    reader = StreamReader(chosen)
    for _ in range(3):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(rabbitmq.url, stream, bodies(1, 50))
    end = grown(reader, start)
    assert rows_of(reader, reader.partitions(start, end), chosen) == numbered(1, 50)
    reader.stop()


def test_a_query_may_begin_at_an_offset_that_is_still_to_come(rabbitmq, stream):
    append(rabbitmq.url, stream, bodies(5))
    chosen = options(rabbitmq.url, stream, startingPosition="7")
    reader = StreamReader(chosen)
    start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    append(rabbitmq.url, stream, bodies(5, 5))
    end = grown(reader, start)
    while end["offset"] < 10:
        end = grown(reader, end)
    assert rows_of(reader, reader.partitions(start, end), chosen) == numbered(3, 7)
    reader.stop()


def test_a_busy_stream_is_read_up_to_where_it_was_seen(rabbitmq, stream):
    stop = threading.Event()

    def keep_publishing() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
        channel = connection.channel()
        number = 0
        while not stop.is_set():
            channel.basic_publish("", stream, f"m{number}".encode())
            number += 1
        connection.close()

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        chosen = options(rabbitmq.url, stream)
        reader = StreamReader(chosen)
        offset, found = reader.initialOffset(), []
        for _ in range(3):
            end = grown(reader, offset)
            found += rows_of(reader, reader.partitions(offset, end), chosen)
            offset = end
    finally:
        stop.set()
        publisher.join(WAIT_S)
    reader.stop()
    assert found == numbered(offset["offset"])


@pytest.mark.needs_java
def test_spark_reads_a_stream_and_goes_on_where_it_was(spark, rabbitmq, stream, tmp_path):
    append(rabbitmq.url, stream, bodies(500))
    given = {"url": rabbitmq.url, "stream": stream, "decode": "text"}
    whole = spark.read.format("leveret").options(**given, minPartitions="2").load()
    assert [tuple(row) for row in whole.select("offset", "body").orderBy("offset").collect()] == numbered(500)
    for start, count in ((0, 500), (500, 300)):
        query = (
            spark.readStream.format("leveret")
            .options(**given, maxMessagesPerTrigger="400")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)
        table = spark.read.parquet(str(tmp_path / "table"))
        found = table.select("offset", "body").orderBy("offset").collect()
        assert [tuple(row) for row in found] == numbered(start + count)
        append(rabbitmq.url, stream, bodies(300, 500))


@pytest.mark.full
@pytest.mark.needs_java
def test_spark_stops_at_a_stream_that_was_declared_again_or_goes_on_from_its_beginning(
    spark, rabbitmq, stream, tmp_path
):
    def run(**more: str) -> list[tuple[int, str]]:
        query = (
            spark.readStream.format("leveret")
            .options(url=rabbitmq.url, stream=stream, decode="text", **more)
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)
        table = spark.read.parquet(str(tmp_path / "table"))
        return sorted(tuple(row) for row in table.select("offset", "body").collect())

    append(rabbitmq.url, stream, bodies(50))
    assert run() == numbered(50)
    declare_again(rabbitmq.url, stream, 30)
    with pytest.raises(StreamingQueryException, match=DECLARED_AGAIN):
        run()
    assert run(failOnDataLoss="false") == sorted(numbered(50) + numbered(30))
    append(rabbitmq.url, stream, bodies(10, 30))
    assert run() == sorted(numbered(50) + numbered(40))


def test_a_stream_that_is_named_as_a_queue_is_noticed(rabbitmq, stream, tmp_path):
    reader = SpoolStreamReader(spool_options(rabbitmq.url, stream, tmp_path))
    try:
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        append(rabbitmq.url, stream, ["one", "two"])
        with pytest.raises(BadOption, match="is a stream, not a queue"):
            until_noticed(lambda: reader.latestOffset(start, ReadAllAvailable()))
    finally:
        reader.stop()


def until_noticed(look: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        look()
