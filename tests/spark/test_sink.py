"""Writing to Leveret: rows show when their batch is committed, once, whatever was tried before."""

import datetime
import os
import signal
import time
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.functions import lit

from leveret.spark import sink
from leveret.spark.endpoint import find
from leveret.spark.errors import BrokerAway, BrokerRefused, SparkSideError
from leveret.spark.flight_calls import Calls
from leveret.spark.message_rows import BadValue
from leveret.spark.options import SinkOptions
from leveret.spark.sink import StageStreamWriter, StageWriter
from tests.spark.sink_driver import START_S, driver, wait_for_file
from tests.spark.tasks import bodies, channel, declare, drained, run_task, schema_of, task, texts_in


@pytest.fixture
def queue(leveret, fresh):
    return declare(leveret.url, fresh("queue"))


@pytest.fixture
def run(fresh):
    """A task of a query that this test has for itself."""
    return partial(run_task, query=fresh("query"))


def options(broker, queue="", **more) -> SinkOptions:
    return SinkOptions(**{"url": broker.url, "routing_key": queue, "broker_timeout_s": 30.0, **more})


def stream(broker, queue="", **more) -> StageStreamWriter:
    said = options(broker, queue, **more)
    return StageStreamWriter(said, schema_of(bodies("x")), find(said))


# what arrives


def test_rows_show_when_their_batch_is_committed(leveret, queue, run):
    writer = stream(leveret, queue)
    first = run(writer, [bodies("a", "b"), bodies("c")], partition=0)
    second = run(writer, [bodies("d")], partition=1)
    assert leveret.depth(queue) == 0

    writer.commit([first, second], 0)

    assert (first.rows, second.rows) == (3, 1)
    assert texts_in(leveret.url, queue) == ["a", "b", "c", "d"]


def test_rows_arrive_with_all_their_properties(leveret, queue, run):
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    text_map = pa.map_(pa.string(), pa.string())
    names = ("message_id", "correlation_id", "content_type", "content_encoding", "reply_to", "type", "app_id")
    row = {
        "exchange": "",
        "routing_key": queue,
        "body": b"\x00\xff",
        **{name: f"its {name}" for name in names},
        "user_id": "guest",
        "expiration": "600000",
        "timestamp": at,
        "priority": 7,
        "delivery_mode": 1,
    }
    columns = {name: pa.array([value]) for name, value in row.items()}
    columns["headers"] = pa.array([[("a", "1"), ("b", None)]], text_map)
    columns["properties"] = pa.array([[("cluster_id", "c")]], text_map)
    batch = pa.record_batch(columns)
    said = options(leveret)
    writer = StageStreamWriter(said, schema_of(batch), find(said))

    writer.commit([run(writer, [batch])], 0)

    ((found, body),) = drained(leveret.url, queue)
    assert body == b"\x00\xff"
    assert {name: getattr(found, name) for name in names} == {name: f"its {name}" for name in names}
    assert (found.user_id, found.expiration, found.priority) == ("guest", "600000", 7)
    assert (found.delivery_mode, found.timestamp, found.cluster_id) == (1, int(at.timestamp()), "c")
    assert found.headers == {"a": "1", "b": None}


def test_many_rows_go_through_in_slices_and_parts(leveret, queue, monkeypatch, run):
    monkeypatch.setattr(sink, "_PART_BYTES", 1 << 20)
    writer = stream(leveret, queue)
    values = [f"{n:0100}" for n in range(30_000)]
    staged = run(writer, [bodies(*values[start : start + 10_000]) for start in (0, 10_000, 20_000)])
    assert staged.rows == 30_000
    assert len(staged.stages) > 2
    writer.commit([staged], 0)
    leveret.wait_until_depth(queue, 30_000)


# once


def test_a_batch_that_is_run_again_leaves_no_duplicates(leveret, queue, run):
    for _ in range(2):
        writer = stream(leveret, queue)
        writer.commit([run(writer, [bodies("a", "b")])], 0)
    writer.commit([run(writer, [bodies("c")], batch=1)], 1)
    assert texts_in(leveret.url, queue) == ["a", "b", "c"]


def test_a_batch_that_was_committed_before_is_said_to_be_in_the_log(leveret, queue, caplog, run):
    writer = stream(leveret, queue)
    staged = run(writer, [bodies("a")])
    writer.commit([staged], 0)
    assert not caplog.records
    writer.commit([staged], 0)
    assert [record.event for record in caplog.records] == ["batch_known"]
    assert texts_in(leveret.url, queue) == ["a"]


def test_attempts_that_the_driver_does_not_know_leave_nothing(leveret, queue, run):
    writer = stream(leveret, queue)
    run(writer, [bodies("speculative")], attempt=0)
    chosen = run(writer, [bodies("chosen")], attempt=1)
    writer.commit([chosen], 0)
    run(writer, [bodies("too late")], attempt=2)
    assert texts_in(leveret.url, queue) == ["chosen"]


def test_a_driver_that_dies_before_its_commit_leaves_nothing_to_the_next(leveret, queue, run):
    dead = stream(leveret, queue)
    forgotten = run(dead, [bodies("a", "b")])
    writer = stream(leveret, queue)
    writer.commit([run(writer, [bodies("a", "b")])], 0)
    dead.commit([forgotten], 0)  # it was not dead after all
    assert texts_in(leveret.url, queue) == ["a", "b"]


def test_an_aborted_batch_leaves_nothing_and_can_be_run_again(leveret, queue, run):
    writer = stream(leveret, queue)
    staged = run(writer, [bodies("a")])
    writer.abort([staged, None], 0)
    with pytest.raises(BrokerRefused, match="is not there"):
        writer.commit([staged], 0)
    writer.commit([run(writer, [bodies("a")])], 0)
    assert texts_in(leveret.url, queue) == ["a"]


def test_an_abort_spares_what_another_run_of_the_query_has_staged(leveret, queue, run):
    old, new = stream(leveret, queue), stream(leveret, queue)
    of_old, of_new = run(old, [bodies("a")]), run(new, [bodies("a")])
    old.abort([of_old, None], 0)
    old.abort([None], 0)
    new.commit([of_new], 0)
    assert texts_in(leveret.url, queue) == ["a"]


def test_a_task_that_fails_takes_back_what_it_had_staged(leveret, queue, monkeypatch, run):
    monkeypatch.setattr(sink, "_PART_BYTES", 1)
    said = options(leveret, "unused")
    keys = [bodies("good", routing_key=pa.array([queue])), bodies("bad", routing_key=pa.array(["k" * 300]))]
    writer = StageStreamWriter(said, schema_of(keys[0]), find(said))
    with pytest.raises(BadValue, match="column 'routing_key' has the value 'kkk"):
        run(writer, keys)
    assert leveret.call(lambda: leveret.server.broker.vhosts["/"].queues[queue].hidden) == 0


def test_a_task_that_fails_at_its_first_row_spares_the_stages_of_others(leveret, queue, run):
    said = options(leveret, queue)
    bad = bodies("bad", priority=pa.array([300]))
    writer = StageStreamWriter(said, schema_of(bad), find(said))
    good = run(writer, [bodies("good", priority=pa.array([3]))], partition=0)
    with pytest.raises(BadValue):
        run(writer, [bad], partition=1)
    writer.commit([good], 0)
    assert texts_in(leveret.url, queue) == ["good"]


# identity


def test_the_option_query_name_is_the_identity_of_a_query(leveret, queue, fresh, run):
    writer = stream(leveret, queue, query_name=fresh("query"))
    first = run(writer, [bodies("a")], query="of one checkpoint")
    writer.commit([first], 0)
    writer.commit([run(writer, [bodies("a")], query="of another checkpoint")], 0)
    assert texts_in(leveret.url, queue) == ["a"]


def test_batches_without_rows_are_committed_too(leveret, queue, run):
    writer = stream(leveret, queue)
    empty = run(writer, [bodies(), bodies()], batch=3)
    assert (empty.stages, empty.rows) == ((), 0)
    writer.commit([empty], 3)
    late = run(writer, [bodies("a")], batch=3)
    writer.commit([late], 3)
    assert leveret.depth(queue) == 0


def test_a_batch_without_tasks_has_nothing_to_commit(leveret, queue):
    stream(leveret, queue).commit([], 0)
    stream(leveret, queue, query_name="named").commit([], 0)


def test_a_task_that_is_not_told_its_query_says_so(leveret, queue):
    writer = stream(leveret, queue)
    with task(), pytest.raises(SparkSideError, match="did not tell this task its query and batch"):
        writer.write(iter([bodies("a")]))
    with pytest.raises(SparkSideError, match="written by a task of Spark"):
        writer.write(iter([bodies("a")]))


def test_a_batch_write_is_a_query_of_its_own(leveret, queue, run):
    said = options(leveret, queue, query_name="nightly")
    for _ in range(2):
        writer = StageWriter(said, schema_of(bodies("x")), find(said))
        writer.commit([run(writer, [bodies("a")])])
    assert texts_in(leveret.url, queue) == ["a", "a"]


def test_an_aborted_batch_write_leaves_nothing(leveret, queue, run):
    said = options(leveret, queue)
    writer = StageWriter(said, schema_of(bodies("x")), find(said))
    staged = run(writer, [bodies("a")])
    run(writer, [bodies("of a task that was killed")], partition=1)
    writer.abort([staged, None])
    run(writer, [bodies("of a task that has not heard of it")], partition=2)
    assert leveret.call(lambda: leveret.server.broker.vhosts["/"].queues[queue].hidden) == 0
    assert texts_in(leveret.url, queue) == []


def test_a_batch_write_that_is_given_up_after_its_commit_came_through_says_so(leveret, queue, run, caplog):
    said = options(leveret, queue)
    writer = StageWriter(said, schema_of(bodies("x")), find(said))
    staged = run(writer, [bodies("a")])
    writer.commit([staged])  # and its answer is lost
    writer.abort([staged])
    assert "its rows are visible. Look before you write them again" in caplog.text
    assert texts_in(leveret.url, queue) == ["a"]


def test_a_task_that_is_slow_is_not_given_up_because_its_calls_were_ended_meanwhile(
    leveret, queue, fresh, monkeypatch
):
    """gRPC ends calls in which nothing came for minutes; the broker was there all the time."""
    monkeypatch.setattr(sink, "_PAUSE_S", 0.0)
    now_s = [0.0]
    stage, ended = Calls.stage, []

    def ended_meanwhile(calls: Calls, descriptor: Any, part: Any) -> int:
        for number, _ in enumerate(part):
            if number > len(ended) and len(ended) < 3:
                now_s[0] += 200.0
                ended.append(number)
                raise BrokerAway("too many pings")
        return stage(calls, descriptor, part)

    monkeypatch.setattr(Calls, "stage", ended_meanwhile)
    said = options(leveret, queue)
    staging = sink._Staging(said, find(said), sink.Attempt(fresh("query"), 0, 0, 0), clock=lambda: now_s[0])
    staged = staging.run(bodies(str(number)) for number in range(6))
    stream(leveret, queue).commit([staged], 0)
    assert len(ended) == 3
    assert texts_in(leveret.url, queue) == [str(number) for number in range(6)]


# rows that no queue takes


def test_a_row_that_no_queue_takes_fails_the_batch(leveret, queue, run):
    writer = stream(leveret, "no such queue")
    with pytest.raises(BrokerRefused) as raised:
        run(writer, [bodies("a")])
    assert raised.value.kind == "unroutable"
    for word in ("exchange ''", "'no such queue'", "unroutableExchange", "mandatory=false"):
        assert word in str(raised.value)


def test_rows_that_no_queue_takes_may_go_elsewhere_or_nowhere(leveret, queue, fresh, run):
    side = fresh("exchange")
    with channel(leveret.url) as declaring:
        declaring.exchange_declare(side, "fanout")
        declaring.queue_bind(queue, side)
    writer = stream(leveret, "no such queue", unroutable_exchange=side)
    writer.commit([run(writer, [bodies("a")])], 0)
    assert texts_in(leveret.url, queue) == ["a"]
    writer = stream(leveret, "no such queue", mandatory=False)
    writer.commit([run(writer, [bodies("b")], batch=1)], 1)
    assert leveret.depth(queue) == 0


# a broker that goes away


def test_a_broker_that_restarts_gets_the_part_again(own_leveret, run):
    queue = declare(own_leveret.url, "orders")

    def batches():
        yield bodies("a")
        own_leveret.restart()
        yield bodies("b")

    writer = stream(own_leveret, queue)
    staged = run(writer, batches())
    assert len(staged.stages) == 1
    writer.commit([staged], 0)
    assert texts_in(own_leveret.url, queue) == ["a", "b"]


def test_a_flight_process_that_dies_is_waited_for(own_leveret, run):
    queue = declare(own_leveret.url, "orders")

    def batches():
        yield bodies("a")
        os.kill(own_leveret.endpoint.pid, signal.SIGKILL)
        yield bodies("b")

    writer = stream(own_leveret, queue)
    staged = run(writer, batches())
    os.kill(own_leveret.endpoint.pid, signal.SIGKILL)
    writer.commit([staged], 0)
    assert texts_in(own_leveret.url, queue) == ["a", "b"]


def test_a_bad_row_fails_the_task_also_when_the_broker_goes_away_at_the_same_time(own_leveret, run):
    queue = declare(own_leveret.url, "orders")

    def batches():
        yield bodies("a")
        os.kill(own_leveret.endpoint.pid, signal.SIGKILL)
        time.sleep(0.5)  # the connection is known to be broken
        yield pa.table({"body": pa.array([None], pa.binary())}).to_batches()[0]
        yield bodies("c")

    with pytest.raises(BadValue, match="body"):
        run(stream(own_leveret, queue), batches())
    assert own_leveret.depth(queue) == 0


@pytest.mark.parametrize("error", [OSError("the JVM is gone"), BadValue("column 'body' has no value")])
def test_rows_that_do_not_come_fail_the_task_whatever_the_broker_does(monkeypatch, run, leveret, error):
    def away(self, descriptor, batches):
        try:
            return sum(batch.num_rows for batch in batches)
        except Exception:  # noqa: BLE001  # as a broken call would hide any error
            raise BrokerAway("broken pipe") from None

    def batches():
        yield bodies("a")
        raise error

    monkeypatch.setattr(sink.Calls, "stage", away)
    with pytest.raises(type(error)) as failed:
        run(stream(leveret, "orders"), batches())
    assert failed.value is error


@pytest.mark.parametrize("error", [OSError("the JVM is gone"), pa.ArrowInvalid("no such batch")])
def test_what_the_rows_source_raises_is_not_blamed_on_the_broker(run, leveret, queue, error):
    def batches():
        yield bodies("a")
        raise error

    with pytest.raises(type(error)) as failed:
        run(stream(leveret, queue), batches())
    assert failed.value is error


def test_a_broker_that_does_not_come_back_fails_the_task(own_leveret, run):
    writer = stream(own_leveret, declare(own_leveret.url, "orders"), broker_timeout_s=0.3)
    own_leveret.stop()
    with pytest.raises(BrokerAway, match=r"no broker answered|did not answer"):
        run(writer, [bodies("a")])


# on Spark


def written(rows, broker, queue, **more):
    return rows.write.format("leveret").mode("append").options(url=broker.url, routingKey=queue, **more)


def test_a_dataframe_is_written(spark, leveret, queue):
    rows = spark.range(0, 5_000, 1, 3).selectExpr(
        "cast(id AS string) AS body",
        "concat('id-', id) AS message_id",
        "map('n', cast(id AS string)) AS headers",
    )
    written(rows, leveret, queue).save()
    found = drained(leveret.url, queue)
    assert sorted(int(body) for _, body in found) == list(range(5_000))
    for properties, body in found[:100]:
        assert properties.message_id == f"id-{body.decode()}"
        assert properties.headers == {"n": body.decode()}


def test_what_was_read_can_be_written_as_it_is(spark, leveret, queue, fresh):
    other = declare(leveret.url, fresh("queue"))
    columns = ["'x' AS body", "'m' AS message_id", "map('a', 'b') AS headers", "'reply' AS reply_to"]
    written(spark.range(1).selectExpr(*columns), leveret, queue).save()
    reading = spark.read.format("leveret").options(url=leveret.url, queue=queue, includeProperties="true")
    rows = reading.load().withColumn("routing_key", lit(other))
    written(rows, leveret, "unused").save()
    ((found, body),) = drained(leveret.url, other)
    assert (body, found.message_id, found.headers, found.reply_to) == (b"x", "m", {"a": "b"}, "reply")


def test_a_dataframe_that_a_queue_has_no_room_for_is_not_written(spark, leveret, fresh):
    queue = declare(leveret.url, fresh("queue"), **{"x-max-length": 100, "x-overflow": "reject-publish"})

    rows = spark.range(0, 102, 1, 2).selectExpr("cast(id AS string) AS body")
    with pytest.raises(Exception, match=f"queue '{queue}' in vhost '/' is full and refuses"):
        written(rows, leveret, queue).save()
    assert leveret.depth(queue) == 0
    written(rows.limit(100), leveret, queue).save()
    assert leveret.depth(queue) == 100


def test_a_dataframe_whose_task_fails_leaves_nothing(spark, leveret, queue):
    rows = spark.range(0, 100, 1, 4).selectExpr(
        "cast(id AS string) AS body", "if(id = 99, raise_error('broken'), 1) AS priority"
    )
    with pytest.raises(Exception, match="broken"):
        written(rows, leveret, queue).save()
    assert leveret.depth(queue) == 0
    assert leveret.call(lambda: leveret.server.broker.vhosts["/"].queues[queue].hidden) == 0


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("id", "column 'id' means nothing for a message"),
        ("'k' AS routing_key", "there is no column 'body'; the columns are: routing_key"),
        ("struct(id) AS body", "column 'body' is struct<id:bigint>, but must be binary or string"),
    ],
)
def test_columns_that_make_no_messages_are_refused_on_the_driver(spark, leveret, queue, columns, sentence):
    with pytest.raises(AnalysisException) as raised:
        written(spark.range(1).selectExpr(columns), leveret, queue).save()
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["body", "queue AS boddy"], {"routingKey": "k"}, "column 'boddy' means nothing for a message"),
        (["routing_key"], {"routingKey": "k"}, "there is no column 'body'"),
        (["body"], {"routingKey": "k", "mandatroy": "no"}, "the sink has no option 'mandatroy'"),
        (["body"], {"exchange": "missing"}, "no exchange 'missing' in vhost '/'"),
    ],
)
def test_what_the_sink_refuses_of_a_stream_is_not_acked(
    spark, leveret, queue, tmp_path, columns, options, sentence
):
    with channel(leveret.url) as publishing:
        publishing.basic_publish("", queue, b"x")
    source = {"url": leveret.url, "queue": queue, "cursor": "forward"}
    rows = spark.readStream.format("leveret").options(**source).load().selectExpr(*columns)
    place = {"checkpointLocation": str(tmp_path / "checkpoint")}
    writing = rows.writeStream.format("leveret").options(url=leveret.url, **options, **place)
    with pytest.raises((AnalysisException, StreamingQueryException)) as raised:
        writing.trigger(availableNow=True).start().awaitTermination(60)
    assert sentence in str(raised.value)
    assert leveret.depth(queue) + leveret.unacked(queue) == 1
    assert not list((tmp_path / "checkpoint").glob("commits/[0-9]*"))


def test_an_exchange_that_goes_while_a_batch_is_written_keeps_nothing_from_being_committed(
    spark, leveret, queue, fresh, tmp_path
):
    """Its rows are where they were to go: here the exchange for others is deleted by the task."""
    side, url = fresh("exchange"), leveret.url
    with channel(url) as declaring:
        declaring.exchange_declare(side, "fanout")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb\n")

    def and_delete(batches):
        for batch in batches:
            with channel(url) as deleting:
                deleting.exchange_delete(side)
            yield batch

    rows = spark.readStream.text(str(tmp_path / "in")).selectExpr("value AS body")
    rows = rows.mapInArrow(and_delete, "body STRING")
    options = {"url": url, "routingKey": queue, "unroutableExchange": side}
    place = {"checkpointLocation": str(tmp_path / "checkpoint")}
    writing = rows.writeStream.format("leveret").options(**options, **place)
    assert writing.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(texts_in(url, queue)) == ["a", "b"]


def test_nothing_is_overwritten(spark, leveret, queue):
    rows = spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(AnalysisException, match="can't be overwritten"):
        written(rows, leveret, queue).mode("overwrite").save()


@pytest.mark.full
@pytest.mark.needs_java
@pytest.mark.timeout(700)  # three drivers, one after the other: 50 s each where two cores are shared by ten
def test_a_driver_killed_around_its_commits_has_written_every_row_once(leveret, queue, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("".join(f"{n}\n" for n in range(500)))
    job = {
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"url": leveret.url, "routingKey": queue},
    }
    for hold, visible in (("before", 0), ("after", 500)):
        held = tmp_path / hold
        with driver({**job, "hold": hold, "held": str(held)}) as killed:
            wait_for_file(held, killed)
        assert leveret.depth(queue) == visible
    (tmp_path / "in" / "2.txt").write_text("".join(f"{n}\n" for n in range(500, 700)))

    with driver(job) as running:
        assert running.wait(START_S) == 0

    assert sorted(map(int, texts_in(leveret.url, queue))) == list(range(700))
