"""Lists with RabbitMQ's query parameters: pages, a filter by name, an order, columns.

    page=2&page_size=50        one page: `items`, and counts of pages and objects; at most 500 items
    name=ord&use_regex=true    with `page` only: objects whose name contains a text or matches an expression
    sort=messages              orders by a column; `message_stats.publish_details.rate` is in inner objects
    sort_reverse=true          turns the order round
    columns=name,messages      returns only these columns, which may be in objects, too

A resource describes its objects as `Rows`, and `reply_listed` does the rest:

    rows = Rows(sessions, row=_described, cheap={"name": attrgetter("name")})
    return await reply_listed(request, rows)

The rule: a list holds up the event loop for 2 ms at most. A page ordered by name makes only its own rows. An
order by another column makes only that column of all objects, if the column is in `Rows.cheap`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.views.name_filters import name_filter
from leveret.fronts.http.errors import Problem
from leveret.fronts.http.json_replies import PIECE, encoded, jsonable, reply, reply_rows

Item = TypeVar("Item")
Row: TypeAlias = Mapping[str, Any]
Columns: TypeAlias = tuple[tuple[str, ...], ...]

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
_PAUSE_S: Final = 0.002
"""Time after which other clients have a turn."""


@dataclass(frozen=True, slots=True)
class Rows(Generic[Item]):
    """The objects of a list in their natural order, and how they become rows."""

    items: Sequence[Item]
    row: Callable[[Item], Row | None]
    """Returns all columns of an object, or None if the object has been deleted meanwhile."""
    cheap: Mapping[str, Callable[[Item], Any]] = field(default_factory=dict)
    """Columns that are known without a row, by the names that `sort` has for them. `name` is needed for pages
    with a filter. The values of a column must be comparable, and all rows have the column."""
    text: Callable[[Item], str | None] | None = None
    """Returns a row as JSON text, if there is a faster way than encoding `row`."""
    at_once: int = PIECE
    """Number of rows that take 2 ms at most."""


@dataclass(frozen=True, slots=True)
class Page:
    """`Page(2, 50)`: the requested page, and the filter of names."""

    number: int
    size: int | None
    name: str = ""
    regex: bool = False

    @property
    def size_or_default(self) -> int:
        return PAGE_SIZE if self.size is None else self.size


async def reply_listed(request: Request, rows: Rows[Item], *, paged: bool = True) -> Response:
    """Return the list that the request's query asks for; `paged` is False for lists that have no pages."""
    page = page_of(request) if paged else None
    columns = columns_of(request)
    pauses = _Pauses()
    items: Sequence[Item] = rows.items
    if page is not None:
        items = await _filtered(items, rows, page, pauses)
        _check_range(page, len(items))
    items = await _sorted(items, rows, request, pauses)
    if page is None:
        return reply_rows(_texts(items, rows, columns), at_once=rows.at_once)
    start = (page.number - 1) * page.size_or_default
    shown, make = [], _maker(rows, columns)
    for item in items[start : start + page.size_or_default]:
        row = make(item)
        if row is not None:
            shown.append(row)
        await pauses.pause_if_due()
    return reply(
        {
            "filtered_count": len(items),
            "item_count": len(shown),
            "items": shown,
            "page": page.number,
            "page_count": -(-len(items) // page.size_or_default),
            "page_size": page.size_or_default,
            "total_count": len(rows.items),
        }
    )


async def gathered(items: Iterable[Item]) -> list[Item]:
    """Return the items as a list for `Rows`, made in pieces: other clients have a turn between them."""
    found, pauses = [], _Pauses()
    for item in items:
        found.append(item)
        await pauses.pause_if_due()
    return found


def reply_object(request: Request, row: Row | Sequence[Row]) -> Response:
    """Return one object, or a few of a list without orders, with the columns that the query asks for."""
    return reply(columns_in(row, columns_of(request)))


def page_of(request: Request) -> Page | None:
    """Return the page that a query asks for, None for the whole list; raise if there can be no such page."""
    query = request.query_params
    number, size = _whole_number(query.get("page")), _whole_number(query.get("page_size"))
    if number is None:
        return None
    if number < 1 or not 1 <= (PAGE_SIZE if size is None else size) <= PAGE_SIZE_MAX:
        shown = "undefined" if size is None else size
        raise Problem(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {number}, page size {shown}",
        )
    return Page(number, size, query.get("name", ""), query.get("use_regex") == "true")


def columns_of(request: Request) -> Columns | None:
    """Return the paths of the columns that a query asks for, None for all columns.

    `columns=name,message_stats.ack` is `(("name",), ("message_stats", "ack"))`.
    """
    given = request.query_params.get("columns")
    if given is None:
        return None
    paths = (tuple(part for part in path.split(".") if part) for path in given.split(","))
    return tuple(path for path in paths if path)


def columns_in(value: Any, columns: Columns | None) -> Any:
    """Return an object with only these columns; RabbitMQ shows an object without columns as an empty list.

    >>> columns_in({"name": "q", "arguments": {"x-a": 1, "x-b": 2}}, (("arguments", "x-a"),))
    {'arguments': {'x-a': 1}}
    """
    if columns is None:
        return value
    if isinstance(value, list):
        return [columns_in(item, columns) for item in value]
    if not isinstance(value, Mapping) or not value:
        return value
    wanted = {path[0] for path in columns}
    return {
        name: columns_in(inner, _inner_columns(name, columns))
        for name, inner in value.items()
        if name in wanted
    } or []


def _inner_columns(name: str, columns: Columns) -> Columns | None:
    if (name,) in columns:
        return None
    return tuple(path[1:] for path in columns if path[0] == name)


def _whole_number(given: str | None) -> int | None:
    if given is None:
        return None
    digits = given[1:] if given[:1] in ("-", "+") else given
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise Problem(400, "bad_request", "Pagination parameters are invalid")
    return int(given)


def _check_range(page: Page, count: int) -> None:
    """Raise if the page begins behind the end of the list; the first page after the end is empty."""
    if (page.number - 1) * page.size_or_default > count:
        raise Problem(
            400,
            "page_out_of_range",
            f"Page out of range, page: {page.number} page size: {page.size_or_default}, len: {count}",
        )


class _Pauses:
    """Lets other clients have a turn when 2 ms have gone by."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._until_s = self._now() + _PAUSE_S

    async def pause_if_due(self) -> None:
        if self._now() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = self._now() + _PAUSE_S


async def _filtered(items: Sequence[Item], rows: Rows[Item], page: Page, pauses: _Pauses) -> Sequence[Item]:
    if not page.name:
        return items
    matches, name_of = name_filter(page.name, regex=page.regex), rows.cheap["name"]
    found = []
    for item in items:
        if matches(name_of(item)):
            found.append(item)
        await pauses.pause_if_due()
    return found


async def _sorted(
    items: Sequence[Item], rows: Rows[Item], request: Request, pauses: _Pauses
) -> Sequence[Item]:
    """Return the items in the order that the query asks for; items without the column come first."""
    column = request.query_params.get("sort", "")
    descending = request.query_params.get("sort_reverse") == "true"
    if column in rows.cheap:
        items = sorted(items, key=rows.cheap[column])
    elif column:
        path = [part for part in column.split(".") if part]
        keyed = []
        for number, item in enumerate(items):
            keyed.append((_sort_key(_value_at(rows.row(item), path)), number))
            await pauses.pause_if_due()
        keyed.sort()
        items = [items[number] for _, number in keyed]
    return items[::-1] if descending else items


def _value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at the path of a column, or 0, as in RabbitMQ, if there is none."""
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return 0
        value = value[name]
    return value


def _sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that orders JSON values as RabbitMQ: numbers, null and booleans, objects, lists, texts."""
    match value:
        case bool() | None:
            return 1, encoded(value)
        case int() | float():
            return 0, value
        case str():
            return 4, value
        case list():
            return 3, encoded(value)
    return 2, encoded(value)


def _texts(items: Iterable[Item], rows: Rows[Item], columns: Columns | None) -> Iterator[str]:
    if columns is None and rows.text is not None:
        return (text for text in map(rows.text, items) if text is not None)
    return (encoded(row) for row in map(_maker(rows, columns), items) if row is not None)


def _maker(rows: Rows[Item], columns: Columns | None) -> Callable[[Item], Any]:
    """Return the function that makes a row with these columns, without the whole row if all are cheap."""
    if columns is None:
        return rows.row
    cheap = {path[0]: rows.cheap.get(path[0]) for path in columns if len(path) == 1}
    if columns and len(cheap) == len(columns) and None not in cheap.values():
        known = {name: value_of for name, value_of in cheap.items() if value_of is not None}
        return lambda item: {name: jsonable(value_of(item)) for name, value_of in known.items()}

    def made(item: Item) -> Any:
        row = rows.row(item)
        return None if row is None else columns_in(row, columns)

    return made
