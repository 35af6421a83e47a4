"""A queue of Leveret that is looked at (`ackMode=none`): how large the batches are."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.spark import peek
from tests.spark.queues import Run, publish
from tests.spark.tasks import channel


@pytest.fixture
def queue(leveret, fresh):
    """Nine messages: one of 500 bytes, and then eight of 100."""
    name = fresh("queue")
    publish(leveret.url, name, [b"x" * size_bytes for size_bytes in (500, *[100] * 8)])
    return name


@pytest.fixture
def options(leveret, queue):
    return {"url": leveret.url, "queue": queue, "cursor": "lake", "ackMode": "none"}


def sizes(rows):
    return [len(row["body"]) for row in rows]


def test_a_batch_has_so_many_bytes_at_most_and_one_message_at_least(leveret, queue, options):
    run = Run({}, **options, maxBytesPerTrigger="350")
    assert run.reader.getDefaultReadLimit() == ReadMaxBytes(350)
    assert [sizes(run.batch()) for _ in range(5)] == [[500], [100] * 3, [100] * 3, [100] * 2, []]
    assert (leveret.depth(queue), leveret.unacked(queue)) == (9, 0)


def test_how_far_the_queue_goes_is_in_the_progress(leveret, queue, options):
    run = Run({}, **options, maxMessagesPerTrigger="4")
    assert run.reader.reportLatestOffset() is None
    run.batch()
    assert run.reader.reportLatestOffset() == run.start() | {"offset": 9}
    publish(leveret.url, queue, [b"one more"])
    for _ in range(4):
        run.batch()
    assert run.reader.reportLatestOffset() == run.start() == run.start() | {"offset": 10}


def test_of_two_limits_the_nearer_one_counts(options):
    run = Run({}, **options, maxBytesPerTrigger="350", maxMessagesPerTrigger="2")
    assert run.reader.getDefaultReadLimit() == ReadMaxRows(2)
    assert [sizes(run.batch()) for _ in range(3)] == [[500], [100] * 2, [100] * 2]
    run = Run({}, **options, maxBytesPerTrigger="350", maxMessagesPerTrigger="5")
    assert [sizes(run.batch()) for _ in range(3)] == [[500], [100] * 3, [100] * 3]


def test_without_a_limit_a_batch_is_all_there_is(options, monkeypatch):
    # No sizes are asked for.
    monkeypatch.delattr(peek.PeekStreamReader, "_measured_stop")
    run = Run({}, **options)
    assert run.reader.getDefaultReadLimit() == ReadAllAvailable()
    assert sizes(run.batch()) == [500, *[100] * 8]


def test_no_more_sizes_are_looked_at_than_a_lease_would(options, monkeypatch):
    monkeypatch.setattr(peek, "_MEASURED_MAX", 4)
    run = Run({}, **options, maxBytesPerTrigger="1m")
    assert [sizes(run.batch()) for _ in range(3)] == [[500, *[100] * 3], [100] * 4, [100]]


def test_what_others_take_between_the_look_and_the_reading_of_sizes_is_not_seen(
    leveret, queue, options, monkeypatch
):
    run = Run({}, **options, maxBytesPerTrigger="350")
    start = run.start()
    look = peek.PeekStreamReader._snapshot

    def emptied(reader, *bounds):
        found = look(reader, *bounds)
        with channel(leveret.url) as opened:
            opened.queue_purge(queue)
        return found

    monkeypatch.setattr(peek.PeekStreamReader, "_snapshot", emptied)
    assert run.reader.latestOffset(start, ReadMaxBytes(350)) == start
