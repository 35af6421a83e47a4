"""Streams and topics of Leveret as micro-batches, driven by hand as Spark does: what is read, and settled."""

import logging
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.spark.endpoint import find
from leveret.spark.errors import BadOption, BrokerRefused, DataLost, WrongCheckpoint
from leveret.spark.options import SinkOptions
from leveret.spark.sink import StageStreamWriter
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.spark import tasks
from tests.spark.partitions import append, group_of, groups_on, lag, make_stream, make_topic, spread
from tests.spark.queues import Run, bodies, publish, reader
from tests.spark.tasks import channel

pytestmark = pytest.mark.real

numbers = count()


@pytest.fixture
def topic(leveret) -> str:
    """With three partitions."""
    return make_topic(leveret.url, f"topic{next(numbers)}", 3)


@pytest.fixture
def stream(leveret) -> str:
    return make_stream(leveret.url, f"stream{next(numbers)}")


@pytest.fixture
def options(leveret, topic):
    return {"url": leveret.url, "topic": topic, "cursor": "lake"}


@pytest.fixture
def of_stream(leveret, stream):
    return {"url": leveret.url, "stream": stream, "cursor": "lake"}


def taken(rows):
    return [row["body"] for row in rows]


def drained(run):
    """Everything that is there, batch by batch."""
    found = []
    while rows := run.batch():
        found += taken(rows)
    return found


# what is read


def test_a_topic_is_read_and_settled_when_it_is_committed(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 60))
    run = Run({}, **options)
    rows = run.batch()
    assert sorted(taken(rows)) == sorted(bodies(0, 60))
    assert {(row["queue"], row["partition"]) for row in rows} == {(f"{topic}-{n}", n) for n in range(3)}
    assert lag(leveret, topic, "lake") == 60
    assert run.batch() == []
    assert lag(leveret, topic, "lake") == 0
    for number in range(3):
        offsets = [row["offset"] for row in rows if row["partition"] == number]
        assert offsets == list(range(len(offsets)))


def test_a_stream_is_read_like_a_topic_of_one(leveret, stream, of_stream):
    append(leveret.url, stream, bodies(0, 10))
    run = Run({}, **of_stream, maxMessagesPerTrigger="4")
    assert [len(run.batch()) for _ in range(4)] == [4, 4, 2, 0]
    assert lag(leveret, stream, "lake") == 0
    append(leveret.url, stream, bodies(10, 12))
    assert lag(leveret, stream, "lake") == 2
    assert taken(run.batch()) == bodies(10, 12)


def test_queries_read_a_topic_independently(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 20))
    one = Run({}, **options)
    assert len(drained(one)) == 20
    other = Run({}, **options | {"cursor": "other"}, maxMessagesPerTrigger="5")
    assert len(other.batch()) == 5
    other.plan()
    assert (lag(leveret, topic, "lake"), lag(leveret, topic, "other")) == (0, 15)


def test_a_batch_that_was_planned_comes_again_exactly_in_another_run(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 30))
    checkpoint = {}
    first = Run(checkpoint, **options, maxMessagesPerTrigger="10")
    planned = first.rows(first.plan())
    spread(leveret.url, topic, bodies(30, 40))
    second = Run(checkpoint, **options)
    assert second.rows(second.plan()) == planned
    second.commit()
    assert len(planned) == 10
    assert sorted(taken(planned) + drained(second)) == sorted(bodies(0, 40))


def test_a_run_that_was_taken_over_is_told_so(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 5))
    checkpoint = {}
    first = Run(checkpoint, **options)
    first.plan()
    Run(checkpoint, **options).plan()
    sentence = f"another run of this query has taken over cursor 'lake' of topic '{topic}'"
    with pytest.raises(BrokerRefused, match=sentence):
        first.reader.latestOffset(first.start(), ReadAllAvailable())


def test_nothing_happens_before_the_first_call(leveret, topic, options):
    first = Run({}, **options)
    first.start()
    reader(**options)
    assert first.batch() == []


def test_tasks_are_partitions_or_pieces_of_them(leveret, topic, options):
    for number, messages in enumerate((10, 0, 30)):
        append(leveret.url, f"{topic}-{number}", bodies(0, messages))
    assert [task.messages for task in Run({}, **options).plan()] == [10, 30]
    split = Run({}, **options | {"cursor": "other"}, minPartitions="4").plan()
    assert [(task.number, task.messages) for task in split] == [(0, 10), (2, 10), (2, 10), (2, 10)]


def test_progress_shows_where_the_partitions_end_and_what_waits(leveret, stream, of_stream):
    append(leveret.url, stream, bodies(0, 10))
    run = Run({}, **of_stream, maxMessagesPerTrigger="4")
    assert run.reader.reportLatestOffset() is None
    run.plan()
    found = run.reader.reportLatestOffset()
    assert (found["offsets"], found["ready"]) == ({stream: 10}, 6)


def test_properties_come_when_they_are_asked_for(leveret, topic, options):
    with channel(leveret.url) as publishing:
        publishing.basic_publish(topic, "key", b"x", None)
    (row,) = Run({}, **options, includeProperties="true", decode="text").batch()
    assert (row["body"], row["exchange"], row["routing_key"], row["headers"]) == ("x", topic, "key", [])


def test_a_group_that_is_paused_gives_no_new_batch(leveret, stream, of_stream):
    append(leveret.url, stream, bodies(0, 4))
    run = Run({}, **of_stream, maxMessagesPerTrigger="2")
    run.batch()
    groups = leveret.server.broker.vhosts["/"].groups
    leveret.call(lambda: groups.change(groups.get(stream, "lake"), {"paused": True}))
    assert run.batch() == []
    assert lag(leveret, stream, "lake") == 2
    leveret.call(lambda: groups.change(groups.get(stream, "lake"), {"paused": False}))
    assert taken(run.batch()) == bodies(2, 4)


# limits


def test_a_limit_is_shared_by_the_partitions(leveret, topic, options):
    for number, messages in enumerate((100, 3, 100)):
        append(leveret.url, f"{topic}-{number}", [b"x" * 10] * messages)
    run = Run({}, **options)

    def shares(limit):
        rows = run.batch(limit)
        return [sum(row["partition"] == number for row in rows) for number in range(3)]

    assert shares(ReadMaxRows(30)) == [14, 3, 13]
    assert shares(ReadMaxRows(10)) == [5, 0, 5]
    assert shares(ReadMaxBytes(200)) == [10, 0, 10]
    assert shares(ReadMaxBytes(1)) in ([1, 0, 0], [0, 0, 1])
    assert sum(shares(ReadAllAvailable())) == 203 - 30 - 10 - 20 - 1


def test_each_partition_has_its_turn_however_small_the_limit_is(leveret, topic, options):
    for number in range(3):
        append(leveret.url, f"{topic}-{number}", bodies(0, 5))
    run = Run({}, **options, maxMessagesPerTrigger="1", maxBytesPerTrigger="1g")
    assert {run.batch()[0]["partition"] for _ in range(3)} == {0, 1, 2}


def test_available_now_takes_what_was_there_and_settles_it(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 20))
    checkpoint = {}
    Run(checkpoint, **options, maxMessagesPerTrigger="2").plan()
    run = Run(checkpoint, **options, maxMessagesPerTrigger="7")
    run.reader.prepareForTriggerAvailableNow()
    spread(leveret.url, topic, bodies(20, 30))
    make_topic(leveret.url, topic, 4)
    append(leveret.url, f"{topic}-3", bodies(30, 32))
    assert sorted(drained(run)) == sorted(bodies(0, 20))
    assert lag(leveret, topic, "lake") == 12


# where it begins


def test_a_query_begins_at_an_offset_at_a_time_or_at_an_end(leveret, topic, options):
    for number in range(3):
        append(leveret.url, f"{topic}-{number}", bodies(0, 10))
    between = datetime.now(UTC) + timedelta(microseconds=1)
    for number in range(3):
        append(leveret.url, f"{topic}-{number}", bodies(10, 20))
    first, last = f"{topic}-0", f"{topic}-2"
    for position, offsets in {
        "earliest": (0, 0, 0),
        "first": (0, 0, 0),
        "latest": (20, 20, 20),
        "7": (7, 7, 7),
        f'{{"{first}": 3, "{last}": 20}}': (3, 0, 20),
        between.isoformat(): (10, 10, 10),
    }.items():
        cursor = f"from {position}"
        start = Run({}, **options | {"cursor": cursor}, startingPosition=position).start()
        assert tuple(start["offsets"].values()) == offsets, position
        assert lag(leveret, topic, cursor) == 60 - sum(offsets)


def test_a_query_that_began_at_the_end_begins_there_again_if_its_first_batch_was_not_committed(
    leveret, stream, of_stream
):
    append(leveret.url, stream, bodies(0, 10))
    checkpoint = {}
    first = Run(checkpoint, **of_stream, startingPosition="latest")
    first.start()
    append(leveret.url, stream, bodies(10, 15))
    first.plan()
    del checkpoint["committed"]  # Spark asks for the initial offset again
    second = Run(checkpoint, **of_stream, startingPosition="latest")
    assert taken(second.rows(second.plan())) == bodies(10, 15)


def test_a_new_checkpoint_goes_on_where_the_group_is(leveret, stream, of_stream):
    append(leveret.url, stream, bodies(0, 10))
    run = Run({}, **of_stream, maxMessagesPerTrigger="4")
    run.batch()
    run.batch()
    assert taken(Run({}, **of_stream).batch()) == bodies(4, 10)


@pytest.mark.parametrize("position", ["11", '{"nowhere": 1}', '{"%s-1": 11}'])
def test_a_query_can_not_begin_where_nothing_is(leveret, topic, options, position):
    for number in range(3):
        append(leveret.url, f"{topic}-{number}", bodies(0, 10))
    given = position.replace("%s", topic)
    with pytest.raises(BrokerRefused, match=r"can't begin at offset 11 of stream|'nowhere' is no partition"):
        Run({}, **options, startingPosition=given).start()
    assert groups_on(leveret, topic) == []


# partitions that come and go


def test_a_new_partition_joins_a_running_query_from_its_beginning(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 10))
    checkpoint = {}
    run = Run(checkpoint, **options)
    assert len(run.batch()) == 10
    make_topic(leveret.url, topic, 4)
    assert run.batch() == []
    append(leveret.url, f"{topic}-3", bodies(10, 13))
    planned = run.rows(run.plan())
    assert taken(planned) == bodies(10, 13)
    assert {row["partition"] for row in planned} == {3}
    again = Run(checkpoint, **options)
    assert again.rows(again.plan()) == planned
    again.commit()
    assert again.batch() == []
    assert lag(leveret, topic, "lake") == 0


def test_a_partition_that_disappeared_is_said(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 10))
    run = Run({}, **options)
    run.batch()
    groups = leveret.server.broker.vhosts["/"].groups
    leveret.call(lambda: groups.delete(groups.get(topic, "lake")))
    with channel(leveret.url) as unbinding:
        unbinding.queue_unbind(f"{topic}-1", topic, "1")
    with pytest.raises(DataLost, match=f"partition '{topic}-1' of '{topic}' in vhost '/' no longer exists"):
        Run(run.checkpoint, **options).plan()


def test_a_group_that_was_deleted_ends_the_run_and_the_next_one_goes_on(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 10))
    run = Run({}, **options)
    run.batch()
    groups = leveret.server.broker.vhosts["/"].groups
    leveret.call(lambda: groups.delete(groups.get(topic, "lake")))
    with pytest.raises(BrokerRefused, match=r"its group was deleted \(Started again it goes on where its"):
        run.plan()
    spread(leveret.url, topic, bodies(10, 12))
    again = Run(run.checkpoint, **options)
    assert sorted(taken(again.batch())) == bodies(10, 12)
    again.batch()
    assert lag(leveret, topic, "lake") == 0


@pytest.mark.parametrize("position", ["latest", "3"])
def test_when_its_group_is_made_again_what_the_checkpoint_does_not_name_is_read_from_its_beginning(
    leveret, topic, options, position
):
    options["startingPosition"] = position
    spread(leveret.url, topic, bodies(0, 30))
    run = Run({}, **options)
    run.batch()
    groups = leveret.server.broker.vhosts["/"].groups
    leveret.call(lambda: groups.delete(groups.get(topic, "lake")))
    make_stream(leveret.url, f"{topic}-new")
    append(leveret.url, f"{topic}-new", bodies(50, 60))
    with channel(leveret.url) as binding:
        binding.queue_bind(f"{topic}-new", topic, "1")
    again = Run(run.checkpoint, **options)
    assert bodies(50, 60) == [body for body in sorted(taken(again.batch())) if body >= bodies(50, 51)[0]]
    again.batch()
    assert lag(leveret, topic, "lake") == 0


# what is gone


@pytest.fixture
def aging(tmp_path):
    """A broker whose clock the test moves, with a stream `s` that keeps messages for a minute."""
    with Broker(tmp_path / "data", flight=True, clock=VirtualClock()) as broker:
        make_stream(broker.url, "s", x_max_age="60s")
        append(broker.url, "s", bodies(0, 10))
        yield broker


def retire(broker, bodies):
    """Everything that is in the stream is deleted, then these come."""
    broker.clock.advance(3600)
    stream = broker.server.broker.vhosts["/"].queues["s"]
    broker.wait_until(lambda: stream.log.first == stream.log.next, "retention has taken all of it")
    append(broker.url, "s", bodies)


def test_what_retention_took_of_a_partition_that_joined_fails_the_query(aging):
    topic = make_topic(aging.url, "t", 1)
    given = {"url": aging.url, "topic": topic, "cursor": "lake"}
    spread(aging.url, topic, bodies(20, 22))
    run = Run({}, **given)
    assert taken(run.batch()) == bodies(20, 22)
    run.batch()
    with channel(aging.url) as binding:
        binding.queue_bind("s", topic, "1")
    retire(aging, bodies(10, 12))
    with pytest.raises(DataLost, match="offsets 0 to 9 of stream 's' were deleted before they were read"):
        Run(run.checkpoint, **given).plan()
    goes_on = Run(run.checkpoint, failOnDataLoss="false", **given)
    assert taken(goes_on.batch()) == bodies(10, 12)


def test_what_retention_took_before_it_was_read_fails_the_query(aging):
    given = {"url": aging.url, "stream": "s", "cursor": "lake"}
    run = Run({}, **given, maxMessagesPerTrigger="4")
    run.batch()
    run.plan()
    retire(aging, bodies(10, 12))
    sentence = "offsets 4 to 9 of stream 's' were deleted before they were read"
    with pytest.raises(DataLost, match=sentence):
        Run(run.checkpoint, **given).plan()
    del run.checkpoint["planned"]
    with pytest.raises(DataLost, match=sentence):
        Run(run.checkpoint, **given).plan()
    with pytest.raises(DataLost, match="offsets 0 to 9 of stream 's' are deleted: a query can't begin there"):
        Run({}, **given | {"cursor": "new"}, startingPosition="0").start()
    assert taken(Run({}, **given | {"cursor": "new"}).batch()) == bodies(10, 12)


def test_without_fail_on_data_loss_it_is_a_warning(aging, caplog):
    given = {"url": aging.url, "stream": "s", "cursor": "lake", "failOnDataLoss": "false"}
    run = Run({}, **given, maxMessagesPerTrigger="4")
    run.batch()
    retire(aging, bodies(10, 12))
    with caplog.at_level(logging.WARNING, "leveret.spark"):
        assert taken(run.batch()) == bodies(10, 12)
    (warning,) = caplog.records
    assert "offsets 4 to 9 of stream 's' were deleted" in warning.getMessage()
    fresh = Run({}, **given | {"cursor": "new"}, startingPosition="5")
    assert taken(fresh.batch()) == bodies(10, 12)


def test_what_retention_took_after_it_was_read_is_no_loss(aging):
    run = Run({}, url=aging.url, stream="s", cursor="lake")
    run.batch()
    retire(aging, bodies(10, 12))
    assert taken(run.batch()) == bodies(10, 12)


# batches that are written beside it


def staged(broker, stream, batch, values):
    """Rows of a sink, hidden so far."""
    rows = tasks.bodies(*values)
    options = SinkOptions(url=broker.url, routing_key=stream)
    writer = StageStreamWriter(options, tasks.schema_of(rows), find(options))
    return writer, tasks.run_task(writer, [rows], query=f"writer of {stream}", batch=batch)


def test_rows_that_are_hidden_hold_readers_up_and_aborted_ones_are_never_read(leveret, stream, of_stream):
    append(leveret.url, stream, [b"before"])
    run = Run({}, **of_stream)
    assert taken(run.batch()) == [b"before"]
    writer, rows = staged(leveret, stream, 0, ["hidden", "away"])
    append(leveret.url, stream, [b"behind"])
    assert run.batch() == []
    assert lag(leveret, stream, "lake") == 3
    writer.abort([rows], 0)
    assert lag(leveret, stream, "lake") == 1
    assert taken(run.batch()) == [b"behind"]
    assert run.batch() == []
    assert lag(leveret, stream, "lake") == 0


def test_rows_of_a_sink_are_read_when_their_batch_is_committed(leveret, stream, of_stream):
    run = Run({}, **of_stream)
    writer, rows = staged(leveret, stream, 0, ["a", "b"])
    assert run.batch() == []
    writer.commit([rows], 0)
    assert taken(run.batch()) == [b"a", b"b"]


def test_aborted_rows_at_the_end_are_no_loss_and_no_batch(leveret, stream, of_stream):
    run = Run({}, **of_stream)
    run.start()
    writer, rows = staged(leveret, stream, 0, ["a", "b"])
    writer.abort([rows], 0)
    assert run.batch() == []
    run.reader.prepareForTriggerAvailableNow()
    assert run.batch() == []


def test_members_of_groups_get_what_a_sink_commits_and_what_lies_behind_what_it_aborts(leveret, stream):
    writer, rows = staged(leveret, stream, 0, ["aborted", "too"])
    append(leveret.url, stream, [b"behind"])
    with channel(leveret.url) as consuming:
        consuming.basic_qos(prefetch_count=10)
        given = {"x-group": "members", "x-group-start": "first"}
        deliveries = consuming.consume(stream, inactivity_timeout=30, arguments=given)
        writer.abort([rows], 0)
        assert acked(consuming, deliveries) == b"behind"
        writer, rows = staged(leveret, stream, 1, ["committed"])
        writer.commit([rows], 1)
        assert acked(consuming, deliveries) == b"committed"
        consuming.cancel()
    group = group_of(leveret, stream, "members")
    leveret.wait_until(lambda: group.lag == 0, "all is settled")


def acked(consuming, deliveries):
    method, _, body = next(deliveries)
    consuming.basic_ack(method.delivery_tag)
    return body


# restarts


def test_nothing_is_lost_when_the_broker_restarts_between_any_two_calls(own_leveret):
    make_topic(own_leveret.url, "t", 2)
    spread(own_leveret.url, "t", bodies(0, 20))
    run = Run({}, url=own_leveret.url, topic="t", cursor="lake", maxMessagesPerTrigger="8")
    found = []
    for _ in range(3):
        own_leveret.restart()
        partitions = run.plan()
        own_leveret.restart()
        found += taken(run.rows(partitions))
        run.commit()
    own_leveret.restart()
    assert run.batch() == []
    assert sorted(found) == sorted(bodies(0, 20))
    assert lag(own_leveret, "t", "lake") == 0


# what is wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topic": "other"}, "belongs to topic 'other', this query reads topic"),
        ({"cursor": "other"}, "belongs to cursor 'other', this query reads cursor 'lake'"),
        ({"vhost": "other"}, "belongs to vhost 'other'"),
        ({"logs": {"%s-1": 10**6}}, "belongs to an earlier stream"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(leveret, topic, options, change, sentence):
    spread(leveret.url, topic, bodies(0, 3))
    run = Run({}, **options)
    if "logs" in change:
        change = {"logs": {f"{topic}-1": 10**6}}
    run.checkpoint["committed"] = run.start() | change
    with pytest.raises(WrongCheckpoint, match=sentence):
        run.plan()
    assert lag(leveret, topic, "lake") == 3


def test_a_checkpoint_of_a_stream_of_that_name_at_another_broker_is_refused(own_leveret, tmp_path):
    """Whose stream was declared as early: what this one has at its beginning would be passed over."""
    with Broker(tmp_path / "other", flight=True) as other:
        for broker in (own_leveret, other):
            append(broker.url, make_stream(broker.url, "s"), bodies(0, 3))
        checkpoint = {}
        assert taken(Run(checkpoint, url=other.url, stream="s", cursor="lake").batch()) == bodies(0, 3)
        with pytest.raises(WrongCheckpoint, match=r"an earlier stream 's', .*, or to one of another broker"):
            Run(checkpoint, url=own_leveret.url, stream="s", cursor="lake").plan()


def test_the_query_whose_checkpoint_it_is_not_goes_on(own_leveret):
    append(own_leveret.url, make_stream(own_leveret.url, "s"), bodies(0, 3))
    given = {"url": own_leveret.url, "stream": "s"}
    right = Run({}, **given, cursor="lake")
    partitions = right.plan()
    committed = right.checkpoint["committed"]
    for cursor in ("lake", "nobody's"):
        of_another = committed | {"cursor": cursor, "logs": {"s": 10**6}}
        with pytest.raises(WrongCheckpoint, match="an earlier stream 's'"):
            Run({"committed": of_another}, **given, cursor=cursor).plan()
    assert taken(right.rows(partitions)) == bodies(0, 3)
    right.commit()
    assert right.batch() == []
    groups = own_leveret.call(lambda: list(own_leveret.server.broker.vhosts["/"].groups))
    assert [name for name in groups if "nobody" in str(name)] == []


def test_a_checkpoint_of_another_kind_of_source_is_refused(leveret, stream, of_stream, options):
    with pytest.raises(WrongCheckpoint, match="not written by a query over a stream or topic of Leveret"):
        Run({"committed": {"lease": 3}}, **of_stream).plan()
    with pytest.raises(WrongCheckpoint, match=f"belongs to no stream, this query reads stream '{stream}'"):
        Run({"committed": Run({}, **options).start()}, **of_stream).plan()


def test_a_checkpoint_ahead_of_the_broker_is_refused(leveret, stream, of_stream):
    run = Run({}, **of_stream)
    run.checkpoint["committed"] = run.start() | {"offsets": {stream: 7}}
    with pytest.raises(DataLost, match=f"at offset 7 of stream '{stream}', which ends at 0"):
        run.plan()


def test_what_is_read_must_be_what_the_option_says(leveret, topic, stream):
    publish(leveret.url, "a queue", [])
    for given, sentence in {
        ("queue", stream): "is a stream: it has no leases and is read by offset .Use option stream",
        ("stream", "a queue"): "queue 'a queue' in vhost '/' is no stream .Use option queue",
        ("stream", topic): "is a topic and no stream .Use option topic",
        ("topic", stream): "is a stream and no topic .Use option stream",
        ("topic", "nowhere"): "no stream or topic 'nowhere' in vhost '/'",
    }.items():
        with pytest.raises(BrokerRefused, match=sentence):
            Run({}, url=leveret.url, cursor="c", **dict([given])).start()


def test_a_query_has_a_cursor_that_nobody_else_uses(leveret, topic, options):
    del options["cursor"]
    with pytest.raises(BadOption, match="option cursor is missing"):
        Run({}, **options).start()
    with channel(leveret.url) as consuming:
        consuming.basic_qos(prefetch_count=1)
        consuming.basic_consume(topic, lambda *_: None, arguments={"x-group": "members"})
        with pytest.raises(BrokerRefused, match="is not a query's"):
            Run({}, **options, cursor="members").start()


def test_a_stream_needs_a_cursor_too(leveret, stream):
    with pytest.raises(BadOption, match="option cursor is missing"):
        Run({}, url=leveret.url, stream=stream).start()


def test_ack_mode_none_leaves_nothing_at_the_broker(leveret, topic, options):
    spread(leveret.url, topic, bodies(0, 5))
    del options["cursor"]
    run = Run({}, **options, ackMode="none", maxMessagesPerTrigger="3")
    assert len(drained(run)) == 5
    make_topic(leveret.url, topic, 4)
    append(leveret.url, f"{topic}-3", bodies(5, 6))
    assert taken(run.batch()) == bodies(5, 6)
    assert groups_on(leveret, topic) == []
