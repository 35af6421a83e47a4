"""Runs of pipelines from their first moment to their end: what is said of failures, signals, sessions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from leveret.cli.main import app
from leveret.spark.errors import SparkSideError
from leveret.spark.pipelines import BadPipeline, Pipeline, running
from leveret.spark.pipelines.checkpoint_files import State, Status
from leveret.spark.pipelines.declaration import read
from leveret.spark.pipelines.signals import Interrupts
from leveret.spark.pipelines.spark_failures import first_cause
from leveret.testing.broker import Broker
from tests.spark.queues import publish
from tests.spark.rejecting import ids_in_table, order
from tests.spark.spooling import wait_until

pytestmark = pytest.mark.timeout(600)
needs_java = pytest.mark.needs_java
END_S = 120


# what Spark says, in a sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Exception"),
        ("it does not work", "it does not work"),
        (
            """
            [STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: py4j.Py4JException:
              File "batches.py", line 7, in __call__
            leveret.spark.pipelines.errors.TooManyRejects: 3 messages of a batch are rejected (see [rejects])
            """,
            "3 messages of a batch are rejected (see [rejects])",
        ),
        (
            """
            [STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Traceback (most recent):
            pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN] there is no column `x`
            """,
            "[UNRESOLVED_COLUMN] there is no column `x`",
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: no room SQLSTATE: XXKST",
            "no room SQLSTATE: XXKST",
        ),
        (
            """
            An error occurred while calling o7.start.
            : java.io.IOException: mkdir of file:/lake/query failed
            \tat org.apache.hadoop.fs.FileSystem.primitiveMkdir(FileSystem.java:1379)
            """,
            "mkdir of file:/lake/query failed",
        ),
    ],
)
def test_the_first_cause_of_a_failure_is_one_sentence(text, sentence):
    assert first_cause(Exception(textwrap.dedent(text).strip())) == sentence


# signals


def test_a_signal_is_noted_and_a_second_one_interrupts():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts([signal.SIGTERM], is_safe=lambda: False) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_where_nothing_can_be_cut_off_a_signal_interrupts_at_once():
    with Interrupts([signal.SIGTERM], is_safe=lambda: True) as interrupts:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupts.listen()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert interrupts.received == [signal.SIGTERM]


# runs


class Place:
    """A pipeline's file, as people write and run it."""

    def __init__(self, folder: Path, broker: Broker, queue: str) -> None:
        self.folder = folder
        self.broker = broker
        self.queue = queue
        self.file = folder / "pipeline.toml"
        publish(broker.url, f"{queue}.rejected", [])

    def write(
        self,
        *,
        queue: str,
        url: str = "",
        timeout: str = "20 s",
        schema: str = 'schema = "id LONG NOT NULL"',
        more: str = "",
    ) -> None:
        self.file.write_text(f"""
            name = "{self.queue}"
            checkpoint = "checkpoint"
            [source]
            url = "{url or self.broker.url}"
            queue = "{queue}"
            options = {{ brokerTimeout = "{timeout}" }}
            [parse]
            {schema}
            [rejects]
            routing_key = "{self.queue}.rejected"
            [[sinks]]
            name = "table"
            path = "table"
            {more}
        """)

    def run(self) -> SimpleNamespace:
        """In the session of the tests, which is there."""
        done = CliRunner().invoke(app, ["pipeline", "run", str(self.file), "--once", "--json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return SimpleNamespace(code=done.exit_code, said=done.stderr.splitlines(), out=done.stdout)

    @property
    def status(self) -> Status:
        found = State(read(self.file)).read()
        assert found is not None
        return found


@pytest.fixture
def place(leveret: Broker, fresh: Callable[[str], str], tmp_path: Path) -> Place:
    return Place(tmp_path, leveret, fresh("run"))


@needs_java
def test_a_first_run_with_a_wrong_name_fails_in_one_sentence_and_can_be_mended(spark, place):
    publish(place.broker.url, place.queue, [order(1), order(2)])
    place.write(queue="odrers")
    done = place.run()
    assert (done.code, len(done.said)) == (1, 1)
    assert "odrers" in done.said[0]
    assert (place.status.state, place.status.error) == ("failed", done.said[0].removeprefix("leveret: "))
    place.write(queue=place.queue)
    done = place.run()
    assert (done.code, json.loads(done.out)["messages"]) == (0, 2), done.said
    assert ids_in_table(place.folder) == [1, 2]
    assert place.status.state == "stopped"
    assert spark.range(3).count() == 3, "its session was there before, and stays"
    place.write(queue="odrers")
    assert "checkpoint belongs to pipeline" in place.run().said[0]


@needs_java
def test_what_fails_before_the_query_runs_is_one_sentence_too(spark, place):
    place.write(queue=place.queue, url="amqp://localhost:1", timeout="1 s", schema="")
    done = place.run()
    assert (done.code, len(done.said)) == (1, 1)
    assert "no broker answered at amqp://localhost:1" in done.said[0]
    assert (place.status.state, place.status.error) == ("failed", done.said[0].removeprefix("leveret: "))
    assert sorted(path.name for path in (place.folder / "checkpoint").iterdir()) == ["status.json"]
    shutil.rmtree(place.folder / "checkpoint")
    (place.folder / "checkpoint").touch()
    place.write(queue=place.queue)
    done = place.run()
    assert (done.code, len(done.said)) == (1, 1)
    assert "the checkpoint at " in done.said[0]


@needs_java
def test_packages_can_not_be_added_to_a_session_that_is_there(spark, place):
    place.write(queue=place.queue, more='[spark]\npackages = ["org.example:x:1"]')
    with pytest.raises(BadPipeline, match=r"spark\.packages can't be added to the active session"):
        Pipeline.from_toml(place.file).run(once=True)
    assert place.status.state == "failed"


@needs_java
def test_ctrl_c_while_spark_starts_ends_the_run(place):
    publish(place.broker.url, place.queue, [])
    place.write(queue=place.queue)
    command = [sys.executable, "-m", "leveret", "pipeline", "run", str(place.file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        begun = place.folder / "checkpoint" / "status.json"
        wait_until(begun.exists, "it has begun", timeout_s=END_S)
        os.kill(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=END_S)
    assert process.returncode == 128 + signal.SIGINT, said
    assert (json.loads(out)["state"], place.status.state) == ("stopped", "stopped")
    assert "Traceback" not in said


@needs_java
@pytest.mark.parametrize("when", ["starting", "running"])
def test_sigterm_to_the_whole_process_group_ends_the_run_in_order(place, when):
    publish(place.broker.url, place.queue, [])
    place.write(queue=place.queue)
    command = [sys.executable, "-m", "leveret", "pipeline", "run", str(place.file), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        begun = place.folder / "checkpoint" / "status.json"
        wait_until(lambda: begun.exists() and place.status.state == when, f"it is {when}", timeout_s=END_S)
        os.killpg(process.pid, signal.SIGTERM)
        out, said = process.communicate(timeout=END_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert (json.loads(out)["state"], place.status.state, place.status.error) == ("stopped", "stopped", "")
    assert "Traceback" not in said
    assert "Exception" not in said, said


def test_a_status_that_can_not_be_written_for_a_while_does_not_end_the_query(monkeypatch):
    waits, said, stopped = iter([False, False, True]), [], []
    query = SimpleNamespace(awaitTermination=lambda _: next(waits), stop=lambda: stopped.append(True))

    def report(status: str, **changes: str) -> None:
        said.append((status, changes))
        if len(said) != 2:
            raise SparkSideError("the checkpoint's disk is full")

    reporter = running.StatusReporter("before", None, None)
    monkeypatch.setattr(reporter, "report", report)
    monkeypatch.setattr(running, "progressed", lambda *_: "now")
    running._follow(query, None, reporter, lambda: False)
    assert said == [("now", {}), ("now", {}), ("now", {"state": "stopped"})]
    assert stopped == [True]


def test_who_runs_it_is_told_what_can_not_be_written():
    def report(_: Status) -> None:
        raise SparkSideError("the checkpoint's disk is full")

    heard = []
    reporter = running.StatusReporter(Status.first("orders"), SimpleNamespace(report=report), heard.append)
    reporter.try_report(state="stopped")
    assert [status.state for status in heard] == ["stopped"]
