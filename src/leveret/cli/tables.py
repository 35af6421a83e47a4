"""Tables, pages and JSON on stdout, for people to read or to pass on to grep.

Owns the look of tables and their width (unlimited in a pipe). The rule: text that a client has chosen can't
move the cursor or change colours, because characters that are not printable are shown as question marks.
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
    """Lines and tables on stdout: `page.table(("group", "lag"), rows)`; `page.line("…")`."""

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
        """Print a table. Columns of numbers are right-aligned, even if a dash replaces a missing number."""
        rows = [list(row) for row in rows]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column, name in enumerate(columns):
            cells = [row[column] for row in rows if row[column] not in ("–", "-")]
            numbers = bool(cells) and all(isinstance(cell, int) for cell in cells)
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(_cell, row))
        self._console.print(table)


def _cell(value: object) -> Text:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Text(f"{value:,}" if is_number else printable(str(value)))


def printable(text: str) -> str:
    """Replace control characters, which a terminal would obey, by question marks.

    >>> printable("a\\x1b[31mb")
    'a?[31mb'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def show_json(value: object) -> None:
    """Print JSON on stdout; escape what is not ASCII unless stdout is Unicode."""
    is_unicode = codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")
    typer.echo(json.dumps(value, ensure_ascii=not is_unicode))


def escape_unencodable_characters() -> None:
    """Write characters that stdout or stderr can't encode as backslash escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
