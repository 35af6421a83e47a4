"""Tables and pages on stdout: what was asked for, for people who read it or pass it on to grep.

Owns the look of tables, the width (a pipe has none), and that nothing a client has called something can move
the cursor or change colours: what is not printable is shown as a question mark.
"""

from __future__ import annotations

import codecs
import io
import json
import sys
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 1000


class Page:
    """`page.table(("group", "lag"), rows)`; `page.line("…")`."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)
        self._console = console

    @property
    def width(self) -> int:
        return self._console.width

    @property
    def ascii_only(self) -> bool:
        return self._console.options.ascii_only

    def line(self, *parts: RenderableType) -> None:
        self._console.print(*parts, sep="")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Numbers are on the right, also where some are a dash because there is none."""
        listed = [list(row) for row in rows]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place, name in enumerate(columns):
            cells = [row[place] for row in listed if row[place] not in ("–", "-")]
            numbers = bool(cells) and all(isinstance(cell, int) for cell in cells)
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in listed:
            table.add_row(*map(_cell, row))
        self._console.print(table)


def _cell(value: object) -> Text:
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else plain(str(value)))


def plain(text: str) -> str:
    """What some client has called something, without what a terminal would obey.

    >>> plain("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(each if each.isprintable() else "?" for each in text)


def show_json(found: object) -> None:
    """In letters, where stdout has them all, else as JSON writes them for ASCII."""
    has_all = codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")
    typer.echo(json.dumps(found, ensure_ascii=not has_all))


def allow_all_letters() -> None:
    """A letter that an output does not have is written as its number, and is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
