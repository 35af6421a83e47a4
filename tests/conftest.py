"""What all tests share: marks for tools outside Python, the list of what was skipped, Hypothesis profiles.

A test that needs such a tool says so with a mark (``@pytest.mark.needs_java``) and skips without it.
The checks themselves are in ``tools.py``. Fixtures of one part live in that part's own ``conftest.py``.
"""

import os
from collections import Counter

import pytest
from hypothesis import settings

from tests.tools import TOOLS, reason_to_skip

# A run must not pass today and fail tomorrow on the same code; `explore` is for looking for new cases.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("LEVERET_HYPOTHESIS", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    for mark in TOOLS:
        tool = mark.removeprefix("needs_")
        config.addinivalue_line("markers", f"{mark}: the test needs {tool} and skips when it is missing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in TOOLS:
        if item.get_closest_marker(mark) and (reason := reason_to_skip(mark)):
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(skip_reason(report) for report in skipped)
    if not reasons:
        return
    terminalreporter.section("skipped, and why")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5d}  {reason}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The sentence given for a skip, without pytest's own words around it."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
