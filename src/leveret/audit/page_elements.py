"""What the report's page is made of: sections, tables, figures at a glance.

Owns the form that all sections share; what they say is `report`'s. Long tables show their first rows, and the
others after a click: nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from leveret.audit.markup import Safe, joined, tag
from leveret.audit.wording import Tone

ROWS_SHOWN: Final = 20


class Figure(NamedTuple):
    """A cell that is a number, with its unit perhaps: on the right."""

    text: str


class Drawn(NamedTuple):
    """A cell with a drawing, which wants room."""

    text: Safe


Cell: TypeAlias = str | int | Figure | Drawn
Row: TypeAlias = Sequence[Cell]


class Section(NamedTuple):
    anchor: str
    title: str
    body: Sequence[str]

    def written(self) -> Safe:
        heading = tag("h2", self.title, id=self.anchor)
        return tag("section", heading, *self.body, aria_labelledby=self.anchor)


def section(anchor: str, title: str, *body: str) -> Section:
    return Section(anchor, title, body)


def contents(sections: Sequence[Section]) -> Safe:
    """Where to find what."""
    links = (tag("li", tag("a", each.title, href=f"#{each.anchor}")) for each in sections)
    return tag("nav", tag("ul", *links), aria_label="Contents")


def lead(text: str) -> Safe:
    return tag("p", text, class_="lead")


def none(text: str) -> Safe:
    """The sentence of a section that has nothing else to say."""
    return tag("p", text, class_="none")


def table(label: str, columns: Sequence[str], rows: Sequence[Row]) -> Safe:
    """The first cell of a row is its heading."""
    shown, rest = rows[:ROWS_SHOWN], rows[ROWS_SHOWN:]
    if not rest:
        return _table(label, columns, shown)
    more = tag("summary", f"{len(rest):,} more")
    return joined([_table(label, columns, shown), tag("details", more, _table(label, columns, rest))])


def folded(label: str, columns: Sequence[str], rows: Sequence[Row]) -> Safe:
    """All of it after a click."""
    return tag("details", tag("summary", label), _table(label, columns, rows))


def _table(label: str, columns: Sequence[str], rows: Sequence[Row]) -> Safe:
    right = [_is_figure(cell) for cell in rows[0]]
    headings = (
        tag("th", name, scope="col", class_="figure" if figure else None)
        for name, figure in zip(columns, right, strict=True)
    )
    body = tag("tbody", *(tag("tr", *_cells(columns, row)) for row in rows))
    found = tag("table", tag("thead", tag("tr", *headings)), body)
    return tag("div", found, class_="scroll", role="region", aria_label=label, tabindex="0")


def _cells(columns: Sequence[str], row: Row) -> Iterable[Safe]:
    """Each knows its column, for telephones: there a row is a card."""
    yield tag("th", _written(row[0]), scope="row")
    for name, cell in zip(columns[1:], row[1:], strict=True):
        kind = "figure" if _is_figure(cell) else "drawn" if isinstance(cell, Drawn) else "text"
        yield tag("td", _written(cell), class_=kind, data_column=name)


def _is_figure(cell: Cell) -> bool:
    return isinstance(cell, int | Figure)


def _written(cell: Cell) -> str:
    if isinstance(cell, Figure | Drawn):
        return cell.text
    return f"{cell:,}" if isinstance(cell, int) else cell


def tiles(figures: Sequence[tuple[str, int, Tone]]) -> Safe:
    """Figures at a glance; those that want attention are marked in words too."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", f"{count:,}"), class_=tone) for name, count, tone in figures),
        class_="tiles",
    )


def words(entries: Sequence[tuple[str, str]]) -> Safe:
    pairs = (tag(kind, text) for entry in entries for kind, text in zip(("dt", "dd"), entry, strict=True))
    return tag("dl", *pairs, class_="words")


def named(name: str, *beneath: str) -> Safe:
    """A name, and what is to be known about it in small letters."""
    return joined([name, *(tag("span", each, class_="soft") for each in beneath if each)])
