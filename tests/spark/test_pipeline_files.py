"""Files of pipelines: what they may say, and what is said when they are wrong. No Java is needed."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.spark.pipelines import schemas, sql
from leveret.spark.pipelines.checkpoint_files import State, Status
from leveret.spark.pipelines.declaration import Declaration, parse, read
from leveret.spark.pipelines.declaration_checks import broker_options, check, source_options
from leveret.spark.pipelines.errors import BadPipeline, CheckpointInUse
from leveret.spark.pipelines.explaining import explain
from leveret.spark.pipelines.toml_lines import Lines

GOOD = '''\
name = "orders"
checkpoint = "/lake/checkpoints/orders"

[source]
queue = "orders"
max_messages = 1000

[parse]
schema = "id LONG NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP"

[[steps]]
name = "dated"
sql = """
    SELECT *, date(at) AS day
    FROM input
"""

[[steps]]
name = "large"
sql = "SELECT * FROM dated WHERE amount > 100"

[[expectations]]
that = "amount > 0"
step = "large"

[rejects]
routing_key = "orders.rejected"

[[sinks]]
name = "table"
from = "dated"
path = "/lake/orders"
partition_by = ["day"]

[[sinks]]
name = "alarms"
format = "leveret"
options = { routingKey = "large-orders" }
'''


def declared(text: str = GOOD, **environment: str) -> Declaration:
    found = parse(text, file="orders.toml", environment=environment)
    check(found)
    return found


def refusal(old: str, new: str) -> str:
    """What is said when a part of the good file is another."""
    assert GOOD.count(old) == 1, old
    with pytest.raises(BadPipeline) as caught:
        declared(GOOD.replace(old, new))
    return str(caught.value)


# what a file says


def test_a_good_file_is_taken_as_it_is():
    found = declared()
    assert (found.name, found.source.queue, found.last) == ("orders", "orders", "large")
    assert [sink.rows or found.last for sink in found.sinks] == ["dated", "large"]
    assert source_options(found) == {
        "url": "amqp://guest:guest@localhost:5672",
        "queue": "orders",
        "maxMessagesPerTrigger": "1000",
        "cursor": "orders",
    }


def test_who_we_are_is_said_to_the_rejects_too_in_whatever_case_it_is_written():
    said = (
        'options = { Password = "pa", flighturl = "grpc+tcp://b:1", URL = "amqp://a@broker", Cursor = "x" }'
    )
    assert broker_options(declared(GOOD.replace("max_messages = 1000", said))) == {
        "url": "amqp://a@broker",
        "password": "pa",
        "flightUrl": "grpc+tcp://b:1",
    }


def test_variables_of_the_environment_keep_passwords_out_of_the_file():
    text = GOOD.replace('queue = "orders"', 'queue = "orders"\nurl = "amqp://shop:${SECRET}@broker"')
    assert declared(text, SECRET="abc").source.url == "amqp://shop:abc@broker"


def test_what_is_explained_says_what_is_exactly_once():
    parts = dict(explain(declared()))
    assert parts["steps"] == ["dated reads input", "large reads dated"]
    table, alarms = (line.partition("; ")[2] for line in parts["sinks"])
    assert table.startswith("exactly once: ")
    assert alarms.startswith("exactly once on Leveret: ")
    assert "at least once on any other broker" in alarms
    assert "each is published once on Leveret, and at least once on any other broker" in parts["rejects"]
    other = GOOD.replace('format = "leveret"', 'format = "delta"')
    assert "; at least once: " in dict(explain(declared(other)))["sinks"][1]
    other = other.replace('name = "alarms"', 'name = "alarms"\nmode = "overwrite"')
    assert "; the rows of the last batch: " in dict(explain(declared(other)))["sinks"][1]


def test_what_is_explained_of_a_source_says_how_much_a_batch_takes_and_where_copies_may_come():
    *_, settled = dict(explain(declared()))["source"]
    assert settled == "messages are settled when their batch is in Spark's commit log"
    limited = GOOD.replace("max_messages = 1000", 'max_bytes = "1m"\noptions = { spoolLocation = "/spool" }')
    _, takes, _, copies = dict(explain(declared(limited)))["source"]
    assert takes == "a batch takes at most 1,048,576 bytes"
    assert copies.endswith("at least once for others")
    both = GOOD.replace("max_messages = 1000", 'max_messages = 1000\nmax_bytes = "1m"')
    assert "at most 1,000 messages and 1,048,576 bytes" in dict(explain(declared(both)))["source"][1]
    all_of_it = GOOD.replace("max_messages = 1000", "")
    assert "a batch takes all that is ready" in dict(explain(declared(all_of_it)))["source"]


def test_the_file_of_the_guide_is_a_good_one():
    page = (Path(__file__).parents[2] / "docs/guide/pipelines.md").read_text("utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    found = declared(text, SHOP_PASSWORD="secret")
    assert found.source.url == "amqp://shop:secret@broker"
    assert "secret" not in str(explain(found))


# what is wrong with a file: the line, the key, one sentence


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('queue = "orders"', 'queu = "orders"', "line 5: source.queu is unknown (did you mean 'queue'?)"),
        ("[rejects]", "[reject]", "line 26: reject is unknown (did you mean 'rejects'?)"),
        ('name = "orders"\n', "", "line 1: name is missing"),
        ('checkpoint = "/lake/checkpoints/orders"', "", "line 1: checkpoint is missing"),
        ('name = "orders"\n', 'name = "a b"\n', "line 1: name can't be a name: up to 100 letters"),
        ("max_messages = 1000", 'max_messages = "many"', "line 6: source.max_messages is wrong: expected"),
        ("max_messages = 1000", "max_messages = 0", "line 6: source.max_messages is wrong: expected"),
        ('queue = "orders"', "", "line 4: source is wrong: options queue, stream and topic are all missing"),
        (
            'queue = "orders"',
            'queue = "o"\nstream = "o"',
            "line 4: source is wrong: options queue and stream are both",
        ),
        (
            "max_messages = 1000",
            'options = { leaseTimeot = "1h" }',
            "line 4: source is wrong: the source has no option 'leaseTimeot'",
        ),
        ("[rejects]", "[rejects", "line 26: is not TOML"),
        ('name = "dated"', 'name = "da ted"', "line 12: steps[1].name can't be a name"),
        ('name = "large"', 'name = "dated"', "line 19: steps[2].name 'dated' is there twice"),
        ('name = "dated"', 'name = "input"', "line 12: steps[1].name 'input' is the name of the parsed rows"),
        ('name = "alarms"', 'name = "table"', "line 36: sinks[2].name 'table' is there twice"),
        (
            "FROM input",
            "FROM inputt",
            "line 13: steps[1].sql reads 'inputt', which is not declared (there are",
        ),
        ("FROM input", "FROM dated", "line 13: steps[1].sql of 'dated' reads itself"),
        ("FROM input", "FROM large", "line 13: steps[1].sql of 'dated' reads 'large', which comes later"),
        ("SELECT *, date", "SELEC *, date", "line 13: steps[1].sql does not parse"),
        ("SELECT * FROM dated", "DROP TABLE dated; SELECT * FROM dated", "line 20: steps[2].sql is not one"),
        (
            '"SELECT * FROM dated WHERE amount > 100"',
            '"DROP TABLE x"',
            "line 20: steps[2].sql is not a query",
        ),
        ("amount > 0", "amount >", "line 23: expectations[1].that does not parse"),
        ("amount > 0", "1 > 0", "line 23: expectations[1].that names no column"),
        ("amount > 0", "SELECT 1", "line 23: expectations[1].that is not a condition"),
        (
            'step = "large"',
            'step = "x"',
            "line 24: expectations[1].step 'x' is no step",
        ),
        (
            "SELECT *, date(at) AS day",
            "SELECT id, amount, customer, date(at) AS day",
            "line 24: expectations[1].step 'large' can't have expectations (it does not select _message",
        ),
        ("id LONG NOT NULL", "id LONG(", "line 9: parse.schema does not parse"),
        ("id LONG NOT NULL", "_id LONG", "line 9: parse.schema has a column '_id'"),
        ("id LONG NOT NULL", "customer LONG", "line 9: parse.schema has column 'customer' twice"),
        ('routing_key = "orders.rejected"', "", "rejects.routing_key is missing"),
        ('routing_key = "orders.rejected"', "max_share = 2.0", "line 27: rejects.max_share is wrong"),
        ('path = "/lake/orders"', "", "sinks[1].path is missing: parquet is written to a directory"),
        ('from = "dated"', 'from = "nobody"', "line 31: sinks[1].from 'nobody' is no step"),
        ('from = "dated"', 'mode = "overwrite"', "line 31: sinks[1].mode 'overwrite' would leave the last"),
        ("routingKey =", "routeKey =", "sinks[2].options is wrong: the sink has no option 'routeKey'"),
        (
            'name = "alarms"',
            'name = "alarms"\nmode = "overwrite"',
            "line 37: sinks[2].mode is for tables (leave it out",
        ),
        (
            'name = "alarms"',
            'name = "alarms"\npartition_by = ["day"]',
            "line 37: sinks[2].partition_by is for tables (leave it out",
        ),
        ('"orders.rejected"', '"orders"', "line 26: rejects lead back to the source (what is rejected would"),
        (
            '[[steps]]\nname = "dated"',
            'options = { Mode = "DROPMALFORMED" }\n[[steps]]\nname = "dated"',
            "line 11: parse.options.Mode is the pipeline's own (leave it out",
        ),
        (
            '[[steps]]\nname = "dated"',
            'options = { columnNameOfCorruptRecord = "customer" }\n[[steps]]\nname = "dated"',
            "parse.options.columnNameOfCorruptRecord is the pipeline's own",
        ),
        ("[rejects]", '[trigger]\nevery = "soon"\n[rejects]', "line 27: trigger.every 'soon' is not"),
        ('"orders.rejected"', '"${NOWHERE}"', "line 27: rejects.routing_key needs the environment variable"),
        ('[[steps]]\nname = "dated"', '[steps]\nname = "dated"', "is not TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, sentence):
    said = refusal(old, new)
    assert said.startswith("orders.toml, line ")
    assert sentence in said


@pytest.mark.parametrize(
    ("source", "rejects", "goes_round"),
    [
        ('stream = "orders"', 'routing_key = "orders"', True),
        ('topic = "orders"', 'exchange = "orders"', True),
        ('topic = "orders"', 'routing_key = "orders-12"', True),
        ('topic = "orders"', 'routing_key = "orders-dead"', False),
        ('queue = "orders"', 'exchange = "orders"', False),
        ('queue = "orders"', 'exchange = "dead"\nrouting_key = "orders"', False),
    ],
)
def test_rejects_do_not_lead_back_to_where_they_come_from(source, rejects, goes_round):
    text = GOOD.replace('queue = "orders"', source).replace('routing_key = "orders.rejected"', rejects)
    if not goes_round:
        declared(text)
        return
    with pytest.raises(BadPipeline, match="rejects lead back to the source"):
        declared(text)


ANOTHER = '[[sinks]]\nname = "other"\nformat = "{format}"\npath = "{path}"\n'


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/lake/orders", "path is also that of sink 'table' (give each a directory of its own)"),
        ("/lake/x/../orders/", "path is also that of sink 'table'"),
        ("file:///lake/orders", "path is also that of sink 'table'"),
        ("/lake/orders/other", "path and that of sink 'table' are one inside the other"),
        ("/lake", "path has the checkpoint inside it"),
        ("/lake/checkpoints/orders", "path is inside the checkpoint"),
        ("/lake/checkpoints/orders/query", "path is inside the checkpoint"),
    ],
)
def test_no_table_shares_its_place_with_another_or_with_the_checkpoint(path, problem):
    with pytest.raises(BadPipeline) as caught:
        declared(GOOD + ANOTHER.format(format="csv", path=path))
    assert f"orders.toml, line 42: sinks[3].{problem}" in str(caught.value)


@pytest.mark.parametrize("path", ["/lake/orders2", "/lake/checkpoints/orders2", "s3a://lake/orders"])
def test_tables_may_be_beside_each_other(path):
    declared(GOOD + ANOTHER.format(format="csv", path=path))


def test_a_place_is_the_same_through_a_link(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path)
    text = GOOD.replace("/lake/orders", f"{tmp_path}/orders")
    with pytest.raises(BadPipeline, match="path is also that of sink 'table'"):
        declared(text + ANOTHER.format(format="csv", path=f"{tmp_path}/link/orders"))


def test_what_two_sinks_of_another_format_do_in_one_place_is_up_to_it():
    text = GOOD + ANOTHER.format(format="delta", path="/lake/changes")
    declared(text + ANOTHER.format(format="delta", path="/lake/changes").replace("other", "another"))
    with pytest.raises(BadPipeline, match="path is also that of sink 'other'"):
        declared(text + ANOTHER.format(format="csv", path="/lake/changes").replace("other", "another"))


def test_a_file_without_sinks_goes_nowhere():
    text = GOOD.partition("[[sinks]]")[0]
    with pytest.raises(BadPipeline, match="sinks is missing"):
        declared(text)


# lines


@given(st.data())
def test_every_key_is_found_in_its_line(data):
    """Against a text of which we know the lines."""
    lines: list[str] = []
    where: dict[tuple[str | int, ...], int] = {}

    def values(prefix):
        for name in data.draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)):
            where[(*prefix, name)] = len(lines) + 1
            value = data.draw(st.sampled_from(VALUES))
            lines.extend(f"{name} = {value}".splitlines())
            lines.extend(data.draw(st.sampled_from(([], [""], ["# c = 1"]))))

    values(())
    for table in data.draw(st.lists(st.sampled_from(("t", "u.v")), unique=True)):
        names = tuple(table.split("."))
        where[names] = len(lines) + 1
        lines.append(f"[{table}]")
        values(names)
    for index in range(data.draw(st.integers(0, 3))):
        where[("w", index)] = len(lines) + 1
        lines.append("[[w]]  # another")
        values(("w", index))
        if data.draw(st.booleans()):
            where[("w", index, "x")] = len(lines) + 1
            lines.append("[w.x]")
            values(("w", index, "x"))
    text = "\n".join(lines)
    tomllib.loads(text)
    found = Lines(text)
    assert {key: found.of(key) for key in where} == where


VALUES = [
    "1",
    '"a = 1"',
    "'[x]'",
    '"""\n[t]\na = 1\n"""',
    "'''\nb = 2\n'''",
    '"""x\\"""\na = 1\n"""',
    "[\n  1,\n  2,\n]",
    "[ # ]\n 1 ]",
    "{ c = 1 }",
    '"\\" # a"',
]


# SQL


def test_the_tables_of_a_query_are_those_it_does_not_make_itself():
    query = "WITH a AS (SELECT * FROM input) SELECT * FROM a JOIN b ON a.x = b.x JOIN lake.c USING (y)"
    assert sorted(sql.tables_of(query)) == ["b", "input", "lake.c"]


def test_windows_of_time_are_known():
    query = "SELECT window(at, '5 minutes').start, count(*) FROM input GROUP BY window(at, '5 minutes')"
    assert sql.tables_of(query) == ["input"]


def test_a_schema_says_which_columns_must_be_there():
    columns = sql.schema_of("id LONG NOT NULL, `a b` STRUCT<c: INT, d: ARRAY<STRING>>, e DECIMAL(10, 2)")
    assert [(column.name, column.required) for column in columns] == [
        ("id", True),
        ("a b", False),
        ("e", False),
    ]


# the command line


def test_validate_and_explain(tmp_path: Path):
    file = tmp_path / "orders.toml"
    file.write_text(GOOD)
    runner = CliRunner()
    result = runner.invoke(app, ["pipeline", "validate", str(file), "--json"])
    assert json.loads(result.stdout) == {"file": str(file), "name": "orders", "valid": True}
    result = runner.invoke(app, ["pipeline", "explain", str(file)])
    assert "exactly once" in result.stdout
    assert set(json.loads(runner.invoke(app, ["pipeline", "explain", str(file), "--json"]).stdout)) == {
        "source",
        "parse",
        "steps",
        "rejects",
        "sinks",
        "runs",
    }


@pytest.mark.parametrize("command", ["validate", "explain", "run"])
def test_a_bad_file_is_one_sentence_and_an_exit_code(tmp_path: Path, command: str):
    file = tmp_path / "orders.toml"
    file.write_text(GOOD.replace("queue", "queu", 1))
    result = CliRunner().invoke(app, ["pipeline", command, str(file)])
    assert result.exit_code == 1
    said = result.output.strip()
    assert said == "leveret: orders.toml, line 5: source.queu is unknown (did you mean 'queue'?)"


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path):
    result = CliRunner().invoke(app, ["pipeline", "validate", str(tmp_path / "none.toml")])
    assert result.exit_code == 1
    assert "can't be read" in result.output


def test_a_new_file_is_a_good_one_and_nothing_is_overwritten(tmp_path: Path):
    file = tmp_path / "orders.toml"
    for code in (0, 1):
        assert CliRunner().invoke(app, ["pipeline", "new", str(file)]).exit_code == code
    found = read(file)
    check(found)
    assert (found.name, found.source.queue) == ("orders", "orders")
    assert found.checkpoint == str(tmp_path / "orders-checkpoint")
    assert found.sinks[0].path == str(tmp_path / "orders-table")


# what is beside a checkpoint


def placed(tmp_path: Path) -> str:
    return GOOD.replace("/lake/checkpoints/orders", str(tmp_path / "checkpoint"))


def plan_a_batch(tmp_path: Path) -> None:
    """As Spark does, when the source has given it one."""
    offsets = tmp_path / "checkpoint" / "query" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()


def test_a_checkpoint_belongs_to_one_pipeline_and_one_source(tmp_path: Path):
    text = placed(tmp_path)
    for _ in range(2):
        State(declared(text)).claim(None)
    plan_a_batch(tmp_path)
    State(declared(text)).check()
    for old, new in (('name = "orders"\n', 'name = "other"\n'), ('queue = "orders"', 'queue = "other"')):
        with pytest.raises(
            BadPipeline, match="line 2: checkpoint belongs to pipeline 'orders' over queue 'orders'"
        ):
            State(declared(text.replace(old, new))).check()


def test_a_checkpoint_with_which_no_batch_was_planned_belongs_to_nobody_and_has_no_schema(tmp_path: Path):
    text = placed(tmp_path)
    State(declared(text.replace('queue = "orders"', 'queue = "odrers"'))).claim("id LONG")
    state = State(declared(text))
    assert state.schema() is None
    state.claim("id STRING")
    plan_a_batch(tmp_path)
    state.check()
    assert state.schema() == "id STRING"


def test_a_schema_beside_a_checkpoint_that_can_not_be_read_is_told_and_can_be_written_down(tmp_path: Path):
    schema = 'schema = "id LONG NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP"'
    text = placed(tmp_path)
    without = declared(text.replace(schema, ""))
    State(without).claim("`http` struct<content-type:string>")
    plan_a_batch(tmp_path)
    told = "line 8: parse.schema as it was inferred does not parse: .*write down which columns are wanted"
    with pytest.raises(BadPipeline, match=told):
        schemas.frozen(None, without)
    written = declared(text)
    assert schemas.frozen(None, written) is written


def test_looking_at_a_checkpoint_leaves_nothing_behind(tmp_path: Path):
    State(declared(placed(tmp_path))).check()
    assert not (tmp_path / "checkpoint").exists()


@pytest.fixture
def somebody() -> Iterator[subprocess.Popen]:
    """Another process that is there."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


@pytest.mark.real
def test_a_checkpoint_whose_pipeline_runs_is_refused_until_its_process_is_gone(tmp_path: Path, somebody):
    state = State(declared(placed(tmp_path)))
    state.report(Status.first("orders").now(state="running", pid=somebody.pid))
    told = rf"'orders' is running already: process {somebody.pid} on .*\(stop that process; .*status.json"
    for look in (state.check, lambda: state.claim(None)):
        with pytest.raises(CheckpointInUse, match=told):
            look()
    file = tmp_path / "orders.toml"
    file.write_text(placed(tmp_path))
    result = CliRunner().invoke(app, ["pipeline", "run", str(file)])
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert "pipeline 'orders' is running already" in result.output
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["status.json"]
    assert state.read().pid == somebody.pid
    long_ago = state.read().updated_s - 60
    state.report(msgspec.structs.replace(state.read(), updated_s=long_ago))  # another has its number by now
    state.check()
    state.report(Status.first("orders").now(state="running", pid=somebody.pid))
    somebody.communicate()
    state.check()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"state": "running", "host": "elsewhere"}, True),
        ({"state": "starting", "host": "elsewhere"}, True),
        ({"state": "stopped", "host": "elsewhere"}, False),
        ({"state": "failed", "host": "elsewhere"}, False),
        ({"state": "running"}, False),
    ],
)
def test_who_has_a_checkpoint_is_known_by_what_he_said_last(changes, refused):
    """The last one is this process: what it left behind, it left in an earlier try."""
    assert Status.first("orders").now(**changes).may_be_at_work is refused


@pytest.mark.parametrize("seconds", [-120, 120])
def test_who_is_on_another_host_and_has_not_been_heard_of_is_gone(seconds):
    status = Status.first("orders").now(state="running", host="elsewhere")
    assert not msgspec.structs.replace(status, updated_s=status.updated_s + seconds).may_be_at_work


def test_how_a_pipeline_is_going_is_seen_from_another_terminal(tmp_path: Path):
    file = tmp_path / "orders.toml"
    file.write_text(GOOD.replace("/lake/checkpoints/orders", "checkpoint"))
    runner = CliRunner()
    result = runner.invoke(app, ["pipeline", "status", str(file)])
    assert (result.exit_code, "has not been run" in result.output) == (1, True)
    state, status = State(read(file)), Status.first("orders")
    state.report(status.now(state="running", batch=7, messages=1200, acked=1000, rejected=3, lag=50))
    result = runner.invoke(app, ["pipeline", "status", str(file)])
    assert "orders: running" in result.stdout
    assert "1,200 messages, 1,000 acked, 3 rejected, 50 messages waiting" in result.stdout
    assert json.loads(runner.invoke(app, ["pipeline", "status", str(file), "--json"]).stdout)["batch"] == 7


@pytest.mark.real
def test_a_run_whose_process_is_gone_is_not_called_running(tmp_path: Path):
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    status = Status.first("orders").now(state="running", pid=int(child.stdout))
    assert status.seen_from_here().state == "gone"
    assert status.now(state="stopped").seen_from_here().state == "stopped"
    assert status.now(host="elsewhere").seen_from_here().state == "running"
    assert Status.first("orders").seen_from_here().state == "starting"
