"""What `make` installs before a target runs: the broker's packages for `make run`, everything for the tests.

Nothing is installed here: `scripts/setup` runs in an empty directory, with a `python3` that only writes down
how it is called, as a user who may install nothing, and without Java.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
SOURCES = ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup")

# `-m venv --clear .venv` makes .venv/bin/python, which is this script again.
PYTHON = """#!/bin/bash
echo "$@" >>calls
if [[ $2 == venv ]]; then
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
fi
"""
NOT_ROOT = "#!/bin/bash\necho 1000\n"


class Checkout:
    """A directory with the files that `make` reads before it runs a target."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "checkout"
        for name in SOURCES:
            target = self.directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        commands = directory / "commands"
        commands.mkdir()
        for name, text in (("python3", PYTHON), ("id", NOT_ROOT)):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        self._environment = {
            "PATH": f"{commands}:{os.defpath}",
            "JAVA_HOME": str(directory / "no-java"),
            "TMPDIR": str(directory),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.directory, env=self._environment, capture_output=True, text=True, timeout=60
        )

    def setup(self, level: str) -> str:
        ran = self.run("scripts/setup", level)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def calls(self) -> list[str]:
        """How Python was called, line by line."""
        return (self.directory / "calls").read_text().splitlines()

    def installed(self) -> str:
        """What pip was asked to install last."""
        return [call for call in self.calls() if call.startswith("-m pip install")][-1].rpartition(" ")[2]

    def steps(self, target: str) -> list[str]:
        """What `make` would do for this target."""
        return self.run("make", "--dry-run", target).stdout.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("level", "package"),
    [("run", "."), ("demo", ".[spark]"), ("dev", ".[spark,dev]"), ("all", ".[spark,dev]")],
)
def test_each_level_installs_its_packages(checkout, level, package):
    checkout.setup(level)
    assert checkout.installed() == package


@pytest.mark.parametrize("level", ["run", "dev"])
def test_broker_and_checks_ask_for_no_tool_outside_python(checkout, level):
    assert "missing" not in checkout.setup(level)


def test_the_demo_asks_for_java_alone(checkout):
    missing = [line for line in checkout.setup("demo").splitlines() if "missing" in line]
    assert len(missing) == 1
    assert "Java" in missing[0]


def test_the_tests_ask_for_java_too(checkout):
    assert "Java 17 or newer is missing" in checkout.setup("all")


@pytest.mark.parametrize("level", ["run", "demo", "dev", "all"])
def test_only_the_level_that_can_run_the_tests_compiles_them(checkout, level):
    checkout.setup(level)
    assert ("-m pytest --collect-only -q" in checkout.calls()) == (level == "all")


def test_a_level_that_does_not_exist_is_refused(checkout):
    ran = checkout.run("scripts/setup", "everything")
    assert (ran.returncode, "run, demo, dev or all" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("target", "level"),
    [("run", "run"), ("demo", "demo"), ("lint", "dev"), ("types", "dev"), ("format", "dev"), ("test", "")],
)
def test_each_target_sets_up_its_own_level(checkout, target, level):
    assert checkout.steps(target)[0] == f"scripts/setup {level}".strip()


@pytest.mark.parametrize(
    ("level", "targets"),
    [
        ("run", {"run"}),
        ("demo", {"run", "demo"}),
        ("dev", {"run", "lint", "types", "format"}),
        ("all", {"run", "demo", "lint", "types", "format", "test"}),
    ],
)
def test_a_level_serves_the_levels_that_it_includes(checkout, level, targets):
    checkout.setup(level)
    all_targets = ("run", "demo", "lint", "types", "format", "test")
    assert {one for one in all_targets if not checkout.steps(one)[0].startswith("scripts/setup")} == targets


def test_changed_pins_are_installed_anew(checkout):
    checkout.setup("all")
    pins = checkout.directory / "constraints.txt"
    newer_s = (checkout.directory / ".venv" / ".ready").stat().st_mtime + 1
    os.utime(pins, (newer_s, newer_s))
    assert checkout.steps("run")[0] == "scripts/setup run"
