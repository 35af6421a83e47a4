"""The Java that Spark will start: whether there is one, and whether it is new enough.

PySpark finds out by itself, with a page of text; this says it in a sentence, before anything is started.
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
"""What Spark 4.3 asks for."""
_ANSWER_S: Final = 30.0
_HINT: Final = f"install Java {OLDEST} or newer, and let JAVA_HOME name it"


def check_java(environment: Mapping[str, str] = os.environ) -> int:
    """The version of the Java that Spark would use; `NoJava` when it would fail."""
    home = environment.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    if path is None:
        raise NoJava("Spark needs Java, and there is none on the PATH", hint=_HINT)
    try:
        ran = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        where = "JAVA_HOME" if home else "the PATH"
        raise NoJava(f"Spark needs Java, and the one of {where} does not run: {path}", hint=_HINT) from None
    version = _version(ran.stderr + ran.stdout)
    if version < OLDEST:
        raise NoJava(f"Spark needs Java {OLDEST}, and {path} is Java {version}", hint=_HINT)
    return version


def _version(text: str) -> int:
    """From what `java -version` prints; up to Java 8 they were called 1.8."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0
