"""Programs in other languages, built once for each version of their sources.

Owns the cache (`.interop-cache/` at the project's root): one folder per program, named after a hash of its
sources, so that a second run neither downloads nor compiles. Which programs there are, and what they must
say, is left to `test_other_languages.py`. Nothing is ever written next to the sources.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
CACHE = SOURCES.parents[1] / ".interop-cache"
BUILD_TIMEOUT_S = 600

# What npm, go and mvn say when the registry is out of reach. Anything else is a fault of ours.
UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED|dial tcp|no such host"
    r"|Unknown host|Connect(ion)? (timed out|refused)|Could not transfer artifact|Network is unreachable"
)


@dataclass(frozen=True)
class Program:
    """How one program is built and started, in terms of the folder with its sources and the built one.

    >>> Program("go", tools=("go",), build=build_go, command=lambda built: [str(built / "tour")])
    """

    name: str
    tools: tuple[str, ...]
    build: Callable[[Path], None]
    command: Callable[[Path], list[str]]


def built(program: Program) -> Path:
    """The folder with the built program; skips the test when a tool or the registry is missing."""
    missing = [tool for tool in program.tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"Install {' and '.join(missing)} to run the tour in {program.name}.")
    sources = SOURCES / program.name
    target = CACHE / f"{program.name}-{digest(sources)}"
    if not target.exists():
        unfinished = CACHE / f"{target.name}.{os.getpid()}"
        shutil.copytree(sources, unfinished)
        try:
            program.build(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        forget_others(target, program.name)
    return target


def forget_others(target: Path, name: str) -> None:
    """Removes what was built from earlier sources of the same program."""
    for folder in CACHE.glob(f"{name}-*"):
        if folder != target:
            shutil.rmtree(folder, ignore_errors=True)


def digest(folder: Path) -> str:
    """A hash over names and contents of all files in a folder."""
    summary = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        summary.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return summary.hexdigest()[:16]


def fetch(command: list[str], folder: Path) -> None:
    """Runs a command that downloads packages; a registry out of reach is a reason to skip."""
    ran = run(command, folder)
    if ran.returncode and UNREACHABLE.search(ran.stdout):
        pytest.skip(f"The packages for the tour in {folder.name.split('-')[0]} can't be fetched from here.")
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}"


def compile_with(command: list[str], folder: Path) -> None:
    ran = run(command, folder)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}"


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )


def build_node(folder: Path) -> None:
    quick = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000"]
    fetch(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", *quick], folder)


def build_go(folder: Path) -> None:
    fetch(["go", "mod", "download"], folder)
    compile_with(["go", "build", "-o", "tour", "."], folder)


def build_java(folder: Path) -> None:
    """Maven resolves, javac compiles: the usual `mvn compile` would fetch plugins for the same result."""
    maven = ["mvn", "--batch-mode", "--no-transfer-progress", "--quiet"]
    goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"  # of the version in the pom
    fetch([*maven, goal, "-DoutputDirectory=lib"], folder)
    files = [str(path.relative_to(folder)) for path in folder.glob("src/main/java/**/*.java")]
    options = ["--release", "17", "-encoding", "UTF-8", "-parameters", "-proc:none", "-Werror", "-Xlint:all"]
    compile_with(["javac", *options, "-cp", "lib/*", "-d", "classes", *files], folder)


def java_command(main_class: str) -> Callable[[Path], list[str]]:
    def command(built_folder: Path) -> list[str]:
        parts = (built_folder / "classes", built_folder / "src/main/resources", built_folder / "lib" / "*")
        # Short-lived: the second compiler would cost more than it saves.
        quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        return ["java", *quick, "-cp", os.pathsep.join(map(str, parts)), main_class]

    return command
