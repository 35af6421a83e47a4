"""What files say of time, and which pipelines write in one pass. No Java is needed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.spark.pipelines import single_pass, sql
from leveret.spark.pipelines.batch_state import StateStore
from leveret.spark.pipelines.checkpoint_files import State, Status
from leveret.spark.pipelines.declaration import Declaration, parse, read
from leveret.spark.pipelines.declaration_checks import check
from leveret.spark.pipelines.errors import BadPipeline
from leveret.spark.pipelines.explaining import explain
from leveret.spark.pipelines.lateness import clock_after

GOOD = """\
name = "orders"
checkpoint = "/lake/checkpoints/orders"
[source]
queue = "orders"
[parse]
schema = "id LONG NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP, place STRUCT<city: STRING>"
[watermark]
column = "at"
delay = "10 minutes"
max_ahead = "1 hour"
[dedup]
columns = ["id", "_message.message_id"]
within = "1 hour"
[windows]
gap = "30 minutes"
by = ["customer", "place.city"]
[rejects]
routing_key = "orders.rejected"
[[sinks]]
name = "table"
path = "/lake/orders"
"""


def declared(text: str = GOOD) -> Declaration:
    found = parse(text, file="orders.toml")
    check(found)
    return found


def test_what_will_happen_is_said_in_words():
    parts = dict(explain(declared()))
    assert parts["watermark"][0] == "is 10 minutes before the latest at so far; it never goes back"
    assert parts["watermark"][-1] == (
        "rows whose time is more than 1 hour after their message came are rejected"
    )
    first, then, _ = parts["dedup"]
    assert first.startswith(
        "of rows with the same id, _message.message_id the first is taken, the others are"
    )
    assert then == "a key is remembered until 1 hour after it was last seen, by at"
    assert parts["windows"][0] == (
        "are sessions of customer, place.city: they end when nothing came for 30 minutes"
    )


def test_what_is_not_declared_is_not_spoken_of():
    text = GOOD.partition("[watermark]")[0] + "[rejects]" + GOOD.partition("[rejects]")[2]
    assert not {"watermark", "dedup", "windows"} & set(dict(explain(declared(text))))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('column = "at"', 'colum = "at"', "line 8: watermark.colum is unknown (did you mean 'column'?)"),
        (
            'column = "at"',
            'column = "when"',
            "line 8: watermark.column 'when' is no column of the parsed rows",
        ),
        ('column = "at"', 'column = "id"', "line 8: watermark.column 'id' is BIGINT, and no time"),
        (
            'column = "at"',
            'column = "_message.when"',
            "line 8: watermark.column '_message.when' is not known",
        ),
        ('delay = "10 minutes"', "", "line 7: watermark.delay is missing"),
        ('delay = "10 minutes"', 'delay = "a bit"', "line 9: watermark.delay 'a bit' is not a duration"),
        ('max_ahead = "1 hour"', 'max_ahead = "0 s"', "line 10: watermark.max_ahead '0 s' is not a duration"),
        ('["id", "_message.message_id"]', "[]", "line 12: dedup.columns is wrong: expected"),
        ('["id", "_message.message_id"]', '["ids"]', "line 12: dedup.columns 'ids' is no column"),
        ('within = "1 hour"', 'within = "ever"', "line 13: dedup.within 'ever' is not a duration"),
        ('within = "1 hour"', 'within = "1h"\nduplicates = "x"', "line 14: dedup.duplicates is wrong"),
        ('gap = "30 minutes"', "", "line 14: windows is either of a length or with a gap"),
        ('gap = "30 minutes"', 'gap = "1h"\nlength = "1h"', "line 14: windows is either of a length or"),
        ('gap = "30 minutes"', 'length = "1h"', "line 16: windows.by is only for sessions"),
        ('by = ["customer", "place.city"]', "", "line 14: windows.by is missing (sessions are somebody's"),
        ('by = ["customer", "place.city"]', 'by = ["user"]', "line 16: windows.by 'user' is no column"),
        (
            '[watermark]\ncolumn = "at"\ndelay = "10 minutes"\nmax_ahead = "1 hour"\n',
            "",
            "line 10: windows needs a watermark",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, sentence):
    assert GOOD.count(old) == 1
    with pytest.raises(BadPipeline) as caught:
        declared(GOOD.replace(old, new))
    assert f"orders.toml, {sentence}" in str(caught.value)


def test_columns_are_not_known_before_the_schema_is():
    text = GOOD.replace(GOOD.splitlines()[5], "").replace('"at"', '"whenever"')
    assert declared(text).parse.schema is None


def test_the_watermark_never_goes_back():
    mark = declared().watermark
    delay_us = 600_000_000
    assert clock_after(None, None, mark) is None
    assert clock_after(None, delay_us + 5, mark) == 5
    assert clock_after(7, delay_us + 5, mark) == 7
    assert clock_after(7, None, mark) == 7
    assert clock_after(7, 9, None) == 9


def test_status_tells_duplicates_and_what_waits_in_windows(tmp_path: Path):
    file = tmp_path / "orders.toml"
    file.write_text(GOOD.replace("/lake/checkpoints/orders", "checkpoint"))
    state, status = State(read(file)), Status.first("orders")
    state.report(
        status.now(state="running", messages=1200, acked=900, rejected=3, duplicates=1, in_windows=40)
    )
    result = CliRunner().invoke(app, ["pipeline", "status", str(file)])
    assert "1,200 messages, 900 acked, 3 rejected, 1 duplicate, 40 waiting in windows" in result.stdout


def test_a_file_without_windows_or_with_another_time_is_refused_while_rows_wait(tmp_path: Path):
    text = GOOD.replace("/lake/checkpoints/orders", str(tmp_path))
    notes = tmp_path / "state" / "notes"
    notes.mkdir(parents=True)
    (notes / "7.json").write_text(
        json.dumps({"time": "at", "clock_us": 5, "keys": [], "waiting": 3, "schemas": {}})
    )
    assert StateStore(declared(text)).count_waiting() == 3
    without = text.partition("[windows]")[0] + "[rejects]" + text.partition("[rejects]")[2]
    with pytest.raises(BadPipeline, match="windows is missing, and 3 rows of the checkpoint wait in windows"):
        StateStore(declared(without)).count_waiting()
    another = text.replace('column = "at"', 'column = "_message.timestamp"')
    with pytest.raises(BadPipeline, match=r"line 8: watermark\.column was 'at', and 3 rows of the checkp"):
        StateStore(declared(another)).count_waiting()


def test_what_is_explained_shows_no_keys():
    text = GOOD.replace('path = "', 'path = "s3a://KEY:SE/CRET@').replace(
        "/lake/check", "s3://KEY:SECRET@lake/check"
    )
    said = str(explain(declared(text)))
    assert "s3a://" in said
    assert "lake/checkpoints/orders" in said
    assert "KEY" not in said
    assert "CRET" not in said


def test_a_path_with_a_scheme_is_not_beside_the_file():
    for place in ("file:/checks/o", "file:///checks/o", "s3a://checks/o", "/checks/o"):
        text = GOOD.replace("/lake/checkpoints/orders", place)
        assert declared(text).checkpoint == place


def test_a_column_that_waiting_rows_have_can_not_be_given_up(tmp_path: Path):
    text = GOOD.replace("/lake/checkpoints/orders", str(tmp_path))
    notes = tmp_path / "state" / "notes"
    notes.mkdir(parents=True)
    names = [*(each.name for each in sql.schema_of(declared(text).parse.schema)), "_message", "_body"]

    def wait_with(*columns: str) -> None:
        waiting = json.dumps({"type": "struct", "fields": [{"name": name} for name in columns]})
        note = {"time": "at", "clock_us": 5, "keys": [], "waiting": 3, "schemas": {"waiting": waiting}}
        (notes / "7.json").write_text(json.dumps(note))

    wait_with(*names)
    assert StateStore(declared(text)).count_waiting() == 3
    wait_with(*names, "Price", "tip")
    with pytest.raises(BadPipeline, match=r"schema has no column 'Price', and 3 rows of the checkpoint wait"):
        StateStore(declared(text)).count_waiting()


# in one pass

PLAIN = """\
name = "orders"
checkpoint = "/lake/checkpoints/orders"
[source]
queue = "orders"
[parse]
schema = "id LONG NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP"
[[tables]]
name = "customers"
path = "/lake/customers"
[[expectations]]
that = "amount > 0"
[rejects]
routing_key = "orders.rejected"
[[steps]]
name = "dated"
sql = "SELECT *, date(at) AS day FROM input WHERE amount > 1"
[[steps]]
name = "large"
sql = "SELECT * FROM dated WHERE amount > 100"
[[sinks]]
name = "table"
path = "/lake/orders"
"""


def test_rows_that_come_by_once_are_written_in_one_pass():
    assert single_pass.possible(declared(PLAIN))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[[steps]]\nname = "dated"', 'max_count = 5\n[[steps]]\nname = "dated"'),
        ('[[steps]]\nname = "dated"', 'max_share = 0.5\n[[steps]]\nname = "dated"'),
        ('that = "amount > 0"', 'that = "amount > 0"\nstep = "dated"'),
        ('that = "amount > 0"', 'that = "at < now()"'),
        ('that = "amount > 0"', "that = \"at < timestamp 'now'\""),
        ('that = "amount > 0"', 'that = "rand() < amount"'),
        ("FROM dated WHERE amount > 100", "FROM dated LIMIT 5"),
        ("SELECT * FROM dated", "SELECT DISTINCT customer FROM dated"),
        ("SELECT * FROM dated WHERE amount > 100", "SELECT count(*) FROM dated"),
        ("FROM dated WHERE", "FROM dated JOIN customers USING (customer) WHERE"),
        ("FROM dated WHERE amount > 100", "FROM dated UNION ALL SELECT * FROM dated"),
        ("FROM dated WHERE", "FROM customers WHERE"),
        ('path = "/lake/orders"', 'format = "console"'),
        ('path = "/lake/orders"', 'path = "/lake/orders"\n[[sinks]]\nname = "b"\npath = "/lake/b"'),
        ('path = "/lake/orders"', 'path = "/lake/orders"\n[dedup]\ncolumns = ["id"]\nwithin = "1h"'),
    ],
)
def test_rows_that_are_needed_more_than_once_are_kept(old, new):
    assert PLAIN.count(old) == 1
    assert not single_pass.possible(declared(PLAIN.replace(old, new)))
