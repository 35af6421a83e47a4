"""Failures inside Spark as one sentence, without the stack traces of Java and Python."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

SPARK_FAILED: Final = (PySparkException, Py4JError)
"""Exceptions that a Spark job raises; Py4J's are those without a class in PySpark."""
_QUERY: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")


def first_cause(error: Exception) -> str:
    """Return the message of Leveret's own error if there is one, else of PySpark's, else Java's first."""
    lines = [_QUERY.sub("", line.strip()) for line in str(error).splitlines() if line.strip()]
    for package in ("leveret.", "pyspark.errors."):
        of_package = [line for line in lines if line.startswith(package) and ": " in line]
        if of_package:
            return of_package[-1].partition(": ")[2]
    of_java = [line for line in lines if "Exception: " in line or line.startswith("[")]
    first = of_java[0] if of_java else lines[0] if lines else type(error).__name__
    return first.rpartition("Exception: ")[2]
