"""The lines that the demo prints: one for each activity, updated while it lasts and kept when it is over.

On a terminal lines have progress bars; elsewhere each step of an activity is a plain line. All of them go
to stderr; the verdict is the result and goes to stdout. Outputs without Unicode get marks in ASCII. The
rule: a line shows only figures that were counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

from leveret.cli.demo.verdict import Check

_REFRESHES_PER_S: Final = 8
_NAME_WIDTH: Final = 11


class Mark(NamedTuple):
    """The sign at the start of a line."""

    sign: str
    ascii_sign: str
    style: str


DONE: Final = Mark("✔", "+", "green")
KILLED: Final = Mark("✖", "x", "yellow")
_BROKEN: Final = Mark("✘", "!", "bold red")
_UNDER_WAY: Final = Mark("…", ".", "dim")


class Display:
    """The demo's lines on stderr.

    with Display() as display:
        line = display.progress_line("publishers")
        line.tell("120,000 of 200,000 confirmed", 0.6)
        line.end("200,000 confirmed")
    """

    def __init__(self) -> None:
        self._console = _console(stderr=True)
        self._progress = Progress(
            SpinnerColumn("line" if self._console.options.ascii_only else "dots"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            # A column of its own may be broken into lines; otherwise names are cut on a narrow terminal.
            TextColumn("{task.fields[text]}", markup=False, table_column=Column()),
            console=self._console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            disable=not self._can_update_lines,
        )

    @property
    def _can_update_lines(self) -> bool:
        """Whether stderr is a terminal that can rewrite lines."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def progress_line(self, name: str) -> ProgressLine:
        """Add a line for an activity that takes a while."""
        return ProgressLine(self, self._progress, name)

    def note(self, name: str, text: str, mark: Mark = DONE) -> None:
        """Print a line about something that is over or has just happened."""
        _print(self._console, mark, name, text)

    def note_step(self, name: str, text: str) -> None:
        """Print a step of an activity, unless lines can be updated."""
        if not self._can_update_lines:
            self.note(name, text, _UNDER_WAY)


class ProgressLine:
    """A running activity, such as publishing or the audit."""

    def __init__(self, display: Display, progress: Progress, name: str) -> None:
        self._display = display
        self._progress = progress
        self._name = name
        self._task = progress.add_task(f"{name:<{_NAME_WIDTH}}", total=None, text="")
        self._began_s = time.monotonic()
        self._step = ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def tell(self, text: str, done: float | None = None) -> None:
        """Show progress; `done` is the completed share, from 0 to 1, if known."""
        total = None if done is None else 1.0
        self._progress.update(self._task, total=total, completed=min(done or 0.0, 1.0), text=text)

    def step(self, doing: str) -> None:
        """Show the current step and the elapsed time; without updates, print each new step once."""
        self.tell(f"{doing}, {self.elapsed_s:.0f} s")
        if doing != self._step:
            self._step = doing
            self._display.note_step(self._name, doing)

    def end(self, text: str) -> None:
        self._progress.remove_task(self._task)
        self._display.note(self._name, text)


def show(checks: Sequence[Check], sentences: Sequence[str]) -> None:
    """Print the verdict on stdout."""
    console = _console(stderr=False)
    console.print()
    for check in checks:
        _print(console, DONE if check.holds else _BROKEN, check.name, check.said)
    console.print()
    for sentence in sentences:
        console.print(sentence)


def _console(*, stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _print(console: Console, mark: Mark, name: str, text: str) -> None:
    """Print one line; a narrow terminal breaks it between words."""
    sign = mark.ascii_sign if console.options.ascii_only else mark.sign
    columns = (Text(f" {sign}", mark.style), Text(f"{name:<{_NAME_WIDTH}}"), Text(text))
    if not console.is_terminal:
        console.print(*columns)
        return
    table = Table.grid(padding=(0, 1))
    table.add_row(*columns)
    console.print(table, soft_wrap=False)
