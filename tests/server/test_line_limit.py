"""The limit of log lines: some are written, all are counted."""

import logging
from collections.abc import Callable

import pytest

from leveret.server.line_limit import LineLimit

LOG = logging.getLogger("leveret.test")


class Period:
    """Holds the function that ends the period, until the test calls it."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    def __call__(self, seconds: float, end: Callable[[], None]) -> None:
        self.ends.append(end)


@pytest.fixture
def period() -> Period:
    return Period()


@pytest.fixture
def limit(period: Period, caplog: pytest.LogCaptureFixture) -> LineLimit:
    caplog.set_level(logging.DEBUG)
    return LineLimit(LOG, "failed logins", later=period)


def test_few_lines_are_all_written(
    limit: LineLimit, period: Period, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        limit.log("10.0.0.7", "login %d", number, fields={"number": number})
    assert caplog.messages == [f"login {number}" for number in range(10)]
    assert [vars(record)["number"] for record in caplog.records] == list(range(10))
    (end,) = period.ends
    end()
    assert len(caplog.messages) == 10


def test_a_flood_from_one_source_is_counted_and_hides_no_other_source(
    limit: LineLimit, period: Period, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(500):
        limit.log("10.0.0.7", "login from 7")
    limit.log("10.0.0.8", "login from 8")
    assert caplog.messages == ["login from 7"] * 10 + ["login from 8"]
    caplog.clear()
    period.ends.pop()()
    assert caplog.messages == ["490 more failed logins within 60 s: 490 from 10.0.0.7"]


def test_a_flood_from_thousands_of_sources_is_bounded_too(
    limit: LineLimit, period: Period, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5_000):
        limit.log(f"source {number}", "login")
    assert len(caplog.messages) == 100
    caplog.clear()
    period.ends.pop()()
    (line,) = caplog.messages
    assert line.startswith("4900 more failed logins within 60 s: 3900 from other addresses, 1 from ")


def test_the_next_period_begins_with_the_next_line(
    limit: LineLimit, period: Period, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(11):
        limit.log("10.0.0.7", "login")
    period.ends.pop()()
    assert period.ends == []
    caplog.clear()
    limit.log("10.0.0.7", "login")
    assert caplog.messages == ["login"]
    assert len(period.ends) == 1
