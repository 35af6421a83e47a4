"""Tables of pipelines: read as whole batches, each row once; and compacted, whatever dies on the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import BadPipeline, compaction, read_table, running, sinks, table_owner, tables
from leveret.spark.pipelines.checkpoint_files import Status
from leveret.spark.pipelines.compaction import Compaction, Goal, NotCompacted
from leveret.spark.pipelines.declaration import Sink, parse
from leveret.spark.pipelines.declaration_checks import check
from leveret.spark.pipelines.tables import Table, last_committed, listed
from tests.spark.queues import publish
from tests.spark.watched import Alternating, Died, failing, watched

pytestmark = pytest.mark.timeout(600)
needs_java = pytest.mark.needs_java

SCHEMA = "id LONG, said STRING, amount DOUBLE, month STRING, _queue STRING, _partition INT, _offset LONG"
AWKWARD = ["plain", "", None, " spaced ", 'a "quote"', "back\\slash\\", "two\nlines", "a,b;c\td", "ü€\u2028"]


def values(first: int, stop: int) -> list[tuple]:
    return [
        (number, AWKWARD[number % len(AWKWARD)], number / 3, ["01", "02", None][number % 3], "q", 0, number)
        for number in range(first, stop)
    ]


def commit(checkpoint: Path, batch: int) -> None:
    """As Spark's query does, when a batch is done."""
    folder = checkpoint / "query" / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(batch)).write_text("v1\n{}")


class Written:
    """A table of some batches of ten rows, and the checkpoint of the query that wrote it."""

    def __init__(self, spark: SparkSession, place: Path, sink: Sink) -> None:
        self.spark = spark
        self.place = place
        self.sink = sink

    @property
    def path(self) -> str:
        return str(self.place / "table")

    @property
    def checkpoint(self) -> Path:
        return self.place / "checkpoint"

    def write(self, batches: int) -> None:
        for batch in range(batches):
            rows = self.spark.createDataFrame(values(batch * 10, batch * 10 + 10), SCHEMA).coalesce(2)
            writer = rows.write.format(self.sink.format).options(**self.sink.options)
            writer.partitionBy(*self.sink.partition_by).save(f"{self.path}/_batch={batch}")
            commit(self.checkpoint, batch)

    def copied(self, place: Path) -> "Written":
        shutil.copytree(self.place, place)
        return Written(self.spark, place, self.sink)

    def compact(self, **given) -> compaction.Account:
        table = given.pop("table", None) or Table.at(self.path)
        last = last_committed(str(self.checkpoint))
        return Compaction(self.spark, table, self.sink, **given).run(last)

    def ids(self) -> list[int]:
        return sorted(row.id for row in read_table(self.spark, self.path).select("id").collect())

    def files(self) -> list[str]:
        """With rows in them, as a plain reader sees them."""
        found = [path.relative_to(self.path) for path in Path(self.path).rglob("[!._]*") if path.is_file()]
        hidden = ("_compact", "_swap")
        return sorted(str(path) for path in found if not path.parts[0].startswith(hidden))


def sink(format: str = "parquet", *, partition_by: tuple[str, ...] = (), **options: str) -> Sink:
    return Sink(name="table", format=format, path="/", partition_by=list(partition_by), options=options)


@pytest.fixture(scope="module")
def partitioned(spark, tmp_path_factory) -> Written:
    """Four batches that tests copy."""
    found = Written(spark, tmp_path_factory.mktemp("partitioned"), sink(partition_by=("month",)))
    found.write(4)
    return found


@pytest.fixture
def written(partitioned, tmp_path) -> Written:
    return partitioned.copied(tmp_path / "copy")


def content(rows: DataFrame) -> list[str]:
    names = sorted(name for name in rows.columns if name != "_batch")
    return sorted(repr(tuple(row)) for row in rows.select(*names).collect())


# what is read


@needs_java
def test_rows_of_whole_batches_are_read_with_their_partitions_and_batches(spark, written):
    rows = read_table(spark, written.path)
    assert set(rows.columns) == {*(part.split()[0] for part in SCHEMA.split(", ")), "_batch"}
    found = sorted((row.id, row._batch, row.month, row._offset) for row in rows.collect())
    months = [1, 2, None]
    assert found == [(number, number // 10, months[number % 3], number) for number in range(40)]
    (Path(written.path) / "_batch=1" / "_SUCCESS").unlink()
    assert written.ids() == [*range(10), *range(20, 40)]


@needs_java
def test_with_the_checkpoint_only_what_is_committed_is_read(spark, written):
    checkpoint = str(written.checkpoint)
    (written.checkpoint / "query" / "commits" / "3").unlink()
    (written.checkpoint / "query" / "commits" / ".3.crc").touch()
    (written.checkpoint / "query" / "commits" / "0").unlink()  # Spark keeps the last hundred
    assert read_table(spark, written.path, checkpoint=checkpoint).count() == 30
    shutil.rmtree(written.checkpoint)
    with pytest.raises(SparkSideError, match="there is no batch of the query"):
        read_table(spark, written.path, checkpoint=checkpoint)


@needs_java
def test_where_there_is_no_table_one_sentence_says_so(spark, tmp_path):
    with pytest.raises(
        SparkSideError, match=r"there is no whole batch at .* \(has the pipeline been run\?\)"
    ):
        read_table(spark, str(tmp_path / "nothing"))
    with pytest.raises(SparkSideError, match="the table's path 'nowhere://x' is no place for files"):
        read_table(spark, "nowhere://x")


# whose it is


@needs_java
def test_a_table_belongs_to_the_first_query_also_where_only_spark_can_look(spark, tmp_path):
    """A file system of Hadoop that pyarrow does not know."""
    (tmp_path / "t").mkdir()
    session = spark.newSession()
    session.conf.set("fs.viewfs.mounttable.lake.link./t", (tmp_path / "t").as_uri())
    for path in ("viewfs://lake/t/orders", str(tmp_path / "orders")):
        assert [table_owner.claim(session, path, query) for query in ("one", "two", "one")] == ["one"] * 3
    (tmp_path / "t/orders/_query").unlink()
    (tmp_path / "t/orders/_query").touch()
    (tmp_path / "t/orders/._query.crc").unlink()
    assert table_owner.claim(session, "viewfs://lake/t/orders", "two") == "two"
    with pytest.raises(SparkSideError, match=r"nowhere://lake can't be read: .*\(check the place"):
        table_owner.claim(session, "nowhere://lake", "one")


@needs_java
@pytest.mark.parametrize("name", ["plain", "with space", "100%25", "ü", "a+b#c?d"])
@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_a_path_is_the_same_place_for_spark_and_for_us(spark, tmp_path, form, name):
    place = form.format(tmp_path / name)
    spark.createDataFrame([(1,)], "id LONG").write.parquet(f"{place}/_batch=0")
    assert [batch.number for batch in Table.at(place).batches()] == [0]
    assert read_table(spark, place).count() == 1
    assert (tmp_path / name / "_batch=0").is_dir()


@needs_java
def test_a_table_has_one_format(spark, tmp_path):
    text = f"""
        name = "orders"
        checkpoint = "{tmp_path}/checkpoint"
        [source]
        queue = "orders"
        [parse]
        schema = "id LONG"
        [rejects]
        routing_key = "rejected"
        [[sinks]]
        name = "table"
        path = "{tmp_path}/table"
        format = "json"
    """
    rows = spark.createDataFrame([(1,)], "id LONG")
    before, now = parse(text, file="orders.toml"), parse(text.replace("json", "csv"), file="orders.toml")
    sinks.write(rows, before.sinks[0], before, 0)
    with pytest.raises(
        BadPipeline, match=r"line 13: sinks\[1\]\.format is 'csv', and the table is json \(a tab"
    ):
        sinks.write(rows, now.sinks[0], now, 1)
    sinks.write(rows, before.sinks[0], before, 1)
    assert read_table(spark, f"{tmp_path}/table", "json").count() == 2


# compaction


@needs_java
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("parquet", {}),
        ("orc", {}),
        ("json", {"compression": "gzip"}),
        ("csv", {"header": "true"}),
        ("csv", {"sep": ";", "nullValue": "-", "quoteAll": "true"}),
    ],
)
def test_compacted_rows_are_the_same_for_every_reader(spark, tmp_path, kind, options):
    written = Written(spark, tmp_path, sink(kind, partition_by=("month",), **options))
    written.write(3)
    schema = None if kind in ("parquet", "orc") else SCHEMA
    reading = {**options, "multiLine": "true"} if kind == "csv" else {}

    def read() -> list[str]:
        return content(read_table(spark, written.path, kind, schema=schema, **reading))

    before = read()
    assert len(before) == 30
    account = written.compact()
    assert (account.batches_before, account.rows_before, account.rows_after) == (2, 20, 20)
    assert account.files_after == 3 < account.files_before
    assert read() == before
    plain = spark.read.format(kind).options(**reading)
    assert content((plain.schema(schema) if schema else plain).load(written.path)) == before
    folders = {Path(name).parent.as_posix() for name in written.files()}
    months = ("01", "02", "__HIVE_DEFAULT_PARTITION__")
    assert folders == {f"_batch={batch}/month={month}" for batch in (1, 2) for month in months}
    assert all(f".{kind}" in name for name in written.files())


@needs_java
def test_how_many_files_there_are_can_be_said(spark, tmp_path, written):
    assert written.compact(goal=Goal(files=2)).files_after == 6
    whole = Written(spark, tmp_path / "whole", sink())
    whole.write(4)
    assert whole.compact(goal=Goal(files=1)).files_after == 1
    assert whole.ids() == list(range(40))


@needs_java
def test_what_is_large_enough_stays_and_what_is_compacted_is_not_compacted_again(spark, written):
    before = written.files()
    assert written.compact(goal=Goal(target_bytes=100)).batches_before == 0
    assert written.files() == before
    assert written.compact().batches_before == 3
    again = written.compact()
    assert (again.batches_before, again.files_after) == (0, 0)
    assert written.ids() == list(range(40))


@needs_java
def test_batches_that_are_not_committed_and_the_last_that_is_are_left_alone(written):
    (written.checkpoint / "query" / "commits" / "3").unlink()
    before = [name for name in written.files() if name.startswith(("_batch=2", "_batch=3"))]
    assert written.compact().batches_before == 2
    assert [name for name in written.files() if name.startswith(("_batch=2", "_batch=3"))] == before
    assert written.ids() == list(range(40))


@needs_java
def test_columns_that_came_later_are_kept(spark, tmp_path):
    written = Written(spark, tmp_path, sink())
    for batch, query in enumerate(("1 AS id", "2 AS id, 'x' AS more", "3 AS id", "4 AS id")):
        spark.sql(f"SELECT {query}").write.parquet(f"{written.path}/_batch={batch}")
        commit(written.checkpoint, batch)
    written.compact()
    rows = spark.read.option("mergeSchema", "true").parquet(written.path).collect()
    assert sorted((row.id, row.more) for row in rows) == [(1, None), (2, "x"), (3, None), (4, None)]


@needs_java
@pytest.mark.parametrize(
    ("second", "options"), [("2 AS id, 'x' AS more", {}), ("2 AS other", {"header": "true"})]
)
def test_batches_that_do_not_fit_together_are_left_as_they_are(spark, tmp_path, second, options):
    written = Written(spark, tmp_path, sink("csv", **options))
    for batch, query in enumerate(("1 AS id", second, "3 AS id")):
        spark.sql(f"SELECT {query}").write.options(**options).csv(f"{written.path}/_batch={batch}")
        commit(written.checkpoint, batch)
    before = written.files()
    with pytest.raises(NotCompacted, match=r"can't be put together: .* \(have its columns changed\?\)"):
        written.compact()
    assert written.files() == before
    assert not list(Path(written.path).glob("_compact*"))


@needs_java
@pytest.mark.parametrize("format", ["json", "text", "csv", "orc"])
def test_files_of_another_format_are_not_taken_for_rows(written, format):
    """The format of a sink was changed: old batches are of the other one."""
    written.sink = sink(format, partition_by=("month",))
    before = {path: path.read_bytes() for path in Path(written.path).rglob("*") if path.is_file()}
    with pytest.raises(NotCompacted, match=rf"\.parquet of .* is not {format} \(has the format of the sink"):
        written.compact()
    after = {path: path.read_bytes() for path in Path(written.path).rglob("*") if path.is_file()}
    assert after == before


@needs_java
def test_a_row_that_is_missing_in_the_new_files_is_noticed_before_anything_is_replaced(written, monkeypatch):
    write = Compaction._write

    def lossy(self, rows, new, rows_count, size_bytes):
        write(self, rows.where("id != 7"), new, rows_count, size_bytes)

    monkeypatch.setattr(Compaction, "_write", lossy)
    before = written.files()
    with pytest.raises(NotCompacted, match="have 29 rows of 30: nothing was replaced"):
        written.compact()
    assert written.files() == before
    assert not list(Path(written.path).glob("_compact*"))


# whoever dies, or comes in between


@pytest.fixture(scope="module")
def gone() -> Status:
    """A process that is not there any more."""
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    return Status.first("compaction").now(state="running", pid=int(child.stdout))


@needs_java
def test_every_row_is_there_once_before_each_change_that_a_compaction_makes(spark, written):
    seen: list[set[str]] = []

    def look(_: str) -> None:
        names = {path.name for path in Path(written.path).iterdir()}
        if names not in seen:  # changes within a batch are tested without Spark
            seen.append(names)
            assert written.ids() == list(range(40)), seen

    written.compact(table=watched(written.path, look))
    assert len(seen) > 8
    assert written.ids() == list(range(40))
    assert sorted(row.id for row in spark.read.parquet(written.path).collect()) == list(range(40))


def made(path: Path) -> None:
    """A table without Spark, with a file for each row; batches 1 and 2 are about to be swapped."""
    for batch in (1, 2, 3):
        _touch(path / f"_batch={batch}" / f"part-{batch}")
        _touch(path / f"_batch={batch}" / "_SUCCESS")
    _touch(path / "_compacted-0" / "_batch=2" / "part-1-2")
    _touch(path / "_compacted-0" / "_batch=2" / "_SUCCESS")


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def rows_in(table: Table) -> list[str]:
    def look(batches):
        return [Path(name).name for batch in batches for name in table.files_in(batch.folder)]

    return sorted(row for name in listed(table, look) for row in name.split("-")[1:])


ALL = ["1", "2", "3"]


def swapped(table: Table) -> None:
    """As a compaction does it."""
    try:
        table.begin_swap("_compacted-0", [1, 2])
        table.finish_swap()
    finally:
        table.sweep()


@pytest.mark.parametrize("error", [Died, OSError])
def test_a_swap_that_ends_at_any_change_is_seen_through_and_finished_by_the_next(tmp_path, error):
    """Either nothing works any more then, or one thing has failed."""
    ends = 0
    for after in range(100):
        made(tmp_path / str(after))
        path = str(tmp_path / str(after))
        try:
            swapped(watched(path, failing(after, error)))
        except (Died, SparkSideError):
            ends += 1
        else:
            break
        table = Table.at(path)
        note = table.swap()
        assert rows_in(table) == ALL, f"after {after} changes"
        table.finish_swap()
        table.sweep()
        assert rows_in(table) == ALL, f"after {after} changes and another try"
        assert [batch.number for batch in table.batches()] == ([1, 2, 3] if note is None else [2, 3])
        assert {name.name for name in Path(path).iterdir()} <= {
            "_swap.json",
            *(batch.folder for batch in table.batches()),
        }
    assert ends == CHANGES


CHANGES = 11
"""That a swap of `made` makes: two for each note, batch and sweep, and one to move the new one."""


def test_a_reader_sees_each_row_once_whatever_a_swap_does_while_it_looks(tmp_path):
    """It has made some changes before, and makes more before one of the reader's looks at the files."""
    for before in range(CHANGES):
        for look in range(8):
            for meanwhile in range(1, CHANGES + 1 - before):
                path = tmp_path / f"{before}-{look}-{meanwhile}"
                made(path)
                with Alternating(lambda told, path=path: swapped(watched(str(path), told))) as swap:
                    swap.advance(before)
                    turns = iter([0] * look + [meanwhile])
                    reader = watched(str(path), lambda _: swap.advance(next(turns, 0)), looking=True)  # noqa: B023
                    assert rows_in(reader) == ALL, path.name


def test_a_batch_that_runs_again_while_it_is_looked_at_is_looked_at_again(tmp_path):
    made(tmp_path)
    table, looks = Table.at(str(tmp_path)), []

    def look(batches):
        looks.append([batch.number for batch in batches])
        if len(looks) == 1:
            os.utime(tmp_path / "_batch=3" / "_SUCCESS", ns=(0, 0))
        if len(looks) == 2:
            (tmp_path / "_batch=3" / "_SUCCESS").unlink()
        return looks[-1]

    assert listed(table, look) == [1, 2]
    assert looks == [[1, 2, 3], [1, 2, 3], [1, 2]]


@needs_java
@pytest.mark.parametrize("after", [2, 3, 9])
def test_a_compaction_that_died_is_taken_over_by_the_next(partitioned, tmp_path, gone, after):
    """With its lock, its folder and its note, as far as it came; swaps are tested above."""
    written = partitioned.copied(tmp_path / "copy")
    with pytest.raises(Died):
        written.compact(table=watched(written.path, failing(after)), me=gone)
    assert written.ids() == list(range(40))
    written.compact()
    assert written.ids() == list(range(40))
    assert sorted({name.partition("/")[0] for name in written.files()}) == ["_batch=2", "_batch=3"]
    assert not list(Path(written.path).glob("_compact*"))


@needs_java
def test_a_reader_that_was_looking_when_the_files_were_replaced_looks_again(spark, written, monkeypatch):
    rows_of, looks = tables.rows_of, []

    def late(*given, **named):
        looks.append(len(looks))
        if len(looks) == 1:
            monkeypatch.setattr(tables, "rows_of", rows_of)
            written.compact()
            monkeypatch.setattr(tables, "rows_of", late)
        return rows_of(*given, **named)

    monkeypatch.setattr(tables, "rows_of", late)
    assert written.ids() == list(range(40))
    assert len(looks) == 2


@needs_java
def test_rows_whose_files_were_replaced_are_an_error_and_not_fewer(spark, written):
    rows = read_table(spark, written.path)
    written.compact()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
        rows.collect()
    assert written.ids() == list(range(40))


# one at a time


@needs_java
@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_two_do_not_compact_at_the_same_time(written, host):
    other = Status.first("compaction").now(state="running", **({} if host == "here" else {"host": host}))
    lock = Path(written.path) / "_compacting-1.json"
    lock.write_bytes(msgspec.json.encode(other))
    before = written.files()
    with pytest.raises(
        NotCompacted, match=rf"process {other.pid} on {other.host} is compacting .*_compacting-1"
    ):
        written.compact()
    assert written.files() == before
    assert [path.name for path in Path(written.path).glob("_compact*")] == [lock.name]


# beside a pipeline, and from the command line


def pipeline(place: Path, *, url: str = "amqp://localhost", queue: str = "orders", more: str = "") -> str:
    return f"""
        name = "{queue}"
        checkpoint = "{place}/checkpoint"
        [source]
        url = "{url}"
        queue = "{queue}"
        [parse]
        schema = "id LONG NOT NULL"
        [rejects]
        routing_key = "{queue}.rejected"
        [[sinks]]
        name = "table"
        path = "{place}/table"
        {more}
    """


@pytest.mark.full
@needs_java
def test_a_table_is_compacted_while_its_pipeline_runs(spark, leveret, tmp_path):
    every = '[trigger]\nevery = "50 ms"'
    declared = parse(pipeline(tmp_path, url=leveret.url, queue="compacted", more=every), file="pipeline.toml")
    check(declared)
    publish(leveret.url, "compacted", [])
    written = Written(spark, tmp_path, declared.sinks[0])
    query, _ = running.start(spark, declared)
    put_together = []
    try:
        for wave in range(4):
            publish(leveret.url, "compacted", [b'{"id": %d}' % (wave * 10 + each) for each in range(10)])
            query.processAllAvailable()
            put_together.append(written.compact().batches_before)
            assert written.ids() == list(range(wave * 10 + 10))
    finally:
        query.stop()
    assert put_together == [0, 0, 2, 2]
    rows = spark.read.parquet(written.path).collect()
    assert sorted((row.id, row._offset) for row in rows) == [(number, number) for number in range(40)]
    assert {row._queue for row in rows} == {"compacted"}


def command(place: Path, *arguments: str, more: str = ""):
    file = place / "pipeline.toml"
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(pipeline(place, more=more))
    return CliRunner().invoke(app, ["pipeline", "compact", str(file), *arguments])


@needs_java
def test_the_command_says_what_it_has_put_together_in_the_session_that_is_there(spark, written):
    partition = 'partition_by = ["month"]'
    result = command(written.place, "--json", "--target-size", "1g", more=partition)
    assert result.exit_code == 0, result.output
    account = json.loads(result.stdout)
    (table,) = account["sinks"]
    assert (account["name"], table["sink"], table["batches_before"], table["rows_after"]) == (
        "orders",
        "table",
        3,
        30,
    )
    assert (table["files_after"], table["rows_before"]) == (3, 30)
    result = command(written.place, more=partition)
    assert (result.exit_code, result.output.strip()) == (0, "leveret: table: nothing to compact")
    assert spark.range(3).count() == 3


OTHERS = """
[[sinks]]
name = "shown"
format = "console"
[[sinks]]
name = "lines"
format = "json"
path = "/x"
options = { pretty = true }
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sink", "nobody"], "pipeline.toml has no sink 'nobody' (there are table, shown, lines)"),
        (["--sink", "shown"], "sink 'shown' is console, which is not files"),
        (["--sink", "lines"], "sink 'lines' has option pretty: its rows are not lines of UTF-8"),
        (["--sink", "table"], "there is no whole batch at"),
    ],
)
def test_what_can_not_be_compacted_is_one_sentence(tmp_path, arguments, sentence):
    result = command(tmp_path, *arguments, more=OTHERS)
    assert result.exit_code == 1
    assert result.output.startswith(f"leveret: {sentence}")
    assert len(result.output.splitlines()) == 1


def test_a_table_whose_query_has_committed_nothing_is_left_alone(tmp_path):
    _touch(tmp_path / "table" / "_batch=0" / "_SUCCESS")
    result = command(tmp_path)
    assert (result.exit_code, "there is no committed batch" in result.output) == (1, True)


def test_a_table_of_another_checkpoint_is_left_alone(tmp_path):
    _touch(tmp_path / "table" / "_batch=0" / "_SUCCESS")
    (tmp_path / "table" / "_query").write_text("one")
    commit(tmp_path / "checkpoint", 0)
    (tmp_path / "checkpoint" / "query" / "metadata").write_text('{"id": "another"}')
    result = command(tmp_path)
    assert (result.exit_code, "table belongs to another checkpoint (" in result.output) == (1, True)


@pytest.mark.parametrize(
    "arguments", [["--files", "0"], ["--target-size", "big"], ["--files", "1", "--target-size", "1m"]]
)
def test_sizes_that_make_no_sense_are_refused(tmp_path, arguments):
    assert command(tmp_path, *arguments).exit_code == 2
