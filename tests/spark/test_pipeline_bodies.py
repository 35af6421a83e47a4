"""What bodies become: schemas that are inferred, lines of CSV, and rows for which SQL can't say anything."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from leveret.spark.pipelines import BadPipeline, Pipeline, running
from leveret.spark.pipelines.declaration import Declaration, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.testing.broker import Broker
from tests.spark.queues import publish
from tests.spark.rejecting import ids_in_table, reasons, run, take

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(600)]

AWKWARD = [
    "content-type",
    "a.b",
    "a:b",
    "a b",
    "not",
    "select",
    "a`b",
    "größe",
    "日本",
    "<,>",
    "it's",
    'a"b',
    "x\\y",
]
"""Names that are none for SQL, unless they are in quotes."""


class Place:
    """A queue, one for rejects, a table, and a pipeline in between."""

    def __init__(self, folder: Path, broker: Broker, queue: str) -> None:
        self.folder = folder
        self.url = broker.url
        self.queue = queue
        self.rejected = f"{queue}.rejected"
        publish(self.url, self.rejected, [])

    def text(self, of_parse: str = "", *, of_source: str = "", more: str = "") -> str:
        return f"""
            name = "bodies"
            checkpoint = "{self.folder}/checkpoint"
            [source]
            url = "{self.url}"
            queue = "{self.queue}"
            {of_source}
            [parse]
            {of_parse}
            [rejects]
            routing_key = "{self.rejected}"
            [[sinks]]
            name = "table"
            path = "{self.folder}/table"
            {more}
        """

    def declared(self, of_parse: str = "", **said: str) -> Declaration:
        found = parse(self.text(of_parse, **said), file="pipeline.toml")
        check(found)
        return found

    def publish(self, *bodies: object) -> None:
        """As they are, or as JSON."""
        texts = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
        publish(self.url, self.queue, texts)

    def rows(self) -> list[dict]:
        files = sorted((self.folder / "table").glob("_batch=*/*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.fixture
def place(leveret: Broker, fresh: Callable[[str], str], tmp_path: Path) -> Place:
    return Place(tmp_path, leveret, fresh("bodies"))


# schemas that are inferred


@pytest.mark.full
def test_an_inferred_schema_may_have_any_names_inside(spark, place):
    inner = {name: number for number, name in enumerate(AWKWARD)}
    first = {"id": 1, "http": inner, "deep": [{"a-b": [{"not": {"x y": "z"}}]}], "a-b": 1, "c.d": 2, "or": 3}
    place.publish(first)
    declared = place.declared()
    run(spark, declared)
    place.publish({**first, "id": 2}, {**first, "id": 3, "http": "none"})
    run(spark, declared)
    found = place.rows()
    assert [{name: row[name] for name in first} for row in found] == [first, {**first, "id": 2}]
    ((body, properties),) = take(place.url, place.rejected)
    assert (json.loads(body)["id"], properties.headers["x-reject-column"]) == (3, "http")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"a": 1, "A": 2}, "would have column 'a' twice"),
        ({"a": 1, "_b": 2}, "would have a column '_b'"),
    ],
)
def test_a_schema_that_no_table_could_have_is_refused_before_anything_is_taken(
    spark, leveret, place, body, problem
):
    place.publish(body)
    with pytest.raises(BadPipeline, match=f"parse.schema {problem} .*write down which columns are wanted"):
        running.start(spark, place.declared())
    assert leveret.depth(place.queue) == 1
    assert not (place.folder / "checkpoint").exists()


@pytest.mark.full
def test_a_schema_is_inferred_as_the_options_have_it_parsed(spark, place):
    place.publish(b"{id: 1, price: 1.25, at: '2026/08/09 10'} // new")
    of_parse = (
        "options = { allowComments = true, allowUnquotedFieldNames = true, prefersDecimal = true, "
        'inferTimestamp = true, timestampFormat = "yyyy/MM/dd HH" }'
    )
    run(spark, place.declared(of_parse))
    (row,) = place.rows()
    assert (row["id"], str(row["price"]), f"{row['at']:%d.%m. %H}") == (1, "1.25", "09.08. 10")


@pytest.mark.full
def test_options_that_a_look_at_the_source_can_not_have_are_known_in_any_case(spark, place):
    place.publish({"id": 1}, {"id": 2})
    run(spark, place.declared(of_source="options = { maxmessagespertrigger = 1, LeaseTimeout = '1 h' }"))
    assert ids_in_table(place.folder) == [1, 2]


# CSV


def written(*fields: object) -> bytes:
    """As Python writes a line."""
    text = io.StringIO()
    csv.writer(text).writerow(fields)
    return text.getvalue().encode()


def test_a_line_of_csv_is_a_row_with_its_end_or_without(spark, place):
    of_parse = """schema = "id LONG NOT NULL, name STRING, amount DOUBLE"\noptions = { escape = '"' }"""
    good = {
        b"1,anna,2.5": (1, "anna", 2.5),
        b"2,anna,2.5\n": (2, "anna", 2.5),
        b"3,anna,2.5\r\n": (3, "anna", 2.5),
        b"4,anna,2.5\r": (4, "anna", 2.5),
        b'5,"a, b",1': (5, "a, b", 1),
        b'6,"a\nb\n",1\n': (6, "a\nb\n", 1),
        b'7,"a ""b""",1': (7, 'a "b"', 1),
        b"8,,\r\n": (8, None, None),
        b'9,"","1"\n': (9, None, 1),
        written(10, 'x, "y"\r\n', 0.5): (10, 'x, "y"\r\n', 0.5),
    }
    bad = {
        b"id,name,amount\r\n": "does not fit the schema",
        b"x1,anna,1\r\n": "does not fit the schema",
        b"20,anna,much\n": "does not fit the schema",
        b"21,anna\n": "does not fit the schema",
        b"22,anna,1,2\r\n": "does not fit the schema",
        b"23,anna,1\n24,anna,1\n": "does not fit the schema",
        b",anna,1\n": "is null or missing",
        b"": "is null or missing",
        b"\r\n": "is null or missing",
    }
    tried = Pipeline(place.declared(f'format = "csv"\n{of_parse}')).try_out(spark, [*bad, *good])
    assert [(row.id, row.name, row.amount) for row in tried.steps["input"]] == list(good.values())
    assert {bytes(row.body): row.headers["x-reject-reason"] for row in tried.rejected} == bad


def test_the_last_column_of_a_line_does_not_have_its_end(spark, place):
    pipeline = Pipeline(place.declared('format = "csv"\nschema = "id LONG, name STRING"'))
    bodies = [b"1,anna\r\n", b"2,anna\n", b'3,"anna"\r\n', b'4,"anna\n"\n', b"5,\n"]
    tried = pipeline.try_out(spark, bodies)
    assert [row.name for row in tried.steps["input"]] == ["anna", "anna", "anna", "anna\n", None]
    assert tried.rejected == []


# rows for which SQL can't say anything


UNCERTAIN = """
    [[steps]]
    name = "split"
    sql = "SELECT *, cast(split(text, ',')[2] AS LONG) AS third, 10 % quantity AS rest FROM input"
    [[expectations]]
    that = "amount / quantity > 0.5"
    [[expectations]]
    that = "third > 0"
    step = "split"
    [spark]
    master = "local[1]"
    conf = { "spark.ui.enabled" = false }
"""
OF_UNCERTAIN = 'schema = "id LONG NOT NULL, amount DOUBLE, quantity INT, text STRING"'


@pytest.mark.full
def test_in_its_own_session_a_row_for_which_sql_fails_is_rejected_and_the_others_are_not(place):
    usual = {"amount": 4, "quantity": 2, "text": "a,b,3"}
    unusual = [{"quantity": 0}, {"text": "a"}, {"text": "a,b,c"}, {"text": "a,b,99999999999999999999"}, {}]
    place.publish(*({"id": number, **usual, **each} for number, each in enumerate(unusual)))
    file = place.folder / "pipeline.toml"
    file.write_text(place.text(OF_UNCERTAIN, more=UNCERTAIN))
    command = [sys.executable, "-m", "leveret", "pipeline", "run", str(file), "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert [(row["id"], row["third"], row["rest"]) for row in place.rows()] == [(4, 3, 0)]
    found = take(place.url, place.rejected)
    assert reasons(found) == ["does not hold: amount / quantity > 0.5", *["does not hold: third > 0"] * 3]


ASKING = """
import sys
from pathlib import Path

from leveret.spark.pipelines.declaration import read
from leveret.spark.pipelines.running import session

with session(read(Path(sys.argv[1]))) as spark:
    print(spark.conf.get("spark.sql.ansi.enabled"))
"""


@pytest.mark.full
def test_the_file_decides_whether_its_own_session_fails_where_sql_does(place):
    file = place.folder / "pipeline.toml"
    strict = UNCERTAIN.replace("conf = {", 'conf = { "spark.sql.ansi.enabled" = true,')
    file.write_text(place.text(OF_UNCERTAIN, more=strict))
    done = subprocess.run(
        [sys.executable, "-c", ASKING, str(file)], capture_output=True, timeout=200, check=True
    )
    assert done.stdout.split() == [b"true"]


def test_a_session_that_is_there_stays_as_strict_as_it_is(spark, place):
    with running.session(place.declared()) as same:
        assert same.conf.get("spark.sql.ansi.enabled") == "true"


# functions


@pytest.mark.full
def test_a_function_may_read_a_table(spark, place):
    spark.createDataFrame([(7, "seven")], "id LONG, name STRING").write.parquet(f"{place.folder}/names")
    tables = f'[[tables]]\nname = "names"\npath = "{place.folder}/names"'
    pipeline = Pipeline(place.declared('schema = "id LONG NOT NULL"', more=tables))

    @pipeline.step("shouted", of="names")
    def shouted(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", "upper(name) AS name")

    place.publish({"id": 1})
    run(spark, pipeline.declared)
    assert place.rows() == [{"id": 7, "name": "SEVEN"}]
