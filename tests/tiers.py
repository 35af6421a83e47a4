"""Which tests belong to which run, which may be run again, and which must stay on one worker.

Owns the marks `full` and `real` and the groups of `--dist loadgroup`. What a run holds is told in
`tests/README.md`.

- `full`: the test is for `make test-all` (`pytest --full`) and left out of `make test`.
- `sample(every=n)`: of the test's parameters, `make test` tries each n-th combination, `make test-all` all.
- `real`: the test uses TCP, processes or Spark, so it depends on the machine. Such a test is run once more
  when it fails. Tests that take one of `REAL_FIXTURES`, live in one of `REAL_FOLDERS` or need a tool outside
  Python have this mark without saying so. A test without the mark that connects or starts a process fails.
"""

import sys
from collections import Counter
from collections.abc import Generator

import pytest

from tests.tools import TOOLS

RERUNS = 1

REAL_FIXTURES = frozenset(
    (
        "amqp_url",
        "broker",
        "leveret",
        "leveret_broker",
        "leveret_session",
        "own_leveret",
        "own_rabbitmq",
        "rabbitmq",
        "spark",
    )
)

# Every test in these folders talks to a broker or starts a process.
REAL_FOLDERS = ("differential", "e2e", "fronts/http", "interop", "semantics", "soak")

# A JVM takes seconds to start and a node of RabbitMQ takes ten: one worker has them for everybody.
GROUP_OF_FIXTURE = {"spark": "spark", "own_rabbitmq": "own-rabbitmq"}

REAL_EVENTS = frozenset(("os.fork", "os.posix_spawn", "socket.connect", "subprocess.Popen"))


def check_groups(items: list[pytest.Item]) -> None:
    """Stop the run if pytest-xdist does not see the groups: pytest 9.2 hides them from pytest-xdist 3.8."""
    for item in items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError("This pytest-xdist does not group tests with this pytest.")


def left_to_full_run(items: list[pytest.Item], config: pytest.Config) -> list[pytest.Item]:
    """Return the tests that `make test-all` alone runs. A test that is named with `::` always runs."""
    if config.getoption("full") or any("::" in argument for argument in config.args):
        return []
    combinations: Counter[str] = Counter()
    left_out = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        sample = item.get_closest_marker("sample")
        if item.get_closest_marker("full") or (sample and combinations[test] % sample.kwargs["every"]):
            left_out.append(item)
        combinations[test] += 1
    return left_out


def mark_real(item: pytest.Item) -> None:
    """Add the mark `real` where it goes without saying, and let every real test be run again."""
    tests = item.config.rootpath / "tests"
    is_in_real_folder = any(item.path.is_relative_to(tests / folder) for folder in REAL_FOLDERS)
    uses_real_fixture = not REAL_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    if is_in_real_folder or uses_real_fixture or any(map(item.get_closest_marker, TOOLS)):
        item.add_marker(pytest.mark.real)
    if item.get_closest_marker("real"):
        item.add_marker(pytest.mark.flaky(reruns=RERUNS))


def keep_together(item: pytest.Item) -> None:
    """Put tests that share a costly fixture into one group: all of Spark, or a module with its fixtures."""
    fixtures = getattr(item, "fixturenames", ())
    for fixture, group in GROUP_OF_FIXTURE.items():
        if fixture in fixtures:
            item.add_marker(pytest.mark.xdist_group(group))
            return
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    if any(found[-1].scope == "module" for found in definitions.values()):
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


class MarkCheck:
    """A plugin that fails a test without the mark `real` when the test connects or starts a process."""

    def __init__(self) -> None:
        self.watching = False
        self.event: str | None = None
        sys.addaudithook(self._on_event)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        yield from self._watched(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        yield from self._watched(item)

    def _watched(self, item: pytest.Item) -> Generator[None]:
        self.watching, self.event = not item.get_closest_marker("real"), None
        try:
            yield
        finally:
            self.watching = False
        if self.event:
            pytest.fail(f"This test uses {self.event}: mark it with @pytest.mark.real.", pytrace=False)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.watching and event in REAL_EVENTS and not _is_of_py4j():
            self.event = event


def _is_of_py4j() -> bool:
    """Return whether py4j is at work: it frees objects of a JVM whenever Python collects its garbage."""
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_globals.get("__name__", "").startswith("py4j"):
            return True
    return False
