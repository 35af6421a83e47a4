"""Tables of the report and their cells; `templates/elements.html` writes them as HTML.

A long table shows its first rows and folds the others, so no row is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from leveret.audit.plots import Bar
from leveret.audit.wording import Tone

ROWS_SHOWN: Final = 20


class Cell(NamedTuple):
    """A cell of a table: numbers are right-aligned, bars get most of the room."""

    text: str = ""
    kind: Literal["text", "figure", "drawn"] = "text"
    below: Sequence[str] = ()
    """Details in small letters; empty ones are left out."""
    emphasis: Tone | None = None
    """The text is strong, in the colour of this tone."""
    bar: Bar | None = None


class Table(NamedTuple):
    """A table; the first cell of a row is the heading of its row."""

    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows that only the table of messages has."""

    @property
    def parts(self) -> list[Sequence[Sequence[Cell]]]:
        """The rows that are shown, and the rows that are folded."""
        return [self.rows[:ROWS_SHOWN], self.rows[ROWS_SHOWN:]]


def table(
    label: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str | int]], count: int = 0
) -> Table:
    """Return a table of cells. `count` is the number of all rows, if the audit knows more than `rows`."""
    cells = [[cell(value) for value in row] for row in rows]
    return Table(label, columns, cells, max(0, count - len(rows)))


def cell(value: Cell | str | int) -> Cell:
    if isinstance(value, Cell):
        return value
    return figure(f"{value:,}") if isinstance(value, int) else Cell(value)


def figure(text: str, *below: str, emphasis: Tone | None = None) -> Cell:
    return Cell(text, "figure", below, emphasis)


def named(name: str, *below: str) -> Cell:
    return Cell(name, below=below)


def drawn(bar: Bar) -> Cell:
    return Cell(kind="drawn", bar=bar)
