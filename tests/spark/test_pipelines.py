"""Pipelines as queries of Spark: rows into tables, what fails to the rejects, each message in one place."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count

import msgspec
import pika
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.pipelines import BadPipeline, Pipeline, rejects, running
from leveret.spark.pipelines.checkpoint_files import Status
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.spark.pipelines.spark_failures import first_cause
from leveret.storage.journal import Entry, Kind, Outcome
from leveret.testing.broker import Broker
from tests.spark.queues import publish

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

numbers = count()
SCHEMA = "id LONG NOT NULL, customer STRING, amount DOUBLE"
MORE = "has more behind its first object"
BAD = [
    (b"{nope", "parse", None, "is not JSON, or does not fit the schema"),
    (b"", "parse", None, "is not JSON, or does not fit the schema"),
    (b"null", "parse", None, "is not JSON, or does not fit the schema"),
    (b"[1]", "parse", None, "is not JSON, or does not fit the schema"),
    (b"\xff\xfe", "parse", None, "is not JSON, or does not fit the schema"),
    (b'{"id":"x1","amount":1}', "parse", "id", "is not JSON, or does not fit the schema"),
    (b'{"amount":1}', "parse", "id", "is null or missing"),
    (b'{"id":5,"amount":-3}', "input", "amount", "does not hold: amount > 0"),
    (b'{"id":6}', "input", "amount", "does not hold: amount > 0"),
    (b'{"id":7,"amount":1}{"id":8,"amount":1}', "parse", None, MORE),
    (b'{"id":7,"amount":1}\n{"id":8,"amount":1}\n', "parse", None, MORE),
    (b'{"id":7,"amount":1},{"id":8,"amount":1}', "parse", None, MORE),
    (b'{"id":7,"amount":1} and so on', "parse", None, MORE),
    (b'{"id":7,"amount":1}}', "parse", None, MORE),
    (b'{"id":7,"amount":1}]', "parse", None, MORE),
    (b'[{"id":7,"amount":1}]', "parse", None, "is not JSON, or does not fit the schema"),
]


def order(number: int, amount: float | None = None) -> bytes:
    value = {"id": number, "customer": f"c{number % 7}", "amount": number + 1 if amount is None else amount}
    return json.dumps(value).encode()


class Place:
    """A queue, one for rejects, a table, and a pipeline in between."""

    def __init__(self, spark: SparkSession, broker: Broker, name: str, path) -> None:
        self.spark = spark
        self.broker = broker
        self.queue = name
        self.path = path
        publish(broker.url, self.rejected, [])

    @property
    def rejected(self) -> str:
        return f"{self.queue}.rejected"

    def declared(self, more: str = "", **source: object) -> Declaration:
        options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in source.items())
        text = f"""
            name = "{self.queue}"
            checkpoint = "{self.path}/checkpoint"
            [source]
            url = "{self.broker.url}"
            queue = "{self.queue}"
            {options}
            [parse]
            schema = "{SCHEMA}"
            [[expectations]]
            that = "amount > 0"
            [rejects]
            routing_key = "{self.rejected}"
            {more}
            [[sinks]]
            name = "table"
            path = "{self.path}/table"
        """
        found = parse(text, file="pipeline.toml")
        check(found)
        return found

    def run(self, declared: Declaration) -> None:
        query, _ = running.start(self.spark, declared, once=True)
        query.awaitTermination()

    def ids(self, table: str = "table") -> list[int]:
        return sorted(row.id for row in self.spark.read.parquet(f"{self.path}/{table}").collect())

    def take_rejects(self) -> list[tuple[bytes, dict]]:
        found = []
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        channel = connection.channel()
        while (got := channel.basic_get(self.rejected, auto_ack=True))[0] is not None:
            found.append((got[2], got[1].headers))
        connection.close()
        return found


@pytest.fixture
def place(spark, leveret, tmp_path) -> Place:
    return Place(spark, leveret, f"orders{next(numbers)}", tmp_path)


def test_good_rows_are_in_the_table_and_bad_ones_among_the_rejects_with_their_reasons(place):
    good = [order(number) for number in range(100)]
    publish(place.broker.url, place.queue, [*good[:50], *(body for body, *_ in BAD), *good[50:]])
    place.run(place.declared(max_messages=40))
    assert place.ids() == list(range(100))
    found = place.take_rejects()
    said = [
        (body, headers["x-reject-step"], headers.get("x-reject-column"), headers["x-reject-reason"])
        for body, headers in found
    ]
    assert sorted(said, key=str) == sorted(BAD, key=str)
    offsets = [int(headers["x-reject-offset"]) for _, headers in found]
    assert sorted(offsets) == list(range(50, 50 + len(BAD)))
    assert {headers["x-reject-pipeline"] for _, headers in found} == {place.queue}
    assert (place.broker.depth(place.queue), place.broker.unacked(place.queue)) == (0, 0)


def test_a_table_says_which_message_a_row_was(place):
    """However its body is written."""
    plain = [order(number) for number in range(2)]
    nested = [b'{"id":2,"amount":1,"more":{"a":[{},{}]}}', b' {"id":3,"amount":1,"customer":"}{"}\n\n']
    publish(place.broker.url, place.queue, [*plain, *nested, b"{'id':4,'amount':1,\n'x':{'y':1}}\r\n"])
    place.run(place.declared())
    rows = place.spark.read.parquet(f"{place.path}/table").collect()
    assert sorted((row.id, row._queue, row._partition, row._offset, row._batch) for row in rows) == [
        (number, place.queue, 0, number, 0) for number in range(5)
    ]


STEPS = """
    [[steps]]
    name = "priced"
    sql = "SELECT *, amount * 2 AS price FROM input"
    [[steps]]
    name = "totals"
    sql = "SELECT customer AS id, sum(price) AS price FROM priced GROUP BY customer"
    [[expectations]]
    step = "priced"
    that = "price < 100"
    reason = "is too dear"
    [[sinks]]
    name = "totals"
    from = "totals"
    path = "{path}/totals"
    [[sinks]]
    name = "priced"
    from = "priced"
    path = "{path}/priced"
"""


def test_what_fails_at_a_step_is_in_none_of_the_tables(place):
    publish(place.broker.url, place.queue, [order(number) for number in range(60)])
    place.run(place.declared(STEPS.format(path=place.path)))
    assert place.ids("priced") == list(range(49))
    totals = place.spark.read.parquet(f"{place.path}/totals").collect()
    assert sum(row.price for row in totals) == sum(2 * (number + 1) for number in range(49))
    found = place.take_rejects()
    assert len(found) == 11
    assert {(headers["x-reject-step"], headers["x-reject-reason"]) for _, headers in found} == {
        ("priced", "is too dear")
    }


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("max_count = 2", "3 messages of a batch are rejected"),
        ("max_share = 0.02", "3 of 13 messages of this run"),
    ],
)
def test_too_many_rejects_stop_it_and_nothing_is_settled(place, limit, sentence):
    good = [order(number) for number in range(10)]
    publish(place.broker.url, place.queue, [*good, b"", b"x", b"y"])
    declared = place.declared(limit)
    with pytest.raises(StreamingQueryException) as caught:
        place.run(declared)
    assert sentence in first_cause(caught.value)
    assert place.take_rejects() == []
    assert place.broker.unacked(place.queue) == 13
    place.run(place.declared())
    assert place.ids() == list(range(10))
    assert len(place.take_rejects()) == 3


@pytest.mark.sample(every=3)
@pytest.mark.parametrize("phase", ["publish", "settle", "after"])
def test_a_batch_that_runs_again_leaves_every_message_in_one_place(place, monkeypatch, phase):
    """It ends before its rejects are published, before they are settled, or just before Spark commits it."""
    good = [order(number) for number in range(20)]
    publish(place.broker.url, place.queue, [*good, *(body for body, *_ in BAD)])
    with monkeypatch.context() as patch:
        _fail_at(patch, phase)
        with pytest.raises(StreamingQueryException, match="pulled the plug"):
            place.run(place.declared())
    place.run(place.declared())
    assert place.ids() == list(range(20))
    assert sorted(body for body, _ in place.take_rejects()) == sorted(body for body, *_ in BAD)
    assert (place.broker.depth(place.queue), place.broker.unacked(place.queue)) == (0, 0)


def _fail_at(patch: pytest.MonkeyPatch, phase: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("pulled the plug")

    if phase == "after":
        settle = rejects.settle
        patch.setattr(rejects, "settle", lambda *given: (settle(*given), fail()))
    else:
        patch.setattr(rejects, phase, fail)


def test_rejected_messages_are_settled_as_that(place):
    publish(place.broker.url, place.queue, [order(1), b"x", order(2)])
    place.run(place.declared())

    def settled() -> list[tuple[int, list[tuple[int, int]]]]:
        journal = place.broker.server.broker.vhosts["/"].queues[place.queue].cursor.journal
        entries = [Entry.of(record) for record in journal.read([(journal.first, journal.next)])]
        return [(each.outcome, list(each.ranges)) for each in entries if each.kind == Kind.SETTLED]

    assert place.broker.call(settled) == [
        (Outcome.SENT_TO_REJECTS, [(1, 2)]),
        (Outcome.ACKED, [(0, 1), (2, 3)]),
    ]


def test_a_schema_that_is_not_given_is_that_of_the_first_run(place):
    publish(place.broker.url, place.queue, [order(1), b'{"id": 2, "amount": 5, "more": {"a": [1]}}'])
    declared = place.declared()
    declared = replace(declared, parse=msgspec.structs.replace(declared.parse, schema=None))
    place.run(declared)
    publish(place.broker.url, place.queue, [order(3), b'{"id": "four", "amount": 5}'])
    place.run(declared)
    assert place.ids() == [1, 2, 3]
    (rejected,) = place.take_rejects()
    assert (rejected[0], rejected[1]["x-reject-column"]) == (b'{"id": "four", "amount": 5}', "id")
    rows = place.spark.read.parquet(f"{place.path}/table").where("id = 2").collect()
    assert rows[0].more.a == [1]


def test_without_messages_there_is_no_schema(place):
    publish(place.broker.url, place.queue, [])
    declared = place.declared()
    declared = replace(declared, parse=msgspec.structs.replace(declared.parse, schema=None))
    with pytest.raises(BadPipeline, match="no JSON object in the source to infer it from"):
        place.run(declared)


def test_steps_can_be_functions_and_are_tried_out_without_a_broker(spark, place):
    pipeline = Pipeline(place.declared())

    @pipeline.step("doubled")
    def doubled(rows: DataFrame) -> DataFrame:
        return rows.withColumn("amount", rows.amount * 2)

    tried = pipeline.try_out(spark, [order(1), order(2).decode(), b"nonsense", '{"id": 7, "amount": -1}'])
    assert [row.amount for row in tried.steps["doubled"]] == [4, 6]
    assert [row.id for row in tried.steps["input"]] == [1, 2]
    assert [(row.body, row.headers["x-reject-reason"]) for row in tried.rejected] == [
        (b"nonsense", "is not JSON, or does not fit the schema"),
        (b'{"id": 7, "amount": -1}', "does not hold: amount > 0"),
    ]
    publish(place.broker.url, place.queue, [order(1)])
    place.run(pipeline.declared)
    (row,) = spark.read.parquet(f"{place.path}/table").collect()
    assert (row.amount, row._offset) == (4, 0)
    pipeline.step("doubled")(doubled)
    with pytest.raises(BadPipeline, match="step 'doubled' is there twice"):
        pipeline.validate()


def test_how_it_went_is_left_beside_the_checkpoint(place):
    publish(place.broker.url, place.queue, [order(1), b"x"])
    declared = place.declared()
    query, batches = running.start(place.spark, declared, once=True)
    query.awaitTermination()
    status = running.progressed(Status.first(declared.name), query, batches)
    assert (status.messages, status.rejected, status.batch, status.lag) == (2, 1, 0, 0)


def test_the_command_runs_a_pipeline_to_its_end(leveret, tmp_path):
    queue = f"orders{next(numbers)}"
    publish(leveret.url, queue, [order(1), b"x", order(2)])
    publish(leveret.url, "command.rejected", [])
    file = tmp_path / "pipeline.toml"
    file.write_text(f"""
        name = "{queue}"
        checkpoint = "{tmp_path}/checkpoint"
        [source]
        url = "{leveret.url}"
        queue = "{queue}"
        [parse]
        schema = "{SCHEMA}"
        [rejects]
        routing_key = "command.rejected"
        [[sinks]]
        name = "table"
        format = "csv"
        path = "{tmp_path}/table"
        [spark]
        master = "local[1]"
        conf = {{ "spark.ui.enabled" = false }}
    """)
    command = [sys.executable, "-m", "leveret", "pipeline"]
    done = subprocess.run(
        [*command, "run", str(file), "--once", "--json"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert (account["state"], account["messages"], account["rejected"]) == ("stopped", 3, 1)
    status = subprocess.run([*command, "status", str(file)], capture_output=True, text=True, check=True)
    assert f"{queue}: stopped" in status.stdout
    lines = [line for part in (tmp_path / "table").rglob("*.csv") for line in part.read_text().splitlines()]
    assert sorted(line.split(",")[0] for line in lines) == ["1", "2"]


@pytest.mark.full
def test_a_new_checkpoint_does_not_overwrite_the_table_of_an_old_one(place):
    publish(place.broker.url, place.queue, [order(1)])
    place.run(place.declared())
    shutil.move(place.path / "checkpoint", place.path / "old")
    publish(place.broker.url, place.queue, [order(2)])
    with pytest.raises(StreamingQueryException, match="belongs to another checkpoint"):
        place.run(place.declared())
    assert place.ids() == [1]


def test_a_format_that_spark_does_not_know_is_refused_before_anything_is_taken(place):
    publish(place.broker.url, place.queue, [order(1)])
    declared = place.declared('[[sinks]]\nname = "lake"\nformat = "delta"\npath = "/tmp/nowhere"')
    with pytest.raises(BadPipeline, match=r"sinks\[1\]\.format 'delta' is not known to Spark"):
        place.run(declared)
    assert place.broker.depth(place.queue) == 1
