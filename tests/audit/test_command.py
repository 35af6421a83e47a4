"""The command `leveret audit` with a made-up audit: its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from leveret.audit import job
from leveret.audit.findings import Findings
from leveret.cli.main import app
from leveret.storage.files import OsFiles
from tests.audit import examples
from tests.processes import WAIT_S
from tests.storage.builders import make_store, messages

Run = Callable[..., Result]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store = make_store(OsFiles(str(tmp_path / "data")))
    log = store.create_log(label='["/", "orders"]')
    store.create_cursor(log, "queue")
    store.append(log, messages(3))
    store.close()
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(findings)` runs the command with an audit that returns these findings, or raises this error."""

    def run(result: Findings | BaseException, *words: str, charset: str = "utf-8") -> Result:
        def audited(*_: Any, **__: Any) -> Findings:
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(job, "run", audited)
        arguments = ["audit", "--data", str(data), "--out", str(tmp_path / "out"), *words]
        return CliRunner(charset=charset).invoke(app, arguments, catch_exceptions=False)

    return run


@pytest.mark.parametrize("findings", [examples.well(), examples.lost_and_doubled()], ids=["well", "lost"])
def test_json_begins_with_the_verdict_and_its_figures(run: Run, tmp_path: Path, findings: Findings) -> None:
    ran = run(findings, "--json")
    written = json.loads(ran.stdout)
    assert written == json.loads((tmp_path / "out" / "findings.json").read_bytes())
    assert list(written)[:3] == ["holds", "lost_count", "doubled_count"]
    assert written["holds"] == findings.holds == (ran.exit_code == 0)
    assert (written["lost_count"], written["doubled_count"]) == (findings.lost_count, findings.doubled_count)


def test_an_ascii_terminal_gets_ascii(run: Run) -> None:
    account = examples.account(examples.Reader("épicerie"), published=3)
    findings = msgspec.structs.replace(examples.well(), queues=[account])
    assert all(text in run(findings).stdout for text in ("épicerie", "6.8 × as fast"))
    ran = run(findings, charset="ascii")
    assert (ran.exit_code, ran.stdout.isascii()) == (0, True)
    assert all(text in ran.stdout for text in ("?picerie", "6.8 x as fast"))


def test_ctrl_c_ends_the_command_with_130_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    ran = run(KeyboardInterrupt())
    assert (ran.exit_code, ran.stdout) == (130, "")
    assert ran.stderr == "leveret: stopped before the audit was finished\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.real
def test_a_spark_that_does_not_start_is_reported_in_one_sentence(data: Path, tmp_path: Path) -> None:
    """A Java that reports its version and then fails."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\ncase "$*" in *-version*) echo \'openjdk version "17.0.1"\' >&2;; *) exit 1; esac\n'
    )
    java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-m", "leveret", "audit", "--data", data, "--out", tmp_path / "out"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Traceback" not in ran.stderr
    assert "leveret: Spark does not start: " in ran.stderr.splitlines()[-1]
