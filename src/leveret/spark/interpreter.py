"""Which Python Spark runs: by default `python3` of the PATH, where Leveret is often not installed."""

from __future__ import annotations

import os
import sys

_NAMES_OF_MASTERS = (
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_REMOTE",
)
"""Variables that may name a master if the program names none: from `spark-submit` and Spark's settings."""


def use_this_python(master: str) -> None:
    """Make Spark on this machine run the program's own Python, unless the environment names another."""
    if _is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _is_local(master: str) -> bool:
    """Return whether Spark runs on this machine, as it does without any master."""
    return master.startswith("local") or not (master or any(map(os.environ.get, _NAMES_OF_MASTERS)))
