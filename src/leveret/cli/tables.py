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
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 1000
_GAP = 2
"""Spaces behind each column of a table."""
_NARROWEST = 8
"""Width that a column of text keeps when a table is cut."""
_NAME_WIDTH = 40
"""Width of the first column up to which the others are cut first: that of a channel's name."""
_MISSING = ("–", "-")


class Page:
    """Lines and tables on stdout: `page.table(("group", "lag"), rows)`; `page.line("…")`."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False, emoji=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH)
        self.console = console

    @property
    def width(self) -> int:
        return self.console.width

    @property
    def ascii_only(self) -> bool:
        return self.console.options.ascii_only

    def line(self, *parts: RenderableType) -> None:
        self.console.print(*parts, sep="")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table. Columns of numbers are right-aligned, even if a dash replaces a missing number."""
        self.console.print(_table(columns, [list(row) for row in rows]))

    def narrow_table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
        """Return a table with one line for each row: long texts are cut until the table fits the page."""
        lines = [list(row) for row in rows]
        texts = [index for index in range(len(columns)) if not _is_of_numbers(lines, index)]
        widths = [
            max([cell_len(name), *(_cell(line[index]).cell_len for line in lines)])
            for index, name in enumerate(columns)
        ]
        while sum(widths) + _GAP * len(widths) > self.width:
            cut = [index for index in texts if widths[index] > _NARROWEST]
            if not cut:
                break
            # The first column has the name, which other commands need.
            widths[max(cut, key=lambda index: widths[index] - (_NAME_WIDTH if index == 0 else 0))] -= 1
        for line in lines:
            for index in texts:
                line[index] = _cut(printable(str(line[index])), widths[index], ascii_only=self.ascii_only)
        return _table(columns, lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if _is_of_numbers(rows, index) else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def _is_of_numbers(rows: Sequence[Sequence[object]], index: int) -> bool:
    cells = [row[index] for row in rows if row[index] not in _MISSING]
    return bool(cells) and all(isinstance(cell, int | float) for cell in cells)


def _cell(value: object) -> Text:
    if isinstance(value, float):
        return Text(f"{value:,.1f}")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Text(f"{value:,}" if is_number else printable(str(value)))


def _cut(text: str, width: int, *, ascii_only: bool = False) -> str:
    """
    >>> _cut("orders-of-today", 8), _cut("orders", 8), _cut("orders-of-today", 8, ascii_only=True)
    ('orders-…', 'orders', 'order...')
    """
    if cell_len(text) <= width:
        return text
    mark = "..." if ascii_only else "…"
    return set_cell_size(text, width - len(mark)) + mark


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
