"""What people see: progress, notices, the sentence at the end. All of it on stderr; stdout is for programs.

Progress bars are shown only on a terminal. Of the toolkit's log only what concerns whoever waits in front of
the screen is shown: the connection was lost, it is back, the broker takes no messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from leveret.cli.tables import show_json

_SHOWN: Final = frozenset(("disconnected", "connected", "blocked", "unblocked", "not_consuming"))
_REFRESHES_PER_S: Final = 8


class Screen:
    """`screen.say("what happened")`; `as_json`: the result is for a program."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._as_json = as_json
        log = logging.getLogger("leveret.client")
        log.propagate = False
        log.setLevel(logging.INFO)
        log.handlers[:] = [_Notices(self)]

    def say(self, sentence: str) -> None:
        self._console.print(f"leveret: {sentence}")

    def list(self, line: str) -> None:
        """One of several things that were announced by a sentence."""
        self._console.print(f"  {line}")

    def result(self, account: Mapping[str, object], sentence: str) -> None:
        """The end of it: the account as JSON on stdout, or the sentence."""
        if self._as_json:
            show_json(account)
        else:
            self.say(sentence)

    def gauge(self, verb: str, *, visible: bool = True) -> Gauge:
        """A progress bar; not `visible` where it would stand in the way of the output."""
        return Gauge(self._console, verb, visible=visible and self._console.is_terminal)


class Gauge:
    """
    with screen.gauge("publishing") as gauge:
        gauge.show(1200, done=0.4, more="17 unconfirmed")
    """

    def __init__(self, console: Console, verb: str, *, visible: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[said]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            disable=not visible,
        )
        self._task = self._progress.add_task(verb, total=None, said="")
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
        """So many messages; `done` is the share of the whole, where that is known."""
        if not self._progress.disable:
            self.tell(f"{count:,} messages  {self.rate_per_s(count):,.0f}/s  {more}", done)

    def tell(self, said: str, done: float | None = None) -> None:
        """What is being done, in words."""
        if not self._progress.disable:
            total = None if done is None else 1.0
            self._progress.update(self._task, total=total, completed=done or 0.0, said=said)


class _Notices(logging.Handler):
    """What of the log is for people."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) in _SHOWN:
            self._screen.say(record.getMessage())


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "message"), counted(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
