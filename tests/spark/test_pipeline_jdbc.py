"""Sinks that are tables of a database: a batch is in them once, whatever died while it was written.

The database is Derby, which comes with Spark and runs in its JVM; what is not the same on a server is tried
on PostgreSQL.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leveret.spark.pipelines import BadPipeline, batch_ids, running, sinks, write_counts
from leveret.spark.pipelines.databases import Connection, Database, DatabaseFailed, without_secrets
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.spark.pipelines.jdbc import BatchWrite
from leveret.spark.pipelines.spark_failures import first_cause
from leveret.testing.broker import Broker
from tests.spark.postgresql import PASSWORD, USER, PostgreSQL, running_postgresql
from tests.spark.queues import publish
from tests.spark.settings import SETTINGS
from tests.tools import POSTGRESQL_JAR

numbers = count()
FILE = """
name = "orders"
checkpoint = "{checkpoint}"
[source]
url = "{broker}"
queue = "{queue}"
max_messages = 20
[parse]
schema = "id LONG NOT NULL, customer STRING, amount DOUBLE"
[[steps]]
name = "spread"
sql = "SELECT /*+ REPARTITION(4) */ * FROM input"
[[steps]]
name = "totals"
sql = "SELECT customer, sum(amount) AS amount FROM input GROUP BY customer"
[rejects]
routing_key = "{queue}.rejected"
"""
SINK = """
[[sinks]]
name = "{name}"
from = "{rows}"
format = "jdbc"
options = {options}
"""


def declaration(
    *tables: str, checkpoint: object = "/c", broker: str = "amqp://h", queue: str = "q"
) -> Declaration:
    text = FILE.format(checkpoint=checkpoint, broker=broker, queue=queue) + "".join(tables)
    found = parse(text, file="orders.toml")
    check(found)
    return found


def sink(name: str = "table", rows: str = "spread", more: str = "", **options: object) -> str:
    given = {"url": "jdbc:derby:x", "dbtable": "orders", **options}
    return SINK.format(name=name, rows=rows, options=inline(given)) + more


def inline(settings: Mapping[str, object]) -> str:
    """As TOML has it."""
    return "{ " + ", ".join(f'"{name}" = {json.dumps(value)}' for name, value in settings.items()) + " }"


class Place:
    """A database of its own, and a checkpoint as Spark leaves it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.url = f"jdbc:derby:memory:orders{next(numbers)};create=true"
        self.renew()

    def renew(self) -> None:
        """The checkpoint is another one from now on."""
        self.checkpoint = self.path / f"checkpoint{next(numbers)}"
        (self.checkpoint / "query").mkdir(parents=True)
        (self.checkpoint / "query/metadata").write_text(json.dumps({"id": f"query-{next(numbers)}"}))

    def declared(self, **options: object) -> Declaration:
        return declaration(sink(**{"url": self.url, **options}), checkpoint=self.checkpoint)

    def write(self, rows: DataFrame, batch: int = 0, **options: object) -> None:
        declared = self.declared(**options)
        sinks.write(rows, declared.sinks[0], declared, batch)

    def has(self, batch: int) -> bool:
        return batch_ids.is_in_a_sink(self.spark, self.declared(), batch)

    def batch_write(self, batch: int) -> BatchWrite:
        declared = self.declared()
        return BatchWrite(Database(self.spark, declared.sinks[0], declared), ("query", "table"), batch)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        declared = self.declared()
        with Database(self.spark, declared.sinks[0], declared).connected() as connection:
            yield connection

    def run(self, *statements: str) -> None:
        with self.connected() as connection:
            for statement in statements:
                connection.run(statement)

    def rows(self, table: str = "orders") -> list[tuple]:
        found = self.spark.read.format("jdbc").options(url=self.url, dbtable=table).load().collect()
        return sorted(map(tuple, found), key=str)

    def ids(self, table: str = "orders") -> list[int]:
        return sorted(row[0] for row in self.rows(table))

    @property
    def tables(self) -> list[str]:
        """All of them."""
        names = self.rows("(SELECT tablename FROM sys.systables WHERE tabletype = 'T') t")
        return sorted(name.lower() for (name,) in names)


@pytest.fixture(scope="module")
def derby(spark: SparkSession) -> SparkSession:
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    return spark


@pytest.fixture
def place(derby: SparkSession, tmp_path: Path) -> Place:
    return Place(derby, tmp_path)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(10).selectExpr("id", "concat('c', id % 3) AS customer", "id * 1.5D AS amount")


# what becomes of a batch


def test_a_batch_is_there_once_however_often_it_is_written(place, rows):
    for batch in (0, 0, 1, 1):
        place.write(rows.withColumn("id", rows.id + batch * 10), batch)
    assert place.ids() == list(range(20))
    assert place.tables == ["leveret_batches", "orders"]
    ((_, *noted),) = place.rows("leveret_batches")
    assert noted == ["table", "orders", 1, "-"]


def test_a_batch_without_rows_counts_too(place, rows):
    place.write(rows.where("id > 100"))
    place.write(rows.where("id > 100"))
    place.write(rows, 1)
    place.write(rows.where("1 = 0"), 2)
    assert place.ids() == list(range(10))


def test_with_a_new_checkpoint_batches_are_counted_anew(place, rows):
    place.write(rows)
    place.renew()
    place.write(rows)
    assert place.ids() == sorted([*range(10), *range(10)])


def test_an_older_batch_is_refused(place, rows):
    """A checkpoint that was restored may plan other messages under the number of an old batch."""
    place.write(rows, 5)
    with pytest.raises(DatabaseFailed, match="batch 4 comes after 5 is in table orders"):
        place.write(rows, 4)
    assert place.ids() == list(range(10))


def test_a_run_that_was_taken_for_dead_moves_nothing(place, rows):
    dead, alive = place.batch_write(0), place.batch_write(0)
    stage = dead.claim_stage("orders")
    columns = dead.create_tables(stage, rows)
    written = dead.stage_rows(rows, stage)
    alive_stage = alive.claim_stage("orders")
    with pytest.raises(DatabaseFailed, match="another run has taken over batch 0 of orders"):
        dead.commit(stage, columns, written)
    alive.create_tables(alive_stage, rows)
    alive.commit(alive_stage, columns, alive.stage_rows(rows, alive_stage))
    with pytest.raises(DatabaseFailed, match="another run has taken over"):
        dead.commit(stage, columns, written)
    assert place.ids() == list(range(10))
    assert place.tables == ["leveret_batches", "orders"]


def test_a_staging_table_that_was_left_when_its_rows_were_committed_is_dropped_by_the_next_batch(
    place, rows, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "drop", pulled)
        with pytest.raises(RuntimeError, match="pulled the plug"):
            place.write(rows)
    place.write(rows)
    assert len(place.tables) == 3
    place.write(rows.where("id < 0"), 1)
    assert place.tables == ["leveret_batches", "orders"]
    assert place.ids() == list(range(10))


def pulled(*_: object) -> None:
    raise RuntimeError("pulled the plug")


def test_rows_that_a_task_staged_twice_are_not_moved(place, rows):
    writing = place.batch_write(0)
    stage = writing.claim_stage("orders")
    columns = writing.create_tables(stage, rows)
    written = writing.stage_rows(rows, stage)
    writing.stage_rows(rows.where("id < 3"), stage)
    with pytest.raises(DatabaseFailed, match="13 rows are staged for orders instead of 10"):
        writing.commit(stage, columns, written)
    assert place.ids() == []
    assert writing.claim_stage("orders") is not None


def test_rows_that_were_not_counted_are_not_moved(place, rows, monkeypatch):
    assert not place.has(0)
    with monkeypatch.context() as patch:
        patch.setattr(write_counts, "wait_for", lambda _: None)
        with pytest.raises(DatabaseFailed, match="Spark does not say how many rows are staged for orders"):
            place.write(rows)
    assert (place.ids(), place.has(0)) == ([], False)
    place.write(rows)
    assert (place.ids(), place.has(0)) == (list(range(10)), True)


@pytest.mark.parametrize("most", [1, 3, 9])
def test_rows_are_counted_right_with_few_writers(place, rows, most):
    place.write(rows.repartition(5), numPartitions=most)
    assert place.ids() == list(range(10))


# tables and their columns


def test_a_table_that_is_there_keeps_its_columns_types_and_other_rows(place, rows):
    place.run(
        """CREATE TABLE orders (number INTEGER GENERATED ALWAYS AS IDENTITY, amount DECIMAL(10, 2),
            ID INTEGER NOT NULL PRIMARY KEY, customer VARCHAR(5), note VARCHAR(9) DEFAULT 'none')""",
        "INSERT INTO orders (id, amount) VALUES (100, 3)",
    )
    place.write(rows)
    found = place.rows("(SELECT id, customer, amount, note FROM orders) t")
    assert len(found) == 11
    assert (3, "c0", 4.5, "none") in [
        (id, customer, float(amount), note) for id, customer, amount, note in found
    ]


def test_names_of_columns_may_be_words_of_sql(place, spark):
    rows = spark.range(3).selectExpr("id AS `select`", "id AS `group`", "id AS `a b`", "id AS Mixed")
    place.write(rows)
    place.write(rows, 1)
    assert place.rows() == sorted([(id,) * 4 for id in range(3)] * 2, key=str)


def test_a_schema_is_that_of_all_its_tables(place, rows):
    place.run("CREATE SCHEMA sales")
    place.write(rows, dbtable="sales.orders")
    place.write(rows, 1, dbtable="sales.orders")
    assert len(place.ids("sales.orders")) == 20
    assert len(place.rows("sales.leveret_batches")) == 1


def test_options_that_say_how_a_table_is_made_are_kept(place, rows):
    place.write(rows, createTableColumnTypes="customer VARCHAR(5), amount DECIMAL(7, 2)")
    with place.connected() as connection, pytest.raises(Exception, match="truncation"):
        connection.run("INSERT INTO orders VALUES (1, 'too long', 1)")


def test_a_column_that_is_not_there_is_named(place, rows):
    place.run("CREATE TABLE orders (id INTEGER, amount DOUBLE)")
    with pytest.raises(DatabaseFailed, match=r"no column 'customer' \(it has ID, AMOUNT; a step"):
        place.write(rows)
    assert place.rows() == []


def test_rows_that_the_database_refuses_are_told_in_a_sentence(place, rows):
    place.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer VARCHAR(2), amount DOUBLE)")
    long = rows.selectExpr("id", "repeat(customer, 2) AS customer", "amount")
    with pytest.raises(DatabaseFailed, match=r"sink 'table' can't write to its database: A truncation error"):
        place.write(long)
    place.run("INSERT INTO orders VALUES (3, 'x', 1)")
    with pytest.raises(DatabaseFailed, match=r"sink 'table' .* duplicate key value"):
        place.write(rows)
    assert place.ids() == [3]
    place.run("DELETE FROM orders")
    place.write(rows)
    assert place.ids() == list(range(10))


# what is missing or wrong


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"url": "jdbc:postgresql://h/db", "driver": "org.nowhere.Driver"},
            "needs the class org.nowhere.Driver, which Java can't find "
            "(under [spark], packages = ['org.postgresql:postgresql:<version>'] or jars = ['<its jar>'])",
        ),
        ({"url": "jdbc:unheard:of"}, "needs a driver for jdbc:unheard (under [spark], packages = ['<group>"),
    ],
)
def test_a_driver_that_is_missing_is_one_sentence(derby, options, sentence):
    declared = declaration(sink(**options, password="secret"))
    with pytest.raises(BadPipeline) as caught:
        sinks.check(derby, declared)
    assert str(caught.value).startswith("orders.toml, line ")
    assert f"sinks[1].options {sentence}" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_one_sentence_without_it(place, rows):
    place.run("CALL SYSCS_UTIL.SYSCS_CREATE_USER('app', 'right')")
    with pytest.raises(DatabaseFailed, match="shutdown"):
        place.write(rows, url=place.url.replace("create", "shutdown"))
    with pytest.raises(DatabaseFailed) as caught:
        place.write(rows, user="app", password="wr0ng")
    said = str(caught.value)
    assert said.startswith("sink 'table' can't write to its database: Connection authentication failure")
    assert "wr0ng" not in said
    assert "\n" not in said
    assert caught.value.__suppress_context__
    place.write(rows, user="app", password="right")


@pytest.mark.parametrize(
    "options",
    [
        {"url": "jdbc:x://h/db", "password": "hid/den"},
        {"url": "jdbc:x://h/db?user=u&password=hid%2Fden&ssl=true"},
        {"url": "jdbc:x://h/db;user=u;Pwd=hid/den"},
        {"url": "jdbc:x://u:hidden@h/db"},
        {"url": "jdbc:oracle:thin:scott/hidden@h:1521:db"},
        {"url": "jdbc:x://h/db", "sslTokenOfMine": "hidden"},
    ],
)
def test_what_is_secret_is_not_told(options):
    said = without_secrets("no hidden and no hid/den at h", {**options})
    assert said in ("no *** and no hid/den at h", "no hidden and no *** at h")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (sink(dbtable="(SELECT 1) t"), "sinks[1].options.dbtable is not the name of a table"),
        (sink(dbtable="a..b"), "sinks[1].options.dbtable is not the name of a table"),
        (sink(more='mode = "overwrite"'), "sinks[1].mode 'overwrite' would leave the last batch alone"),
        (sink(more='partition_by = ["day"]'), "sinks[1].partition_by is for files (say it to the database"),
    ],
)
def test_what_can_not_be_is_said_before_it_runs(text, sentence):
    with pytest.raises(BadPipeline) as caught:
        declaration(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("table", ["orders", "sales.orders", '"My ""table"".x".`a b`.[c d]', "Bücher"])
def test_names_of_tables_may_have_quotes_and_schemas(table):
    assert sinks.promise(declaration(sink(dbtable=table)).sinks[0]).startswith("exactly once: ")


# what dies, and when


@pytest.mark.parametrize(
    "point", ["claim_stage", "create_tables", "stage_rows", "in the transaction", "commit"]
)
def test_what_is_written_again_after_it_died_is_there_once(place, rows, monkeypatch, point):
    with monkeypatch.context() as patch:
        _fail_at(patch, point, "orders")
        place.write(rows.where("id < 5"))
        with pytest.raises(RuntimeError, match="pulled the plug"):
            place.write(rows.where("id >= 5"), 1)
    assert place.ids() == list(range(10 if point == "commit" else 5))
    assert place.has(1) == (point == "commit")
    place.write(rows.where("id >= 5"), 1)
    assert place.ids() == list(range(10))
    assert place.tables == ["leveret_batches", "orders"]


def _fail_at(patch: pytest.MonkeyPatch, point: str, table: str) -> None:
    """Just after something was done in the second batch."""
    kind = Connection if point == "in the transaction" else BatchWrite
    name = "run" if kind is Connection else point
    before = getattr(kind, name)
    moves = count()

    def failing(self, *given):
        result = before(self, *given)
        if kind is Connection:
            now = given[0].startswith(f"INSERT INTO {table} ") and next(moves) == 1
        else:
            now = (self.table, self.batch) == (table, 1)
        if now:
            pulled()
        return result

    patch.setattr(kind, name, failing)


class Running:
    """A pipeline from a queue into two tables of a database, in two batches."""

    def __init__(self, place: Place, broker: Broker) -> None:
        self.place = place
        self.broker = broker
        self.queue = f"jdbc{next(numbers)}"
        publish(broker.url, self.queue, [self._order(number) for number in range(30)])

    @staticmethod
    def _order(number: int) -> bytes:
        return json.dumps({"id": number, "customer": f"c{number % 7}", "amount": number}).encode()

    def run(self, *tables: str) -> None:
        checkpoint = self.place.path / "checkpoint"
        declared = declaration(*tables, checkpoint=checkpoint, broker=self.broker.url, queue=self.queue)
        query, _ = running.start(self.place.spark, declared, once=True)
        query.awaitTermination()


@pytest.fixture
def pipeline(place: Place, leveret: Broker) -> Running:
    return Running(place, leveret)


@pytest.mark.parametrize("point", ["in the transaction", pytest.param("commit", marks=pytest.mark.full)])
def test_a_pipeline_that_dies_leaves_each_row_once_in_each_of_its_tables(pipeline, monkeypatch, point):
    place = pipeline.place
    tables = [sink(url=place.url), sink("totals", "totals", url=place.url, dbtable="totals")]
    with monkeypatch.context() as patch:
        _fail_at(patch, point, "totals")
        with pytest.raises(StreamingQueryException, match="pulled the plug"):
            pipeline.run(*tables)
    pipeline.run(*tables)
    assert place.ids() == list(range(30))
    assert sum(amount for _, amount in place.rows("totals")) == sum(range(30))
    assert place.tables == ["leveret_batches", "orders", "totals"]


def test_a_missing_driver_stops_a_pipeline_and_nothing_is_settled(pipeline):
    with pytest.raises((BadPipeline, StreamingQueryException)) as caught:
        pipeline.run(sink(url="jdbc:unheard:of"))
    error = caught.value
    said = first_cause(error) if isinstance(error, StreamingQueryException) else str(error)
    assert "orders.toml, line 23: sinks[1].options needs a driver for jdbc:unheard (" in said
    assert pipeline.broker.depth(pipeline.queue) + pipeline.broker.unacked(pipeline.queue) == 30


# on a server, with the driver from a jar, as people run it


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    with running_postgresql() as server:
        yield server


DYING = """
import os, signal, sys
from leveret.cli.main import app
from leveret.spark.pipelines.databases import Connection

run = Connection.run

def dying(self, statement, *values):
    result = run(self, statement, *values)
    if statement.startswith("INSERT INTO sales.orders "):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

Connection.run = dying
app()
"""


STORED_AS_JSON = """
[[steps]]
name = "stored"
sql = "SELECT /*+ REPARTITION(3) */ to_json(struct(id)) AS `order`, amount, now() AS at FROM input"
[spark]
master = "local[2]"
jars = ["{jar}"]
conf = {conf}
"""


def pipeline_run(file: Path, *python: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "pipeline", "run", str(file), "--once"]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.full
@pytest.mark.needs_java
@pytest.mark.needs_postgresql
def test_a_pipeline_that_is_killed_in_the_transaction_leaves_each_row_once_on_a_server(
    postgresql, leveret, tmp_path
):
    postgresql.ask("""
        CREATE SCHEMA sales;
        CREATE TABLE sales.orders (number SERIAL, "order" JSONB NOT NULL, amount DECIMAL(8, 2), at TIMESTAMP)
    """)
    queue = f"jdbc{next(numbers)}"
    publish(leveret.url, queue, [json.dumps({"id": id, "amount": id}).encode() for id in range(20)])
    text = FILE.format(checkpoint=tmp_path / "checkpoint", broker=leveret.url, queue=queue)
    text += STORED_AS_JSON.format(jar=POSTGRESQL_JAR, conf=inline(SETTINGS))
    options = {"driver": "org.postgresql.Driver", "user": USER, "password": PASSWORD}
    text += sink(
        rows="stored", dbtable="sales.orders", url=f"{postgresql.url}?stringtype=unspecified", **options
    )
    file = tmp_path / "orders.toml"
    file.write_text(text)
    assert pipeline_run(file, "-c", DYING).returncode == -signal.SIGKILL
    assert postgresql.ask("SELECT count(*) FROM sales.orders") == ["0"]
    done = pipeline_run(file, "-m", "leveret")
    assert done.returncode == 0, done.stderr
    found = postgresql.ask("""SELECT "order"->'id', amount FROM sales.orders ORDER BY amount""")
    assert found == [f"{id}|{id}.00" for id in range(20)]
    tables = postgresql.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'sales' ORDER BY 1")
    assert tables == ["leveret_batches", "orders"]
    assert leveret.depth(queue) + leveret.unacked(queue) == 0
