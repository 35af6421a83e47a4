"""The process in which Spark asks for offsets ends without a traceback when Spark has gone."""

import subprocess
import sys

import pytest

from tests.processes import WAIT_S

pytestmark = pytest.mark.real

PROGRAM = """
import sys
from importlib.machinery import ModuleSpec
from leveret.spark.stream_runner import end_quietly_without_spark
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
end_quietly_without_spark()
raise {error}
"""
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@pytest.mark.parametrize(
    ("module", "error", "is_shown"),
    [
        (RUNNER, "BrokenPipeError", False),
        (RUNNER, "ValueError", True),
        ("somebody.elses.program", "BrokenPipeError", True),
    ],
)
def test_only_a_closed_connection_to_spark_is_not_shown(module: str, error: str, is_shown: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(error=error), module]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, is_shown)
