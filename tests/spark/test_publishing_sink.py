"""Writing to a broker that is not Leveret: a real RabbitMQ."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
import pytest

from leveret.spark.errors import BrokerAway
from leveret.spark.message_rows import BadValue
from leveret.spark.options import SinkOptions
from leveret.spark.publishing_sink import NotPublished, PublishStreamWriter, PublishWriter, producer_of
from leveret.spark.sink import Attempt, Staged
from tests.client.proxy import CONFIRM, PUBLISHED_BODY, How, Proxy, Where
from tests.processes import WAIT_S
from tests.spark.tasks import bodies, channel, declare, drained, run_task, schema_of, texts_in

pytestmark = pytest.mark.needs_rabbitmq


@pytest.fixture
def queue(rabbitmq, fresh):
    return declare(rabbitmq.url, fresh("queue"))


@pytest.fixture
def run(fresh):
    """A task of a query that this test has for itself."""
    return partial(run_task, query=fresh("query"))


def stream(broker, queue="", columns=bodies("x"), **more) -> PublishStreamWriter:  # noqa: B008  (never changed)
    said = {"url": broker.url, "routing_key": queue, "broker_timeout_s": 30.0, **more}
    return PublishStreamWriter(SinkOptions(**said), schema_of(columns))


def test_rows_arrive_with_all_their_properties(rabbitmq, queue, run):
    at = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
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
    columns["headers"] = pa.array([[("a", "1"), ("b", None)]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch(columns)

    assert run(stream(rabbitmq, columns=batch), [batch]).rows == 1

    ((found, body),) = drained(rabbitmq.url, queue)
    assert body == b"\x00\xff"
    assert {name: getattr(found, name) for name in names} == {name: f"its {name}" for name in names}
    assert (found.user_id, found.expiration, found.priority) == ("guest", "600000", 7)
    assert (found.delivery_mode, found.timestamp) == (1, int(at.timestamp()))
    assert found.headers.items() >= {"a": "1", "b": None}.items()


def test_bodies_that_say_they_are_compressed_are_left_as_they_are(rabbitmq, queue, run):
    batch = bodies(
        '{"a": 1}', content_type=pa.array(["application/json"]), content_encoding=pa.array(["gzip"])
    )
    run(stream(rabbitmq, queue, columns=batch), [batch])
    assert texts_in(rabbitmq.url, queue) == ['{"a": 1}']


def test_a_row_has_the_same_id_whenever_it_is_published(rabbitmq, queue, run):
    writer = stream(rabbitmq, queue)
    batches = [bodies(*map(str, range(5_000))), bodies("5000", "5001")]
    assert run(writer, batches, attempt=0).rows == 5_002
    first = drained(rabbitmq.url, queue)
    run(writer, batches, attempt=1)
    second = drained(rabbitmq.url, queue)
    ids = [properties.message_id for properties, _ in first]
    assert [body for _, body in first] == [str(n).encode() for n in range(5_002)]
    assert len(set(ids)) == 5_002
    assert [properties.message_id for properties, _ in second] == ids


@pytest.mark.parametrize("other", [{"batch": 1}, {"partition": 1}, {"query": "another"}])
def test_rows_of_other_tasks_have_other_ids(rabbitmq, queue, run, other):
    writer = stream(rabbitmq, queue)
    run(writer, [bodies("a")])
    run(writer, [bodies("a")], **other)
    (one, _), (two, _) = drained(rabbitmq.url, queue)
    assert one.message_id != two.message_id


def test_ids_of_rows_win_and_rows_without_get_one(rabbitmq, queue, run):
    batch = bodies("a", "b", message_id=pa.array(["mine", None]))
    run(stream(rabbitmq, queue, columns=batch), [batch])
    (one, _), (two, _) = drained(rabbitmq.url, queue)
    assert one.message_id == "mine"
    assert two.message_id.endswith("-0-0-0000000000000001")


def test_long_names_of_queries_make_short_ids():
    long = Attempt("q" * 300, 7, 3, 0)
    assert len(producer_of(long)) == 36
    assert (
        producer_of(long)
        == producer_of(Attempt("q" * 300, 7, 3, 1))
        != producer_of(Attempt("q" * 300, 8, 3, 0))
    )


def test_a_batch_write_has_ids_of_its_own(rabbitmq, queue):
    said = SinkOptions(url=rabbitmq.url, routing_key=queue)
    for _ in range(2):
        run_task(PublishWriter(said, schema_of(bodies("x"))), [bodies("a")])
    (one, _), (two, _) = drained(rabbitmq.url, queue)
    assert one.message_id != two.message_id


def test_a_task_without_rows_does_not_even_connect(run):
    writer = PublishStreamWriter(
        SinkOptions(url="amqp://localhost:1/", routing_key="q"), schema_of(bodies("x"))
    )
    assert run(writer, [bodies()]).rows == 0


# what fails a task


def test_a_row_that_no_queue_takes_fails_the_task(rabbitmq, queue, run):
    batch = bodies("a", "b", routing_key=pa.array([queue, "no such queue"]))
    with pytest.raises(NotPublished) as raised:
        run(stream(rabbitmq, columns=batch), [batch])
    for word in ("exchange ''", "'no such queue'", "unroutableExchange", "mandatory=false"):
        assert word in str(raised.value)


def test_rows_that_no_queue_takes_may_go_elsewhere_or_nowhere(rabbitmq, queue, run, fresh):
    side = fresh("exchange")
    with channel(rabbitmq.url) as declaring:
        declaring.exchange_declare(side, "fanout")
        declaring.queue_bind(queue, side)
    batch = bodies("a", "b", routing_key=pa.array([queue, "no such queue"]))
    run(stream(rabbitmq, columns=batch, unroutable_exchange=side), [batch])
    assert texts_in(rabbitmq.url, queue) == ["a", "b"]
    run(stream(rabbitmq, columns=batch, mandatory=False), [batch])
    assert texts_in(rabbitmq.url, queue) == ["a"]


def test_an_exchange_for_unroutable_rows_that_leads_nowhere_fails_the_task(rabbitmq, run, fresh):
    side = fresh("exchange")
    with channel(rabbitmq.url) as declaring:
        declaring.exchange_declare(side, "fanout")
    with pytest.raises(NotPublished, match=f"exchange '{side}' with routing key 'nowhere' leads to no queue"):
        run(stream(rabbitmq, "nowhere", unroutable_exchange=side), [bodies("a")])


def test_a_queue_that_refuses_fails_the_task(rabbitmq, run, fresh):
    full = declare(rabbitmq.url, fresh("queue"), **{"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(NotPublished, match="was refused"):
        run(stream(rabbitmq, full), [bodies("a", "b", "c")])


def test_an_exchange_that_is_not_there_fails_the_task(rabbitmq, run):
    with pytest.raises(NotPublished, match="no exchange 'missing'"):
        run(stream(rabbitmq, "k", exchange="missing"), [bodies("a")])


def test_a_value_that_can_not_be_sent_fails_the_task(rabbitmq, queue, run):
    batch = bodies("a", priority=pa.array([300]))
    with pytest.raises(BadValue, match="column 'priority' has the value 300"):
        run(stream(rabbitmq, queue, columns=batch), [batch])


@pytest.mark.parametrize("size_bytes", [131_072 - 60, 200_000])
def test_headers_that_do_not_fit_into_a_frame_fail_the_task(rabbitmq, queue, run, size_bytes):
    headers = pa.array([None, [("trace", "x" * size_bytes)]], pa.map_(pa.string(), pa.string()))
    batch = bodies("a", "b", headers=headers)
    with pytest.raises(BadValue, match=r"column 'headers' has the value .'trace': 'xxx") as raised:
        run(stream(rabbitmq, queue, columns=batch), [batch])
    assert "bytes, but a frame holds at most 131072" in str(raised.value)
    assert raised.value.hint == "what is large belongs into the body"
    assert len(str(raised.value)) < 300


def test_a_broker_that_is_away_fails_the_task_without_showing_the_password(run):
    said = SinkOptions(url="amqp://guest:secret@127.0.0.1:1/", routing_key="q", broker_timeout_s=0.2)
    with pytest.raises(BrokerAway, match="no broker answered at") as raised:
        run(PublishStreamWriter(said, schema_of(bodies("x"))), [bodies("a")])
    assert "secret" not in str(raised.value)


# a wire that is cut

ROWS = [[f"{part}-{number}" for number in range(1_000)] for part in range(3)]


def batches_of(parts: list[list[str]]) -> list[pa.RecordBatch]:
    return [bodies(*rows) for rows in parts]


def expected(query: str) -> set[tuple[str, str]]:
    """Each of these rows with the id that it has whenever it is published."""
    rows = [row for part in ROWS for row in part]
    return {(f"{query}-0-0-{number:016x}", row) for number, row in enumerate(rows)}


@pytest.mark.parametrize("where", list(Where))
@pytest.mark.parametrize(
    ("kind", "numbers"), [(PUBLISHED_BODY, (500, 2_900)), (CONFIRM, (1, 2))], ids=["rows", "confirms"]
)
def test_a_task_whose_wire_is_cut_ends_well_and_no_row_is_lost(rabbitmq, queue, fresh, kind, numbers, where):
    query = fresh("query")
    with Proxy(rabbitmq.url) as proxy:
        faults = [proxy.plan(kind, number, where) for number in numbers]
        assert run_task(stream(proxy, queue), batches_of(ROWS), query=query).rows == 3_000
        assert all(fault.wait() for fault in faults)
        assert proxy.connections > len(faults)
    found = drained(rabbitmq.url, queue)
    assert {(properties.message_id, body.decode()) for properties, body in found} == expected(query)


def test_rows_are_under_way_before_the_first_is_confirmed(rabbitmq, queue, fresh):
    query = fresh("query")
    with Proxy(rabbitmq.url) as proxy, ThreadPoolExecutor(1) as task:
        stalled = proxy.plan(CONFIRM, how=How.STALL)
        patient = stream(proxy, queue, broker_timeout_s=180.0)
        ran = task.submit(run_task, patient, batches_of(ROWS[:1]), query=query)
        try:
            assert proxy.wait_for(PUBLISHED_BODY, len(ROWS[0]), timeout_s=60)
            assert stalled.wait(WAIT_S)
        finally:
            proxy.cut()
        assert ran.result().rows == len(ROWS[0])


@pytest.mark.full
def test_a_task_that_failed_because_its_wire_stayed_cut_is_run_again(rabbitmq, queue, fresh):
    query = fresh("query")
    with Proxy(rabbitmq.url) as proxy, ExitStack() as away:

        def batches():
            first, *others = batches_of(ROWS)
            yield first
            away.enter_context(proxy.refusing())
            proxy.plan(PUBLISHED_BODY, 500, Where.AFTER)
            yield from others

        with pytest.raises(NotPublished, match="is lost"):
            run_task(stream(proxy, queue, broker_timeout_s=10.0), batches(), query=query, attempt=0)
        away.close()
        run_task(stream(proxy, queue), batches_of(ROWS), query=query, attempt=1)
    found = drained(rabbitmq.url, queue)
    assert len(found) >= 4_000, "what the first attempt has published stays"
    assert {(properties.message_id, body.decode()) for properties, body in found} == expected(query)


# the driver


def test_a_commit_has_nothing_to_do(rabbitmq, queue, run):
    writer = stream(rabbitmq, queue)
    writer.commit([run(writer, [bodies("a")]), None], 0)
    writer.abort([None], 1)
    assert texts_in(rabbitmq.url, queue) == ["a"]


def test_a_commit_of_what_was_staged_on_leveret_is_refused(rabbitmq, queue):
    with pytest.raises(BrokerAway, match="batch 4 was staged on a Leveret"):
        stream(rabbitmq, queue).commit([Staged("q", 4, ("s",), 1)], 4)


# on Spark


def test_a_dataframe_and_a_stream_are_written(spark, rabbitmq, queue, tmp_path):
    rows = spark.range(0, 3_000, 1, 3).selectExpr("cast(id AS string) AS body", "map('a', 'b') AS headers")
    said = {"url": rabbitmq.url, "routingKey": queue}
    rows.write.format("leveret").mode("append").options(**said).save()
    found = drained(rabbitmq.url, queue)
    assert sorted(int(body) for _, body in found) == list(range(3_000))
    assert len({properties.message_id for properties, _ in found}) == 3_000

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\n")
    lines = spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "body")
    writing = lines.writeStream.format("leveret").options(**said).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    found = drained(rabbitmq.url, queue)
    ids = [properties.message_id for properties, _ in found]
    assert [body for _, body in found] == [b"one", b"two"]
    assert ids == [f"{query.id}-0-0-{number:016x}" for number in (0, 1)]
