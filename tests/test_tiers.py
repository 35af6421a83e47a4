"""The rules of `make test` and `make test-all`: which tests run, which run again, and what the summary says.

Each test writes a small project and runs pytest on it, with the conftest.py of this folder as a plugin.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import WAIT_S

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.real


def run_pytest(directory: Path, code: str, *options: str) -> str:
    """Run pytest on a test file with this code and return its output."""
    (directory / "tests").mkdir()
    (directory / "tests" / "test_it.py").write_text(f"import pytest\n{code}")
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\naddopts = --strict-markers\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    ran = subprocess.run([*command, "tests"], cwd=directory, capture_output=True, text=True, timeout=WAIT_S)
    return ran.stdout + ran.stderr


FAILS_ONCE = """
calls = []

@pytest.mark.real
def test_a_process():
    calls.append(1)
    assert len(calls) == 2
"""


def test_a_real_test_that_fails_is_run_again_and_listed_as_unsteady(tmp_path):
    output = run_pytest(tmp_path, FAILS_ONCE)
    assert "1 passed, 1 rerun" in output
    assert "unsteady: tests/test_it.py::test_a_process" in output


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        pytest.param("@pytest.mark.real", "", "1 failed", id="without the mark"),
        pytest.param("== 2", "== 3", "1 failed, 1 rerun", id="twice"),
    ],
)
def test_a_test_that_fails_for_good_fails_the_run(tmp_path, before, after, result):
    output = run_pytest(tmp_path, FAILS_ONCE.replace(before, after))
    assert re.search(rf"^=+ {result} in ", output, re.MULTILINE)
    assert "unsteady" not in output


@pytest.mark.parametrize(
    "line",
    [
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.socket().connect_ex(('127.0.0.1', 1))",
    ],
)
def test_a_test_that_uses_the_machine_needs_the_mark(tmp_path, line):
    code = f"def test_it():\n    {line}\n"
    assert "mark it with @pytest.mark.real" in run_pytest(tmp_path, code)


FULL = """
@pytest.mark.full
def test_a_cluster():
    pass

@pytest.mark.sample(every=3)
@pytest.mark.parametrize("number", range(10))
def test_a_grid(number):
    pass

@pytest.mark.histories(sample=2, full=20, always=(77,))
def test_a_history(seed):
    assert seed != 13
"""


def test_a_run_that_is_not_full_takes_a_sample(tmp_path):
    assert "7 passed, 7 deselected" in run_pytest(tmp_path, FULL)


def test_a_full_run_begins_with_the_seed_that_it_is_given(tmp_path):
    output = run_pytest(tmp_path, FULL, "--full", "--seed", "1000")
    assert "random histories: seeds from 1000 on" in output
    assert "32 passed" in output


def test_a_history_that_fails_prints_the_command_that_replays_it(tmp_path):
    output = run_pytest(tmp_path, FULL, "--full")
    command = re.search(r"^\.venv/bin/pytest '(\S+)' (.*)$", output, re.MULTILINE)
    assert command is not None
    assert command[1] == "tests/test_it.py::test_a_history"
    assert command[2] == "--seed 13 --histories 1"


def test_the_summary_says_what_was_skipped_and_why(tmp_path):
    code = "def test_it():\n    pytest.skip('Install RabbitMQ.')\n"
    assert re.search(r"skipped, and why.*\s+1  Install RabbitMQ\.", run_pytest(tmp_path, code))
