"""Runs what is in `examples/`, in a process of its own, as a reader would."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTED = {
    "broker_in_a_test.py": "order 0 (redelivered)\norder 1 (redelivered)\norder 2 (redelivered)\n",
    "store.py": "0 one\n1 two\n",
}


def test_every_example_is_run():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_it_should(name):
    command = [sys.executable, str(ROOT / "examples" / name)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, PRINTED[name], "")


def test_the_readme_leads_to_every_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(examples/{name})" in readme for name in PRINTED)
