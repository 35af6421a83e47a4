"""Batch reads of streams and topics of Leveret: all of it, parts of it; no group is made."""

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import InputPartition

from leveret.spark import datasource
from leveret.spark.columns import schema_of
from leveret.spark.datasource import LeveretDataSource
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BadOption, BrokerRefused, DataLost
from leveret.spark.options import SourceOptions
from tests.spark.partitions import append, groups_on, make_stream, make_topic
from tests.spark.queues import bodies

numbers = count()


@pytest.fixture
def topic(leveret):
    """Two partitions with ten messages each, and where in time their halves meet."""
    name = make_topic(leveret.url, f"topic-snapshot{next(numbers)}", 2)
    for number in range(2):
        append(leveret.url, f"{name}-{number}", bodies(0, 5))
    between = datetime.now(UTC) + timedelta(microseconds=1)
    for number in range(2):
        append(leveret.url, f"{name}-{number}", bodies(5, 10))
    return name, between.isoformat()


def reader(leveret, **options):
    given = {"url": leveret.url, **options}
    return LeveretDataSource(given).reader(schema_of(SourceOptions.parse(given)))


def rows(reader):
    partitions = reader.partitions() or [InputPartition(None)]  # as Spark does
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def offsets(reader):
    """Of each partition."""
    found = rows(reader)
    return [[row["offset"] for row in found if row["partition"] == number] for number in range(2)]


ALL = list(range(10))


def test_a_topic_is_read_whole_and_nothing_is_kept_of_it(leveret, topic):
    name, _ = topic
    found = rows(reader(leveret, topic=name))
    assert [row["body"] for row in found] == bodies(0, 10) * 2
    assert [row["queue"] for row in found] == [f"{name}-0"] * 10 + [f"{name}-1"] * 10
    assert len(reader(leveret, topic=name, minPartitions="6").partitions()) == 6
    assert groups_on(leveret, name) == []


def test_one_stream_of_it_can_be_read_too(leveret, topic):
    name, _ = topic
    assert offsets(reader(leveret, stream=f"{name}-1")) == [ALL, []]


def test_ranges_of_offsets_hold_for_each_partition(leveret, topic):
    name, _ = topic
    assert offsets(reader(leveret, topic=name, startingOffset="3", endingOffset="6")) == [[3, 4, 5]] * 2
    assert offsets(reader(leveret, topic=name, startingOffset="30")) == [[], []]
    position = f'{{"{name}-1": 8}}'
    assert offsets(reader(leveret, topic=name, startingPosition=position)) == [ALL, [8, 9]]
    assert offsets(reader(leveret, topic=name, startingPosition="latest")) == [[], []]


def test_ranges_of_time_are_exact(leveret, topic):
    name, between = topic
    assert offsets(reader(leveret, topic=name, startingTimestamp=between)) == [ALL[5:]] * 2
    assert offsets(reader(leveret, topic=name, endingTimestamp=between)) == [ALL[:5]] * 2
    both = {"startingTimestamp": between, "endingTimestamp": between}
    assert offsets(reader(leveret, topic=name, **both)) == [[], []]
    assert offsets(reader(leveret, topic=name, endingTimestamp="2020-01-01")) == [[], []]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "0001-01-01T00:00:00Z"}, ALL),
        ({"startingTimestamp": "1960-01-01T00:00:00Z"}, ALL),
        ({"startingTimestamp": "9999-12-31T23:59:59Z"}, []),
        ({"endingTimestamp": "0001-01-01T00:00:00Z"}, []),
        ({"endingTimestamp": "9999-12-31T23:59:59Z"}, ALL),
    ],
)
def test_times_may_be_as_early_and_as_late_as_there_are_years(leveret, topic, options, expected):
    name, _ = topic
    assert offsets(reader(leveret, topic=name, **options)) == [expected] * 2
    assert offsets(reader(leveret, stream=f"{name}-0", **options)) == [expected, []]


@pytest.mark.parametrize(
    ("pushed", "left", "expected"),
    [
        ([spark.GreaterThan(("offset",), 3), spark.LessThanOrEqual(("offset",), 5)], 0, [4, 5]),
        ([spark.In(("offset",), (1, 4, None))], 0, [1, 4]),
        ([spark.EqualTo(("routing_key",), "nobody")], 0, []),
        ([spark.EqualTo(("partition",), 1)], 1, ALL),
    ],
)
def test_filters_are_taken_or_left_to_spark(leveret, topic, pushed, left, expected):
    name, _ = topic
    pushing = reader(leveret, topic=name, pushdown="true")
    assert len(list(pushing.pushFilters(pushed))) == left
    assert offsets(pushing) == [expected] * 2


def test_an_empty_stream_is_an_empty_table(leveret):
    make_stream(leveret.url, "an empty stream")
    assert rows(reader(leveret, stream="an empty stream")) == []


def checkpoint(leveret):
    """Two, as the server makes them when the first one shows that something can go."""
    for _ in range(2):
        leveret.call(leveret.server.broker.store.checkpoint)
        leveret.call(leveret.server.broker.checkpointed)


def test_offsets_that_are_deleted_are_said_or_left_out(leveret):
    name = f"short{next(numbers)}"
    make_stream(leveret.url, name, x_max_length_bytes=4000, x_stream_max_segment_size_bytes=1000)
    for number in range(10):
        append(leveret.url, name, [b"%d" % number * 1000])
        checkpoint(leveret)
    left = [row["offset"] for row in rows(reader(leveret, stream=name))]
    assert 0 < len(left) < 10
    with pytest.raises(DataLost, match=f"offsets 0 to {left[0] - 1} of stream '{name}' were deleted"):
        reader(leveret, stream=name, startingOffset="0").partitions()
    lenient = reader(leveret, stream=name, startingOffset="0", failOnDataLoss="false")
    assert [row["offset"] for row in rows(lenient)] == left
    planned = reader(leveret, stream=name, startingOffset=str(left[0]))
    partitions = planned.partitions()
    for _ in range(2):
        append(leveret.url, name, [b"x" * 3000])
        checkpoint(leveret)
    with pytest.raises(DataLost, match=f"messages of queue '{name}' in vhost '/' are gone"):
        list(planned.read(partitions[0]))


def test_what_is_not_there_is_one_sentence(leveret):
    with pytest.raises(BrokerRefused, match="no stream or topic 'nowhere' in vhost '/'"):
        reader(leveret, topic="nowhere").partitions()
    with pytest.raises(BrokerRefused, match="no stream or topic 'nowhere' in vhost '/'"):
        reader(leveret, stream="nowhere").partitions()


def test_other_brokers_have_no_topics(leveret, monkeypatch):
    monkeypatch.setattr(datasource, "find", lambda options: Endpoint(options, "RabbitMQ", None))
    with pytest.raises(BadOption, match="option topic is for Leveret: RabbitMQ has no topics"):
        reader(leveret, topic="orders")
