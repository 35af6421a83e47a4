"""A queue of Leveret as micro-batches, driven by hand as Spark does: what is acked, and what comes again."""

import os
import signal

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.client import BlockingConnection
from leveret.spark import flight_calls
from leveret.spark.errors import BrokerRefused, WrongCheckpoint
from leveret.testing.broker import Broker
from tests.soak.network import Network
from tests.spark.queues import Run, bodies, publish, reader


@pytest.fixture
def queue(leveret, fresh):
    return fresh("queue")


@pytest.fixture
def options(leveret, queue):
    return {"url": leveret.url, "queue": queue, "cursor": "lake"}


def taken(rows):
    return [row["body"] for row in rows]


def test_a_batch_is_acked_after_it_was_committed_and_not_before(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    run = Run({}, **options)
    assert taken(run.batch()) == bodies(0, 10)
    assert leveret.unacked(queue) == 10
    assert run.batch() == []
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)


def test_a_batch_that_was_planned_comes_again_exactly_in_another_run(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    checkpoint = {}
    first = Run(checkpoint, **options, maxMessagesPerTrigger="4")
    planned = first.rows(first.plan())
    publish(leveret.url, queue, bodies(10, 12))
    second = Run(checkpoint, **options)
    assert second.rows(second.plan()) == planned
    second.commit()
    assert taken(second.batch()) == bodies(4, 12)


def test_a_run_that_was_taken_over_is_told_so(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 3))
    checkpoint = {}
    first = Run(checkpoint, **options)
    first.plan()
    second = Run(checkpoint, **options)
    second.plan()
    with pytest.raises(BrokerRefused, match="another run of this query has taken over cursor 'lake'"):
        first.reader.latestOffset(first.start(), ReadAllAvailable())


def test_a_first_batch_that_another_checkpoint_has_settled_is_not_an_empty_one(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 3))
    killed: dict = {}
    Run(killed, **options).plan()
    other = Run({}, **options)
    assert taken(other.batch()) == bodies(0, 3)
    assert other.batch() == []
    del killed["committed"]  # Spark asks where the query begins, and has only where its first batch ends
    with pytest.raises(BrokerRefused, match="is settled: its messages were acked, and can't be read again"):
        Run(killed, **options).plan()


def test_nor_is_one_of_a_checkpoint_that_does_not_say_where_it_begins(leveret, queue, options):
    """As they were written before: then only what lies above the batch tells."""
    publish(leveret.url, queue, bodies(0, 4))
    killed: dict = {}
    Run(killed, **options, maxMessagesPerTrigger="2").plan()
    other = Run({}, **options, maxMessagesPerTrigger="2")
    assert taken(other.batch()) + taken(other.batch()) == bodies(0, 4)
    assert other.batch() == []
    del killed["committed"], killed["planned"]["from"]
    with pytest.raises(BrokerRefused, match="is settled: its messages were acked, and can't be read again"):
        Run(killed, **options).plan()


def test_limits_are_sparks_or_else_the_options(leveret, queue, options):
    publish(leveret.url, queue, [b"x" * 100] * 50)
    run = Run({}, **options, maxMessagesPerTrigger="20", maxBytesPerTrigger="500")
    assert run.reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert len(run.batch()) == 5
    assert len(run.batch(ReadMaxRows(7))) == 7
    assert len(run.batch(ReadMaxBytes(300))) == 3
    assert len(run.batch(ReadAllAvailable())) == 35


def test_available_now_takes_what_was_there_and_acks_it(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    checkpoint = {}
    Run(checkpoint, **options, maxMessagesPerTrigger="2").plan()
    run = Run(checkpoint, **options, maxMessagesPerTrigger="3")
    run.reader.prepareForTriggerAvailableNow()
    publish(leveret.url, queue, bodies(10, 15))
    found = []
    while rows := run.batch():
        found += taken(rows)
    assert found == bodies(0, 10)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (5, 0)


def test_commit_acks_too(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    run = Run({}, **options)
    run.batch()
    run.reader.commit(run.start())
    assert leveret.unacked(queue) == 0


def test_a_read_goes_on_when_its_wire_has_fallen_silent(leveret, queue, options, monkeypatch):
    """Nobody is told that it is cut, as by a firewall; it is asked more often here than it would be."""
    sooner = [(name, 500 if name.endswith("_ms") else value) for name, value in flight_calls._LIVENESS]
    monkeypatch.setattr(flight_calls, "_LIVENESS", sooner)
    sent = [b"%04d" % number + b"x" * 10_000 for number in range(6_000)]  # more than is under way at once
    publish(leveret.url, queue, sent)
    with Network([leveret.port, leveret.endpoint.port]) as network:
        run = Run({}, **options | {"url": leveret.url.replace("127.0.0.1", network.host)})
        (partition,) = run.plan()
        found = []
        for batch in run.executor.read(partition):
            if not found:
                network.fall_silent()
                before = network.connections
            found += batch.column("body").to_pylist()
        run.reader.stop()
        assert network.connections > before
    assert found == sent


def test_progress_shows_what_waits(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    run = Run({}, **options, maxMessagesPerTrigger="4")
    assert run.reader.reportLatestOffset() is None
    run.plan()
    planned = {name: value for name, value in run.checkpoint["planned"].items() if name != "from"}
    assert run.reader.reportLatestOffset() == planned | {"ready": 6}


def test_tasks_share_a_batch_evenly(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 10))
    run = Run({}, **options, minPartitions="4")
    partitions = run.plan()
    assert [partition.messages for partition in partitions] == [2, 3, 2, 3]
    assert taken(run.rows(partitions)) == bodies(0, 10)
    assert run.reader.partitions(run.start(), run.start()) == []


def test_messages_that_came_back_say_so(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 4))
    with BlockingConnection(leveret.url) as connection:
        for delivery in connection.consume(queue, prefetch=2, limit=2):
            delivery.nack(requeue=True)
    leveret.wait_until_depth(queue, 4)
    rows = Run({}, **options).batch()
    assert taken(rows) == bodies(0, 4)
    assert [row["redelivered"] for row in rows[2:]] == [False, False]
    assert any(row["redelivered"] and row["delivery_count"] for row in rows[:2])


def test_properties_come_when_they_are_asked_for(leveret, queue, options):
    publish(leveret.url, queue, [b"a"], content_type="text/plain", headers={"n": 1}, correlation_id="c")
    (row,) = Run({}, **options, includeProperties="true", decode="text").batch()
    assert (row["body"], row["content_type"], row["correlation_id"]) == ("a", "text/plain", "c")
    assert dict(row["headers"])["n"] == "1"


@pytest.mark.real
def test_nothing_is_lost_when_the_broker_restarts_between_any_two_calls(own_leveret):
    publish(own_leveret.url, "q", bodies(0, 20))
    run = Run({}, url=own_leveret.url, queue="q", cursor="lake", maxMessagesPerTrigger="8")
    found = []
    for _ in range(3):
        own_leveret.restart()
        partitions = run.plan()
        own_leveret.restart()
        found += taken(run.rows(partitions))
        run.commit()
    own_leveret.restart()
    assert run.batch() == []
    assert found == bodies(0, 20)
    assert (own_leveret.depth("q"), own_leveret.unacked("q")) == (0, 0)


@pytest.mark.real
def test_a_flight_process_that_was_killed_costs_nothing(own_leveret):
    publish(own_leveret.url, "q", bodies(0, 20))
    run = Run({}, url=own_leveret.url, queue="q", cursor="lake")
    run.start()
    os.kill(own_leveret.endpoint.pid, signal.SIGKILL)
    partitions = run.plan()
    os.kill(own_leveret.endpoint.pid, signal.SIGKILL)
    assert taken(run.rows(partitions)) == bodies(0, 20)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"queue": "other"}, "belongs to queue 'other', this query reads queue"),
        ({"cursor": "other"}, "belongs to cursor 'other', this query reads cursor 'lake'"),
        ({"vhost": "other"}, "belongs to vhost 'other'"),
        ({"log": 10**6}, "belongs to an earlier queue"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(leveret, queue, options, change, sentence):
    publish(leveret.url, queue, bodies(0, 3))
    run = Run({}, **options)
    run.checkpoint["committed"] = run.start() | change
    with pytest.raises(WrongCheckpoint, match=sentence):
        run.plan()
    assert leveret.depth(queue) == 3


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("change", [{"queue": "other"}, {"cursor": "other"}, {"log": 10**6}])
def test_the_query_whose_checkpoint_it_is_not_goes_on(leveret, queue, options, change, available_now):
    publish(leveret.url, queue, bodies(0, 3))
    right = Run({}, **options)
    partitions = right.plan()
    stranger = Run({"committed": right.checkpoint["committed"] | change}, **options, leaseTimeout="1s")
    if available_now:
        stranger.reader.prepareForTriggerAvailableNow()
    with pytest.raises(WrongCheckpoint):
        stranger.plan()
    assert taken(right.rows(partitions)) == bodies(0, 3)
    right.commit()
    assert right.batch() == []
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)


@pytest.mark.real
def test_a_checkpoint_of_a_queue_of_that_name_at_another_broker_is_refused(own_leveret, tmp_path):
    """Whose queue was declared as early, and is leased to a query of the same name."""
    with Broker(tmp_path / "other", flight=True) as other:
        for broker in (own_leveret, other):
            publish(broker.url, "q", bodies(0, 3))
        checkpoint = {}
        assert taken(Run(checkpoint, url=other.url, queue="q", cursor="lake").batch()) == bodies(0, 3)
        assert len(Run({}, url=own_leveret.url, queue="q", cursor="lake").plan()) == 1
        with pytest.raises(WrongCheckpoint, match=r"an earlier queue 'q', .*, or to one of another broker"):
            Run(checkpoint, url=own_leveret.url, queue="q", cursor="lake").plan()
        looking = {"queue": "q", "cursor": "lake", "ackMode": "none"}
        checkpoint = {"committed": Run({}, url=other.url, **looking).start()}
        with pytest.raises(WrongCheckpoint, match="or to one of another broker"):
            Run(checkpoint, url=own_leveret.url, **looking).plan()
    assert own_leveret.unacked("q") == 3


def test_a_checkpoint_of_another_kind_of_source_is_refused(leveret, queue, options):
    publish(leveret.url, queue, [])
    with pytest.raises(WrongCheckpoint, match="was not written by a query over a queue of Leveret"):
        Run({"committed": {"spool": 3}}, **options).plan()


def test_an_old_copy_of_a_checkpoint_can_not_bring_acked_messages_back(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 3))
    run = Run({}, **options)
    run.plan()
    old = dict(run.checkpoint)
    run.commit()
    run.batch()
    with pytest.raises(BrokerRefused, match="can't be read again, its messages are acked"):
        Run(old, **options).plan()


def test_a_query_that_was_away_too_long_is_told_if_others_took_of_its_batch_and_begins_anew(
    leveret, queue, options
):
    publish(leveret.url, queue, bodies(0, 3))
    run = Run({}, **options, leaseTimeout="50ms")
    run.plan()
    leveret.wait_until_depth(queue, 3)
    with BlockingConnection(leveret.url) as connection:
        for delivery in connection.consume(queue, prefetch=1, limit=1):
            with pytest.raises(BrokerRefused, match="its lease ran out"):
                run.plan()
            delivery.ack()
    leveret.wait_until_unacked(queue, 0)
    again = Run({}, **options)
    assert taken(again.batch()) == bodies(1, 3)
    assert again.batch() == []
    assert leveret.unacked(queue) == 0


@pytest.mark.parametrize("committed", [True, False])
def test_a_query_that_was_away_too_long_goes_on_if_nobody_took_of_its_batch(
    leveret, queue, options, committed
):
    publish(leveret.url, queue, bodies(0, 3))
    checkpoint = {}
    run = Run(checkpoint, **options, leaseTimeout="50ms")
    planned = run.rows(run.plan())
    if committed:
        run.commit()
    leveret.wait_until_depth(queue, 3)
    again = Run(checkpoint, **options)
    if not committed:
        assert again.rows(again.plan()) == planned
        again.commit()
    assert again.batch() == []
    assert (leveret.depth(queue), leveret.unacked(queue)) == (0, 0)


@pytest.mark.parametrize("committed", [True, False])
def test_a_query_that_was_ended_is_told_so_and_its_old_checkpoint_brings_nothing_twice(
    leveret, queue, options, committed
):
    publish(leveret.url, queue, bodies(0, 3))
    checkpoint = {}
    run = Run(checkpoint, **options)
    run.plan()
    if committed:
        run.commit()
    leveret.call(lambda: leveret.server.broker.vhosts["/"].queues[queue].queries().release("lake"))
    for _ in range(2):
        with pytest.raises(BrokerRefused, match="the query was ended at the broker"):
            Run(checkpoint, **options).plan()
        assert (leveret.depth(queue), leveret.unacked(queue)) == (3, 0)
    if not committed:  # of the first batch Spark asks again where it began
        with pytest.raises(BrokerRefused, match="the query was ended at the broker"):
            Run({"planned": checkpoint["planned"]}, **options).plan()
    assert taken(Run({}, **options).batch()) == bodies(0, 3)


def test_a_queue_that_does_not_exist_is_a_sentence(leveret):
    run = Run({}, url=leveret.url, queue="nowhere", cursor="c")
    with pytest.raises(BrokerRefused, match="no queue 'nowhere' in vhost '/'"):
        run.start()


def test_nothing_happens_before_the_first_call(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 3))
    first = Run({}, **options)
    first.plan()
    reader(**options)
    assert first.reader.latestOffset(first.start(), ReadAllAvailable()) == first.checkpoint["planned"]


def test_ack_mode_none_looks_and_leaves_everything_where_it_is(leveret, queue, options):
    publish(leveret.url, queue, bodies(0, 5))
    run = Run({}, **options, ackMode="none", maxMessagesPerTrigger="3")
    assert taken(run.batch()) == bodies(0, 3)
    assert taken(run.batch()) == bodies(3, 5)
    assert run.batch() == []
    publish(leveret.url, queue, bodies(5, 6))
    assert taken(run.batch()) == bodies(5, 6)
    assert (leveret.depth(queue), leveret.unacked(queue)) == (6, 0)
    assert taken(Run({}, **options).batch()) == bodies(0, 6)
