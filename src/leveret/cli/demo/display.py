"""What people see of the demo: a line for each scene, which moves while it lasts and stays when it is over.

On a terminal, with bars; elsewhere a plain line for each step of a scene. All of that is on stderr; the
verdict is the result and goes to stdout. Where there are no letters but those of ASCII, marks are other ones,
and no letter is an error. The rule: a line says what was counted, and nothing that was only hoped for.
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
    """What a line begins with."""

    sign: str
    ascii_sign: str
    style: str


DONE: Final = Mark("✔", "+", "green")
KILLED: Final = Mark("✖", "x", "yellow")
_BROKEN: Final = Mark("✘", "!", "bold red")
_UNDER_WAY: Final = Mark("…", ".", "dim")


class Stage:
    """
    with Stage() as stage:
        scene = stage.scene("publishers")
        scene.tell("120,000 of 200,000 confirmed", 0.6)
        scene.end("200,000 confirmed")
    """

    def __init__(self) -> None:
        self._console = _console(stderr=True)
        self._progress = Progress(
            SpinnerColumn("line" if self._console.options.ascii_only else "dots"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            # A column of its own may be broken into lines; otherwise names are cut on a narrow terminal.
            TextColumn("{task.fields[said]}", markup=False, table_column=Column()),
            console=self._console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            disable=not self._moves,
        )

    @property
    def _moves(self) -> bool:
        """Whether a line can change: not in a file or a pipe, nor on a terminal that knows no such codes."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def scene(self, name: str) -> Scene:
        """One that takes a while."""
        return Scene(self, self._progress, name)

    def note(self, name: str, said: str, mark: Mark = DONE) -> None:
        """Something that is over, or has just happened."""
        _print(self._console, mark, name, said)

    def plain(self, name: str, said: str) -> None:
        """What a scene is doing, where no line can change."""
        if not self._moves:
            self.note(name, said, _UNDER_WAY)


class Scene:
    """What is under way."""

    def __init__(self, stage: Stage, progress: Progress, name: str) -> None:
        self._stage = stage
        self._progress = progress
        self._name = name
        self._task = progress.add_task(f"{name:<{_NAME_WIDTH}}", total=None, said="")
        self._began_s = time.monotonic()
        self._step = ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def tell(self, said: str, done: float | None = None) -> None:
        """How it is going; `done` is the share of the whole, where that is known."""
        total = None if done is None else 1.0
        self._progress.update(self._task, total=total, completed=min(done or 0.0, 1.0), said=said)

    def step(self, doing: str) -> None:
        """What it is doing, and for how long; where no line can change, a line when that is something new."""
        self.tell(f"{doing}, {self.elapsed_s:.0f} s")
        if doing != self._step:
            self._step = doing
            self._stage.plain(self._name, doing)

    def end(self, said: str) -> None:
        self._progress.remove_task(self._task)
        self._stage.note(self._name, said)


def show(checks: Sequence[Check], sentences: Sequence[str]) -> None:
    """The verdict, line by line, on stdout."""
    console = _console(stderr=False)
    console.print()
    for check in checks:
        _print(console, DONE if check.holds else _BROKEN, check.name, check.said)
    console.print()
    for sentence in sentences:
        console.print(sentence)


def _console(*, stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _print(console: Console, mark: Mark, name: str, said: str) -> None:
    """One line; on a terminal that is too narrow for it, several, broken between words."""
    sign = mark.ascii_sign if console.options.ascii_only else mark.sign
    words = (Text(f" {sign}", mark.style), Text(f"{name:<{_NAME_WIDTH}}"), Text(said))
    if not console.is_terminal:
        console.print(*words)
        return
    line = Table.grid(padding=(0, 1))
    line.add_row(*words)
    console.print(line, soft_wrap=False)
