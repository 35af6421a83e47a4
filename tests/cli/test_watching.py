"""`--watch` on a terminal: redrawn in place, also while the broker is away, until Ctrl-C."""

import io
import time

import pytest
from rich.console import Console
from rich.text import Text

from leveret.cli.api import ApiError
from leveret.cli.tables import Page
from leveret.cli.watching import present


@pytest.fixture
def terminal(monkeypatch):
    """Return what is written to a terminal of 40 columns."""
    written = io.StringIO()

    def open_page(page):
        page.console = Console(file=written, force_terminal=True, width=40, height=6, color_system=None)

    monkeypatch.setattr(Page, "__init__", open_page)
    return written


def test_the_last_answer_stays_while_the_broker_is_away(terminal, monkeypatch):
    answers = iter(["first", ApiError("nobody answers"), "second", KeyboardInterrupt()])
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def fetch():
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert present(fetch, lambda _, answer: Text(answer), as_json=False, watch_s=1) == "second"
    seen = terminal.getvalue()
    before, _, after = seen.partition("nobody answers")
    assert "first" in before
    assert "first" in after.partition("second")[0]
    assert "second" in after


def test_what_is_not_watched_is_shown_once(terminal):
    assert present(lambda: "once", lambda _, answer: Text(answer), as_json=False, watch_s=None) == "once"
    assert terminal.getvalue() == "once\n"


def test_a_broker_that_is_away_from_the_start_is_an_error(terminal):
    def fetch():
        raise ApiError("nobody answers")

    with pytest.raises(ApiError):
        present(fetch, lambda _, answer: Text(answer), as_json=False, watch_s=1)
