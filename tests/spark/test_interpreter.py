"""Spark on this machine runs the Python of the program that starts it: also one that is not on the PATH."""

import os
import subprocess
import sys

import pytest

from leveret.spark.interpreter import use_this_python
from leveret.spark.quiet_logging import settings

NAMES = [
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_REMOTE",
]
PROGRAM = """
import sys
from leveret.spark import session

named = {"spark.master": sys.argv[1]} if len(sys.argv) > 1 else {}
spark = session(**named, **{"spark.ui.enabled": "false"})
print("runs", spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).first())
spark.stop()
"""


@pytest.mark.sample(every=2)
@pytest.mark.real
@pytest.mark.parametrize("master", [["local[1]"], []], ids=["local", "not named"])
def test_a_session_runs_workers_with_the_programs_own_python(tmp_path, master):
    elsewhere = tmp_path / "python3"
    elsewhere.write_text("#!/bin/sh\nexit 3\n")
    elsewhere.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", *NAMES):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *master],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"runs {sys.executable}" in done.stdout.splitlines(), done.stderr[-2000:]


def test_a_python_that_the_environment_names_is_left(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    use_this_python("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_clusters_have_a_python_of_their_own(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    use_this_python("spark://spark.example.com:7077")
    settings("spark://spark.example.com:7077")
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize("name", NAMES)
def test_so_has_a_master_that_may_be_named_elsewhere(monkeypatch, name):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv(name, "x")
    use_this_python("")
    assert "PYSPARK_PYTHON" not in os.environ
