"""Messages for humans on stderr: notices, progress bars, the sentence at the end. stdout is for programs.

Progress bars are shown only on a terminal. Of the toolkit's log, only what a waiting user needs is shown: the
connection was lost, it is back, the broker takes no messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NoReturn, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from leveret.cli.tables import show_json

_SHOWN: Final = frozenset(("disconnected", "connected", "blocked", "unblocked", "not_consuming"))
_REFRESHES_PER_S: Final = 8


class Screen:
    """The user's view of a command. With `as_json`, the result goes to stdout as JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._as_json = as_json
        log = logging.getLogger("leveret.client")
        log.propagate = False
        log.setLevel(logging.INFO)
        log.handlers[:] = [_Notices(self)]

    def say(self, sentence: str) -> None:
        self._console.print(f"leveret: {sentence}")

    def fail(self, sentence: str) -> NoReturn:
        """Print the sentence and end the command with exit code 1."""
        self.say(sentence)
        raise typer.Exit(1)

    def list(self, line: str) -> None:
        """Print one indented item of a list."""
        self._console.print(f"  {line}")

    def result(self, account: Mapping[str, object], sentence: str) -> None:
        """Print the result of the command: the account as JSON on stdout, or the sentence on stderr."""
        if self._as_json:
            show_json(account)
        else:
            self.say(sentence)

    def gauge(self, verb: str, *, visible: bool = True) -> Gauge:
        """Return a progress bar. Pass `visible=False` where it would be mixed with the output."""
        return Gauge(self._console, verb, visible=visible and self._console.is_terminal)


class Gauge:
    """A progress bar.

    with screen.gauge("publishing") as gauge:
        gauge.show(1200, done=0.4, more="17 unconfirmed")
    """

    def __init__(self, console: Console, verb: str, *, visible: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            disable=not visible,
        )
        self._task = self._progress.add_task(verb, total=None, text="")
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def rate_per_s(self, count: int) -> float:
        return count / max(self.elapsed_s, 1e-6)

    def show(self, count: int, *, done: float | None = None, more: str = "") -> None:
        """Show a count of messages; `done` is the completed share, from 0 to 1, if known."""
        if not self._progress.disable:
            self.tell(f"{count:,} messages  {self.rate_per_s(count):,.0f}/s  {more}", done)

    def tell(self, text: str, done: float | None = None) -> None:
        """Show what is being done, in words."""
        if not self._progress.disable:
            total = None if done is None else 1.0
            self._progress.update(self._task, total=total, completed=done or 0.0, text=text)


class _Notices(logging.Handler):
    """Shows the toolkit's log records about the connection."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) in _SHOWN:
            self._screen.say(record.getMessage())


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "message"), counted(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
