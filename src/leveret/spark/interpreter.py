"""Which Python Spark runs. Left alone it is `python3` of the PATH: often not the one with Leveret in it."""

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
"""Where a master may come from when the program names none: `spark-submit`, its arguments, its settings."""


def use_this_python(master: str) -> None:
    """Spark on this machine runs the program's own Python, unless the environment names another."""
    if _is_here(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _is_here(master: str) -> bool:
    """Nobody has named one: then Spark runs on this machine."""
    return master.startswith("local") or not (master or any(map(os.environ.get, _NAMES_OF_MASTERS)))
