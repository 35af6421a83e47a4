"""A Spark cluster on this machine whose parts have nothing in common that machines would not have.

    with Standalone(place) as cluster:
        found = submit(place, cluster.url, {"url": …}, "--py-files", str(package_archive(place)))

The driver runs with the Python and the packages of these tests, or with a Python environment like those of
the executors, which have what `leveret.spark` needs, and open no file of Leveret that the tests have. Each
finds its Python by the same name (`python3`), as on machines that are set up alike. Processes are ended by
their ids, with those they have started.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.settings import SETTINGS

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("cluster_job.py")
PACKAGES = ("msgspec", "numpy", "pamqp", "pyarrow", "xxhash")
"""What an executor needs beside Spark and Leveret."""
OURS = ("leveret", "pyspark_leveret")
START_S = 60.0
JOB_S = 200.0
END_S = 20.0
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For Java: ten JVMs that live for seconds are not worth a second compiler."""

_SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.log.level": "WARN",
}
_NO_ENTRY = """\
import sys

ELSEWHERE = {elsewhere!r}


def refuse(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(ELSEWHERE):
        raise PermissionError(f"{{arguments[0]}} is on another machine")


sys.addaudithook(refuse)
"""


def package_archive(place: Path) -> Path:
    """For `--py-files`: the sources, as a user would zip them."""
    archive = place / "leveret.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for name in OURS:
            for file in sorted((ROOT / "src" / name).rglob("*.py")):
                written.write(file, file.relative_to(ROOT / "src"))
    return archive


def executor_environment(place: Path, *, with_leveret: bool) -> Path:
    """The `bin` of a Python environment that has its files to itself, and sees none of the driver's."""
    environment = place / "executor"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(environment)
    (site,) = environment.glob("lib/python*/site-packages")
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        folder = Path(found.origin).parent
        for part in (folder, folder.with_name(f"{name}.libs")):  # where wheels keep libraries of others
            if part.exists():
                shutil.copytree(part, site / part.name, copy_function=_link_or_copy)
    if with_leveret:
        with zipfile.ZipFile(package_archive(place)) as archive:
            archive.extractall(site)
    elsewhere = tuple(str(ROOT / name) for name in ("src", "tests", "bench"))
    (site / "sitecustomize.py").write_text(_NO_ENTRY.format(elsewhere=elsewhere), encoding="utf-8")
    return environment / "bin"


def environment_archive(place: Path) -> Path:
    """For `--archives`: such an environment, as a user would pack it."""
    environment = executor_environment(place, with_leveret=True).parent
    archive = place / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for part in sorted(environment.iterdir()):
            packed.add(part, part.name)
    return archive


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def spark_home(place: Path) -> Path:
    """An installation of Spark: what it writes (`work/`) is not written into that of the tests.

    Its Python package is not zipped: from a zip each process compiles it anew, 0.6 s instead of 0.2 s.
    """
    home = place / "spark"
    if not home.exists():
        installed = Path(pyspark.__path__[0])
        unpacked = home / "python" / "lib" / "pyspark.zip"
        unpacked.mkdir(parents=True)
        (unpacked / "pyspark").symlink_to(installed)
        for name in ("bin", "jars"):
            (home / name).symlink_to(installed / name)
        for bridge in (installed / "python" / "lib").glob("py4j-*.zip"):
            (unpacked.parent / bridge.name).symlink_to(bridge)
    return home


def environment_of(home: Path, programs: Path) -> dict[str, str]:
    """Nothing of what the tests run with but Java and a Python."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
    return kept | {
        "HOME": str(home.parent),
        "JAVA_TOOL_OPTIONS": _SHORT_LIVED,
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYSPARK_PYTHON": "python3",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Standalone:
    """A master and two workers on loopback, each in a directory of its own, and for Spark on another host."""

    def __init__(self, place: Path, programs: Path) -> None:
        """`programs` is where workers find their Python."""
        self._place = place
        self._programs = programs
        self._ending = contextlib.ExitStack()
        self.url = ""

    def __enter__(self) -> "Standalone":
        with contextlib.ExitStack() as ending:
            listening = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            log = self._start(ending, "master", "master.Master", *listening)
            self.url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
            logs = [
                self._start(ending, name, "worker.Worker", *_offer(host), self.url)
                for name, host in zip("ab", ("127.0.0.1", "127.0.0.3"), strict=True)
            ]
            for each in logs:
                _wait_for(each, "(Successfully registered) with master")
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _start(self, ending: contextlib.ExitStack, name: str, kind: str, *arguments: str) -> Path:
        """The file it logs to."""
        place = self._place / name
        home = spark_home(place)
        environment = environment_of(home, self._programs) | {"SPARK_WORKER_DIR": str(place / "work")}
        log = place / "log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        ending.enter_context(_running(command, place, environment, log))
        return log


def _offer(host: str) -> tuple[str, ...]:
    return "--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"


def submit(
    place: Path,
    master: str,
    job: Mapping[str, Any],
    *options: str,
    settings: Mapping[str, str] | None = None,
    programs: Path = Path(sys.executable).parent,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs `cluster_job` with spark-submit, in a directory of its own; what it has found out.

    `programs` is where the driver finds its Python.
    """
    place = place / "driver"
    home = spark_home(place)
    conf = SETTINGS | _SMALL | dict(settings or {})
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", master),
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        *options,
        shutil.copy(JOB, place),
        json.dumps({**job, "answer": str(place / "answer.json")}),
    ]
    log = place / "log"
    environment = environment_of(home, programs) | dict(variables or {})
    with _running(command, place, environment, log) as process:
        code = process.wait(JOB_S)
    assert code == 0, log.read_text(encoding="utf-8")[-6000:]
    answer: dict[str, Any] = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    return answer


@contextlib.contextmanager
def _running(
    command: list[str], place: Path, environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Ended at the end, with what it has started and what is still there of it."""
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=written, stderr=written, start_new_session=True
        )
    try:
        yield process
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)


def _wait_for(log: Path, pattern: str) -> str:
    deadline_s = time.monotonic() + START_S
    while not (found := re.search(pattern, log.read_text(encoding="utf-8"))):
        assert time.monotonic() < deadline_s, log.read_text(encoding="utf-8")
        time.sleep(0.05)
    return found[1]
