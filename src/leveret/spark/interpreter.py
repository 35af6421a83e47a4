"""Which Python Spark runs. Left alone it is `python3` of the PATH: often not the one with Leveret in it."""

from __future__ import annotations

import os
import sys


def use_this_python(master: str) -> None:
    """Spark on this machine runs the program's own Python, unless the environment names another."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
