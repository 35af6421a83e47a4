"""`leveret demo`: the orders it is made of, its processes, and the whole of it with few orders."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from leveret.audit import output_directory
from leveret.cli.api import Api, ApiError
from leveret.cli.demo import jobs
from leveret.cli.demo.broker import Broker
from leveret.cli.demo.orders import (
    MALFORMED,
    NEGATIVE,
    ORDERS_MIN,
    PUBLISHERS,
    UNROUTABLE,
    Plan,
    order_number,
)
from leveret.cli.demo.processes import DemoFailed, Processes
from leveret.cli.demo.records import Action, ActionReader, ActionWriter
from leveret.cli.demo.topology import WORK
from leveret.cli.demo.worker import OrderFailed, check
from tests.cli import command

pytestmark = pytest.mark.real

ORDERS = 3_000
MANY = 300_000
"""Enough orders that a test can look while they are published."""
BAD = MALFORMED + NEGATIVE
ROUTABLE = ORDERS - UNROUTABLE
VALID = ROUTABLE - BAD
NOBODY = "amqp://nobody.invalid"
DEMO_S = 600
GONE_S = 30
SHOWN = """
from leveret.cli.demo.display import KILLED, Display, show
from leveret.cli.demo.verdict import Check
from leveret.cli.tables import escape_unencodable_characters
escape_unencodable_characters()
with Display() as display:
    display.note("broker", "killed", KILLED)
checks = [Check("table", "all of them, each once", True), Check("work", "1 left", False)]
show(checks, ["Data is in B\u00fccher"])
"""


# orders


def published(plan: Plan) -> dict[int, bytes]:
    return {order.number: order.body for part in range(PUBLISHERS) for order in plan.of(part)}


def test_the_orders_are_the_same_each_time():
    assert published(Plan(ORDERS_MIN)) == published(Plan(ORDERS_MIN))


@pytest.mark.parametrize("orders", [ORDERS_MIN, ORDERS, 20_000])
def test_an_order_is_valid_poisonous_or_unroutable_and_one_of_the_valid_ones_hangs(orders):
    plan = Plan(orders)
    assert len(plan.unroutable) == UNROUTABLE
    assert len(plan.malformed) == MALFORMED
    assert len(plan.negative) == NEGATIVE
    assert len(plan.valid) == orders - UNROUTABLE - BAD
    assert plan.hangs in plan.valid
    assert sorted(published(plan)) == list(range(orders))


def test_the_number_of_an_order_is_known_also_when_it_is_torn():
    assert all(order_number(body) == number for number, body in published(Plan(ORDERS_MIN)).items())


def test_a_worker_can_do_something_with_the_valid_orders_and_with_no_poisonous_one():
    plan = Plan(ORDERS_MIN)
    failed = set()
    for number, body in published(plan).items():
        try:
            check(body)
        except OrderFailed:
            failed.add(number)
    assert failed == plan.invalid


# records


def test_what_a_killed_worker_had_written_is_read_up_to_the_last_whole_line(tmp_path):
    path = tmp_path / "worker-1.txt"
    reading = ActionReader(path)
    # The file does not exist yet.
    reading.update()
    record = ActionWriter(str(path))
    record.add(Action.DONE, 17)
    record.add(Action.FAILED, 18)
    with path.open("ab") as file:
        file.write(b"done 1")
    reading.update()
    assert reading.numbers == {
        Action.DONE: Counter([17]),
        Action.FAILED: Counter([18]),
        Action.HANGS: Counter(),
    }
    with path.open("ab") as file:
        file.write(b"9\n")
    reading.update()
    assert reading.count(Action.DONE) == 2
    assert reading.numbers[Action.DONE][19] == 1


# what people see

WORKING = """
import itertools, time
from leveret.cli.demo.display import Display
clock = itertools.count(0, 7)
time.monotonic = lambda: float(next(clock))
with Display() as display:
    line = display.progress_line("audit")
    for doing in ["Spark is starting"] * 9 + ["Spark reads"] * 9:
        getattr(line, "step", line.tell)(doing)
    for count in range(9):
        line.tell(f"{count} messages")
    line.end("all is read")
"""


def worked(**environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
    ran = subprocess.run(
        [sys.executable, "-c", WORKING], capture_output=True, text=True, env={**known, **environment}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


@pytest.mark.parametrize("environment", [{"TERM": "xterm"}, {"TERM": "dumb", "FORCE_COLOR": "1"}])
def test_where_no_line_can_change_there_is_one_line_for_each_step(environment):
    lines = [line.split("audit")[-1].strip() for line in worked(**environment).splitlines() if line.strip()]
    assert lines == ["Spark is starting", "Spark reads", "all is read"]


def test_on_a_terminal_one_line_changes():
    output = worked(TERM="xterm", FORCE_COLOR="1", COLUMNS="100")
    assert "all is read" in output
    assert "\x1b[2K" in output, "no line is rewritten"
    assert "… audit" not in output


def test_a_cold_machine_is_told_that_spark_is_starting(tmp_path):
    pipeline, audit = jobs.Pipeline(tmp_path), jobs.Audit(tmp_path)
    assert (pipeline.doing(), audit.doing()) == (jobs.STARTING, jobs.STARTING)
    (tmp_path / "checkpoint").mkdir()
    for state, doing in (("starting", jobs.STARTING), ("running", "Spark writes orders to a table")):
        (tmp_path / "checkpoint" / "status.json").write_text(json.dumps({"state": state, "batches": 0}))
        assert pipeline.doing() == doing
    output_directory.claim(tmp_path / "audit")
    assert audit.doing() == "Spark reads logs and journals"


def shown(**environment: str) -> command.Ran:
    """Return a note and a verdict as printed in an environment."""
    ran = subprocess.run(
        [sys.executable, "-c", SHOWN], env=command.environment(NOBODY) | environment, capture_output=True
    )
    return command.ended(ran.returncode, ran.stdout, ran.stderr)


def test_an_output_without_any_sign_but_ascii_gets_the_verdict_in_other_marks():
    ran = shown(PYTHONIOENCODING="ascii")
    assert ran.code == 0
    assert ran.lines == [
        "",
        " + table       all of them, each once",
        " ! work        1 left",
        "",
        r"Data is in B\xfccher",
    ]
    assert ran.err == " x broker      killed\n"


def test_a_line_is_whole_in_a_file_and_broken_between_words_on_a_terminal_that_is_too_narrow():
    narrow = {"COLUMNS": "30", "PYTHONIOENCODING": "utf-8"}
    assert " ✔ table       all of them, each once" in shown(**narrow).lines
    lines = [line.rstrip() for line in shown(FORCE_COLOR="1", TERM="xterm", **narrow).lines]
    assert lines[1:3] == [" ✔ table       all of them,", "               each once"]


# processes


async def never() -> bool:
    return False


def test_a_process_that_dies_is_named_with_its_last_words(tmp_path):
    async def wait() -> None:
        processes = Processes(tmp_path)
        await processes.start("broken", "json.tool", "--no-such-option")
        await processes.wait_until(never, "the sky falls", limit_s=30)

    with pytest.raises(DemoFailed, match=r"broken ended with code 2.*no-such-option.*broken\.log"):
        asyncio.run(wait())


async def for_ever() -> bool:
    return await asyncio.get_running_loop().create_future()


def test_looking_for_something_takes_no_longer_than_waiting_for_it(tmp_path):
    with pytest.raises(DemoFailed, match=r"timeout after 0\.01 s, waiting until the sky falls"):
        asyncio.run(Processes(tmp_path).wait_until(for_ever, "the sky falls", limit_s=0.01))


def test_a_broker_that_misses_a_question_is_asked_again(monkeypatch, tmp_path):
    answers = iter([None, {"messages": 17}])

    async def try_get(*path: str) -> object:
        return next(answers)

    broker = Broker(Processes(tmp_path), tmp_path)
    monkeypatch.setattr(broker, "try_get", try_get)
    assert asyncio.run(broker.get("queues", WORK)) == {"messages": 17}


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_was_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        api = Api(f"http://127.0.0.1:{listener.getsockname()[1]}", vhost="/", answer_s=0.05)
        with pytest.raises(ApiError, match="does not answer: timed out"):
            api.get("queues", WORK)


def test_a_wait_that_is_over_says_for_what(tmp_path):
    with pytest.raises(DemoFailed, match="timeout after 0 s, waiting until the sky falls"):
        asyncio.run(Processes(tmp_path).wait_until(never, "the sky falls", limit_s=0))


def test_a_machine_without_java_is_told_so_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "Spark needs Java" in (jobs.missing() or "")


# the whole of it


def left_behind(place: Path) -> list[str]:
    """Return the command lines of processes that still use this directory."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line:
            lines.append(line)
    return lines


def read_until(process: subprocess.Popen[bytes], word: bytes) -> None:
    """Read stderr until a line contains the word."""
    assert process.stderr is not None
    assert any(word in line for line in process.stderr)


def demo(*words: object) -> command.Ran:
    process = command.started("demo", *words, url=NOBODY)
    out, err = process.communicate(timeout=DEMO_S)
    return command.ended(process.returncode, out, err)


@pytest.mark.timeout(DEMO_S)
def test_without_spark_everything_else_is_shown_and_holds(tmp_path):
    place = tmp_path / "demo"
    ran = demo("--without-spark", "--orders", ORDERS, "--dir", place, "--json")
    assert ran.code == 0, ran.err
    assert "skipping pipeline and audit, which need Spark" in ran.err
    assert "killed with -9" in ran.err
    result = ran.result
    assert result["holds"]
    assert [check["name"] for check in result["checks"]] == ["published", "work", "kept", "group"]
    assert result["receipts"]["confirmed"] == ROUTABLE
    assert result["receipts"]["returned"] == UNROUTABLE
    assert result["work"]["done"]["found"] == VALID
    assert result["work"]["dead"]["rejected"]["found"] == BAD
    assert result["report"] is None
    assert left_behind(place) == []


@pytest.mark.full
@pytest.mark.needs_java
@pytest.mark.timeout(DEMO_S)
def test_the_demo_accounts_for_every_message_of_publishers_workers_pipeline_and_group(tmp_path):
    place = tmp_path / "demo"
    ran = demo("--orders", ORDERS, "--dir", place)
    assert ran.code == 0, ran.out.decode() + ran.err
    output = ran.out.decode()
    assert "✘" not in output
    assert "every message is accounted for" in output
    assert f"{VALID:,} rows" in output
    report = place / "audit" / "report.html"
    assert f"The report: {report}" in output
    assert report.exists()
    found = json.loads((place / "audit" / "findings.json").read_bytes())
    assert len(found["holes"]) == 1
    assert left_behind(place) == []


@pytest.mark.timeout(DEMO_S)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_ends_the_demo_and_everything_that_it_has_started(tmp_path):
    place = tmp_path / "demo"
    process = command.started("demo", "--without-spark", "--orders", MANY, "--dir", place, url=NOBODY)
    read_until(process, b"consumers")
    assert len(left_behind(place)) > 5
    os.kill(process.pid, signal.SIGINT)
    ran = command.finished(process)
    assert ran.code == 128 + signal.SIGINT
    assert "stopped" in ran.err
    assert left_behind(place) == []


@pytest.mark.timeout(DEMO_S)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_demo_under_nohup_outlives_its_terminal_and_all_its_processes_end_when_it_is_killed(tmp_path):
    place = tmp_path / "demo"
    process = command.started(
        *("demo", "--without-spark", "--orders", MANY, "--dir", place),
        url=NOBODY,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    read_until(process, b"topology")
    process.send_signal(signal.SIGHUP)
    read_until(process, b"consumers")
    assert len(left_behind(place)) > 5
    process.kill()
    process.communicate()
    stop_s = time.monotonic() + GONE_S
    while left_behind(place) and time.monotonic() < stop_s:
        time.sleep(0.1)
    assert left_behind(place) == []


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    ran = demo("--dir", tmp_path)
    assert ran.code == 1
    assert "is not empty" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_demo_needs_some_orders(tmp_path):
    ran = demo("--orders", 10, "--dir", tmp_path / "demo")
    assert ran.code == 2
    assert not (tmp_path / "demo").exists()
