"""Which tools outside Python are on this machine.

Owns the checks behind the ``needs_*`` marks and the sentence a skipped test gives as its reason.
What to do with the answer is left to ``conftest.py``; installing is left to ``scripts/setup``.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from glob import glob

MINIMUM_JAVA = 17

RABBITMQ_DIRECTORIES = ("/usr/sbin", "/usr/lib/rabbitmq/bin")  # not on the path of an ordinary user
POSTGRESQL_DIRECTORIES = "/usr/lib/postgresql/*/bin"  # Debian has one for each version
POSTGRESQL_JAR = "/usr/share/java/postgresql.jar"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def java() -> str | None:
    """The Java that Spark would start, when it is new enough."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if found is None:
        return None
    try:
        ran = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version = java_version(ran.stderr)
    return found if version is not None and version >= MINIMUM_JAVA else None


def java_version(text: str) -> int | None:
    """The major version in what ``java -version`` prints.

    >>> java_version('openjdk version "17.0.15" 2025-04-15')
    17
    """
    match = re.search(r'version "(\d+)', text)
    return int(match[1]) if match else None


def rabbitmq() -> str | None:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *RABBITMQ_DIRECTORIES))
    return shutil.which("rabbitmq-server", path=path)


def node() -> str | None:
    return shutil.which("node")


def postgresql() -> str | None:
    """The folder of its programs, where the driver for Java is there too."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *sorted(glob(POSTGRESQL_DIRECTORIES))))
    found = shutil.which("initdb", path=path)
    return os.path.dirname(os.path.realpath(found)) if found and os.path.exists(POSTGRESQL_JAR) else None


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


# mark -> where the tool is (or None), and what a test says that has to do without it
TOOLS: dict[str, tuple[Callable[[], str | None], str]] = {
    "needs_java": (java, f"Install Java {MINIMUM_JAVA} or newer to run this test on Spark."),
    "needs_rabbitmq": (rabbitmq, "Install RabbitMQ (rabbitmq-server) to run this test against it."),
    "needs_node": (node, "Install Node.js (node) to run this test with JavaScript clients."),
    "needs_postgresql": (
        postgresql,
        "Install PostgreSQL and its driver for Java (postgresql, libpostgresql-jdbc-java) to run this test.",
    ),
    "needs_browser": (browser, "Install Chromium to run this test in a real browser."),
}


@cache
def reason_to_skip(mark: str) -> str | None:
    """The sentence that says what to install, or None when the tool of this mark is there."""
    find, sentence = TOOLS[mark]
    return None if find() else sentence
