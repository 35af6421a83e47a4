"""The Java that Spark will start: whether it exists, and whether it is new enough.

PySpark checks this too, but fails with a page of text; here the error is one sentence, before Java starts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from leveret.spark.errors import NoJava

OLDEST: Final = 17
"""Oldest version of Java for Spark 4.3."""
_ANSWER_S: Final = 30.0
_HINT: Final = f"install Java {OLDEST} or newer, and set JAVA_HOME"


def check_java(environment: Mapping[str, str] = os.environ) -> int:
    """Return the version of the Java that Spark would use; raise `NoJava` if it is missing or too old."""
    home = environment.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    if path is None:
        raise NoJava("Spark needs Java, and there is none on the PATH", hint=_HINT)
    try:
        process = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        where = "JAVA_HOME" if home else "the PATH"
        raise NoJava(f"Spark needs Java, and the one of {where} does not run: {path}", hint=_HINT) from None
    version = _version(process.stderr + process.stdout)
    if version < OLDEST:
        raise NoJava(f"Spark needs Java {OLDEST}, and {path} is Java {version}", hint=_HINT)
    return version


def _version(text: str) -> int:
    """Return the major version from the output of `java -version`; Java 8 prints 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
