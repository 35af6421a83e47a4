"""What goes wrong inside Spark, as one sentence: without the pages of Java and Python around it."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_FAILED: Final = (PySparkException, Py4JError)
"""What a job of Spark raises; the second where it has no name for it."""
_QUERY: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")


def first_cause(error: Exception) -> str:
    """What we say ourselves, if it is ours; else what Spark says in Python; else the first that Java says."""
    lines = [_QUERY.sub("", line.strip()) for line in str(error).splitlines() if line.strip()]
    for ours in ("leveret.", "pyspark.errors."):
        told = [line for line in lines if line.startswith(ours) and ": " in line]
        if told:
            return told[-1].partition(": ")[2]
    named = [line for line in lines if "Exception: " in line or line.startswith("[")]
    found = named[0] if named else lines[0] if lines else type(error).__name__
    return found.rpartition("Exception: ")[2]
