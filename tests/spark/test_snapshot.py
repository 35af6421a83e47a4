"""Batch reads of a queue of Leveret: all of it, parts of it, and nothing of it taken away."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import InputPartition

from leveret.spark.columns import schema_of
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.errors import BrokerRefused
from leveret.spark.options import SourceOptions
from tests.spark.queues import bodies, publish


@pytest.fixture
def queue(leveret, fresh):
    name = fresh("queue")
    publish(leveret.url, name, bodies(0, 10))
    return name


def reader(leveret, queue, **options):
    given = {"url": leveret.url, "queue": queue, **options}
    return LeveretDataSource(given).reader(schema_of(SourceOptions.parse(given)))


def rows(reader):
    partitions = reader.partitions() or [InputPartition(None)]  # as Spark does
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def taken(reader):
    return [row["body"] for row in rows(reader)]


def test_a_queue_is_read_without_being_consumed(leveret, queue):
    assert taken(reader(leveret, queue)) == bodies(0, 10)
    assert taken(reader(leveret, queue, minPartitions="3")) == bodies(0, 10)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (10, 0)


def test_a_range_of_offsets_is_read(leveret, queue):
    first = rows(reader(leveret, queue))[0]["offset"]
    chosen = {"startingOffset": str(first + 2), "endingOffset": str(first + 5)}
    assert taken(reader(leveret, queue, **chosen)) == bodies(2, 5)
    assert taken(reader(leveret, queue, startingOffset="7", endingOffset="7")) == []


def test_a_range_of_time_is_read(leveret, queue):
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert taken(reader(leveret, queue, startingTimestamp=later)) == []
    assert taken(reader(leveret, queue, endingTimestamp=later)) == bodies(0, 10)
    assert taken(reader(leveret, queue, startingTimestamp="2020-01-01")) == bodies(0, 10)


def test_an_empty_queue_gives_no_rows(leveret, fresh):
    name = fresh("empty")
    publish(leveret.url, name, [])
    assert rows(reader(leveret, name)) == []


def test_without_the_option_the_reader_has_no_push_filters_of_its_own(leveret, queue):
    plain = reader(leveret, queue)
    assert type(plain).pushFilters is spark.DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("pushed", "left", "expected"),
    [
        ([spark.EqualTo(("offset",), 3)], 0, [3]),
        ([spark.GreaterThan(("offset",), 3), spark.LessThanOrEqual(("offset",), 5)], 0, [4, 5]),
        ([spark.GreaterThanOrEqual(("offset",), 8)], 0, [8, 9]),
        ([spark.LessThan(("offset",), 0)], 0, []),
        ([spark.In(("offset",), (1, 4, None))], 0, [1, 4]),
        ([spark.IsNotNull(("offset",)), spark.LessThan(("offset",), 2)], 0, [0, 1]),
        ([spark.EqualTo(("offset",), None)], 1, range(10)),
        ([spark.EqualTo(("routing_key",), "nobody")], 0, []),
        ([spark.StringContains(("routing_key",), "queue")], 0, range(10)),
        ([spark.StringStartsWith(("routing_key",), "client"), spark.IsNotNull(("body",))], 1, range(10)),
        ([spark.StringEndsWith(("routing_key",), "!")], 0, []),
        ([spark.In(("routing_key",), ("a", None))], 0, []),
        ([spark.GreaterThan(("enqueued_at",), datetime(2100, 1, 1, tzinfo=UTC))], 0, []),
        ([spark.LessThan(("enqueued_at",), datetime(2100, 1, 1, tzinfo=UTC))], 0, range(10)),
        ([spark.Not(spark.EqualTo(("offset",), 3))], 1, range(10)),
        ([spark.EqualTo(("body",), b"m3")], 1, range(10)),
    ],
)
def test_filters_are_taken_or_left_to_spark(leveret, queue, pushed, left, expected):
    pushing = reader(leveret, queue, pushdown="true")
    first = rows(reader(leveret, queue))[0]["offset"]
    assert first == 0
    assert len(list(pushing.pushFilters(pushed))) == left
    assert [row["offset"] for row in rows(pushing)] == list(expected)


def test_a_queue_that_does_not_exist_is_a_sentence(leveret):
    with pytest.raises(BrokerRefused, match="no queue 'nowhere'"):
        reader(leveret, "nowhere").partitions()
