"""What all tests share: the tiers, marks for tools outside Python, RabbitMQ, the end of the summary.

A test that needs such a tool says so with a mark (``@pytest.mark.needs_java``) and skips without it.
The checks themselves are in ``tools.py``. Fixtures of one part live in that part's own ``conftest.py``.
"""

import gc
from collections import Counter
from collections.abc import Generator, Iterator
from functools import lru_cache

import pytest
from hypothesis import settings

from leveret.broker.access import passwords
from tests import histories, tiers
from tests.examples import EXPLORED
from tests.rabbitmq import shared
from tests.rabbitmq.cluster import Cluster, running_cluster
from tests.rabbitmq.node import RabbitMQ
from tests.tools import TOOLS, reason_to_skip

# The profiles of Hypothesis. `make test` must not pass today and fail tomorrow on the same code, so it is not
# random. `explore` looks for new cases: `pytest tests/properties --hypothesis-profile explore`.
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("full", deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=EXPLORED, deadline=None, print_blob=True)

MARKS = {
    "full": "the test is for `make test-all`",
    "histories(sample, full, always=())": "the test plays a random history for each `seed`",
    "sample(every)": "`make test` tries each n-th combination of the parameters only",
    "real": "the test uses TCP, processes or Spark: it is run once more when it fails",
    **{mark: f"the test skips where {mark.removeprefix('needs_')} is missing" for mark in TOOLS},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests that only `make test-all` runs")
    histories.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    if config.getoption("--hypothesis-profile") is None:
        settings.load_profile("full" if config.getoption("full") else "same")
    config.pluginmanager.register(tiers.MarkCheck())
    shared.begin_run()


def pytest_report_header(config: pytest.Config) -> str:
    return histories.header(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    histories.parametrize(metafunc)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: some are 100,000 bytes."""
    is_long = isinstance(val, str | bytes) and len(val) > 80
    return f"{argname} of {len(val)}" if is_long else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    histories.add_replay_command(item, report)
    return report


def pytest_unconfigure() -> None:
    shared.end_run()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = set(tiers.left_to_full_run(items, config))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        tiers.mark_real(item)
        tiers.keep_together(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Thousands of collected tests live until the end. Frozen, they cost no time when garbage is collected.
    gc.collect()
    gc.freeze()
    if getattr(session.config.option, "loadgroup", False):
        tiers.check_groups(session.items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in TOOLS:
        if item.get_closest_marker(mark) and (reason := reason_to_skip(mark)):
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(map(skip_reason, terminalreporter.stats.get("skipped", [])))
    if reasons:
        terminalreporter.section("skipped, and why")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5d}  {reason}")
    unsteady = unsteady_tests(terminalreporter)
    if unsteady:
        terminalreporter.section("unsteady: failed, then passed when run again")
        for test in unsteady:
            terminalreporter.write_line(f"unsteady: {test}")


def unsteady_tests(reporter: pytest.TerminalReporter) -> list[str]:
    failed = {report.nodeid for outcome in ("failed", "error") for report in reporter.stats.get(outcome, [])}
    again = {report.nodeid for report in reporter.stats.get("rerun", [])}
    return sorted(nodeid.partition("@")[0] for nodeid in again - failed)


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the sentence given for a skip, without pytest's own words around it."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(scope="session", autouse=True)
def _quick_logins() -> Iterator[None]:
    """Check each password once: the brokers of a run would hash the same one thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "is_password", lru_cache(passwords.is_password))
        yield


@pytest.fixture(scope="session")
def full_run(pytestconfig: pytest.Config) -> bool:
    """Whether this is `make test-all`. Tests that repeat something may repeat it more often then."""
    return bool(pytestconfig.getoption("full"))


@pytest.fixture(scope="session")
def rabbitmq(worker_id: str) -> RabbitMQ:
    """The RabbitMQ node of this run, with a virtual host for this worker. No test may change or stop it."""
    if reason := reason_to_skip("needs_rabbitmq"):
        pytest.skip(reason)
    # RabbitMQ cuts error texts off at 255 bytes: a name of one letter leaves as much of a text as "/" does.
    return shared.shared_node().with_vhost(worker_id.removeprefix("gw")[0])


@pytest.fixture(scope="session")
def second_rabbitmq() -> Iterator[Cluster]:
    if reason := reason_to_skip("needs_rabbitmq"):
        pytest.skip(reason)
    with running_cluster(1) as running:
        yield running


@pytest.fixture
def own_rabbitmq(second_rabbitmq: Cluster) -> Cluster:
    """A RabbitMQ node that a test may kill, restart and configure. The test puts settings back."""
    second_rabbitmq.start_the_dead()
    return second_rabbitmq
