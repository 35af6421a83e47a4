"""What people install works in an empty virtual environment: the wheel, and the source distribution.

Each is built from a copy of the sources, installed by a plain `pip install`, and then used as a newcomer
would: the version, a broker, a publish, a consume. Nothing of the checkout or of .venv is on the path.
"""

import os
import re
import select
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leveret import __version__

ROOT = Path(__file__).parent.parent.parent
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md")
PINS = ROOT / "constraints.txt"

INSTALL_S = 240
COMMAND_S = 30

# What pip says when it can't connect to a package index, as on a machine without a network.
OUT_OF_REACH = "connection broken by"

# Packages that only tests or Spark need, and pydantic, which later versions of typer require.
UNWANTED = {"numpy", "pandas", "pika", "pyarrow", "pydantic", "pyspark", "pytest"}


def outside_environment() -> dict[str, str]:
    """Return this process's environment without what would show Python the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str | Path, directory: Path, timeout_s: float, stdin: str = "") -> str:
    """Run a command to its end and return what it wrote to stdout; it knows nothing of the checkout."""
    ran = subprocess.run(
        command,
        cwd=directory,
        env=outside_environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if ran.returncode and OUT_OF_REACH in ran.stdout + ran.stderr:
        pytest.skip("Connect this machine to a package index to run the tests of the packages.")
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def built(kind: str, directory: Path) -> Path:
    """Return the wheel or the source distribution, built from a copy of the sources."""
    sources = directory / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in (*BUILT_FROM, PINS.name):
        shutil.copy(ROOT / name, sources)
    command = (sys.executable, "-m", "build", f"--{kind}", "--outdir", directory / "dist", sources)
    run(*command, directory=directory, timeout_s=INSTALL_S)
    (package,) = (directory / "dist").iterdir()
    return package


def installed(package: Path, directory: Path) -> Path:
    """Return the directory of the programs of an empty environment with this package."""
    venv.create(directory / "empty", with_pip=True)
    programs = directory / "empty" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "-c", PINS, package, directory=directory, timeout_s=INSTALL_S)
    run(*pip, "check", directory=directory, timeout_s=COMMAND_S)
    return programs


def packages_in(programs: Path) -> set[str]:
    (site,) = programs.parent.glob("lib/python*/site-packages")
    return {info.name.partition("-")[0].lower() for info in site.glob("*.dist-info")}


@contextmanager
def serving(programs: Path, directory: Path) -> Iterator[str]:
    """Run a broker on free ports, and end exactly that process; yields its URL."""
    command = (programs / "leveret", "serve", "--port", "0", "--data-dir", directory / "data")
    with (directory / "serve.log").open("w") as log:
        broker = subprocess.Popen(
            command,
            cwd=directory,
            env=outside_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline() if select.select([broker.stdout], [], [], COMMAND_S)[0] else ""
        ready = re.match(r"leveret: ready on amqp://127\.0\.0\.1:(\d+)", line)
        assert ready, f"{line!r} {(directory / 'serve.log').read_text()}"
        yield f"amqp://guest:guest@127.0.0.1:{ready[1]}/"
        broker.terminate()
        assert broker.wait(COMMAND_S) == 0
    finally:
        broker.kill()
        broker.wait()
        broker.stdout.close()


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.full)])
def test_an_installed_package_serves_publishes_and_consumes(kind, tmp_path):
    programs = installed(built(kind, tmp_path), tmp_path)
    assert packages_in(programs) & UNWANTED == set()

    def leveret(*words: str, stdin: str = "") -> str:
        return run(programs / "leveret", *words, directory=tmp_path, timeout_s=COMMAND_S, stdin=stdin)

    assert leveret("--version") == f"leveret {__version__}\n"
    with serving(programs, tmp_path) as url:
        leveret("publish", "--url", url, "--queue", "orders", "--declare", stdin="first\nsecond\n")
        assert leveret("consume", "--url", url, "orders", "--count", "2") == "first\nsecond\n"
