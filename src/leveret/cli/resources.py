"""`list` and `show` of all that the HTTP API lists: queues, exchanges, connections and so on.

    register(queues, Resource("queues", "queue", columns={"name": "name", "ready": "messages_ready"}))

Owns the two commands, their options and the look of rows, so that all resources read alike. The API is
RabbitMQ's, so the commands work on RabbitMQ too. Commands that change something are in the modules of the
resources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, exit_on_error, missing
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, printable
from leveret.cli.watching import Watch, present

Row: TypeAlias = dict[str, Any]

_PAGE_MAX: Final = 500
_MISSING: Final = "–"
DEFAULT_EXCHANGE: Final = "amq.default"
"""The name of the default exchange in a path."""
_WITH_PATHS_OF_VHOSTS: Final = ("connections", "channels")
"""Resources of which `/api/{resource}/{vhost}` is not the list of a virtual host."""

Name: TypeAlias = Annotated[
    str | None, typer.Option("--name", help="Only names with this text.", show_default=False)
]
ListedName: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The name as it is listed.")]
Regex: TypeAlias = Annotated[
    bool, typer.Option("--regex", help="--name is a regular expression, searched for in names.")
]
Sort: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sort", help="A column, or a field of the API: message_stats.ack_details.rate.", show_default=False
    ),
]
Reverse: TypeAlias = Annotated[bool, typer.Option("--reverse", help="The largest first.")]
Limit: TypeAlias = Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Resource:
    """`Resource("queues", "queue", columns={"ready": "messages_ready"})`: the fields by their titles."""

    name: str
    noun: str
    columns: Mapping[str, str]
    paged: bool = True
    """Whether the API has pages of a virtual host's list, and filters by name."""
    named_by: Sequence[str] = ("name",)
    """Fields that `--name` is searched for in, if the API has no filter."""

    def rows(self, api: Api, vhost: str, query: Query) -> list[Row]:
        """Return the rows of a virtual host as the API has them."""
        inside_vhost = self.name in _WITH_PATHS_OF_VHOSTS
        ask = partial(api.get, *(("vhosts", vhost, self.name) if inside_vhost else (self.name,)))
        order = query.order(self.columns)
        if self.paged and (query.name is not None or query.limit is not None):
            return _in_pages(ask, query, order)
        rows: list[Row] = ask(**order)
        if query.name is not None:
            found = _searcher(query.name, regex=query.regex)
            rows = [row for row in rows if any(found(str(value_at(row, name))) for name in self.named_by)]
        return rows[: query.limit]

    def row(self, api: Api, name: str) -> Row:
        """Return one object; raise `ApiError` if there is none."""
        row: Row = api.get(self.name, name or DEFAULT_EXCHANGE)
        return row

    def table(self, page: Page, rows: Sequence[Row]) -> RenderableType:
        lines = [[cell(value_at(row, field)) for field in self.columns.values()] for row in rows]
        # Only the default exchange has an empty name.
        lines = [[first or DEFAULT_EXCHANGE, *others] for first, *others in lines]
        return page.narrow_table(tuple(self.columns), lines)


@dataclass(frozen=True, slots=True)
class Query:
    """Which rows of a list are wanted, and in which order."""

    name: str | None = None
    regex: bool = False
    sort: str | None = None
    reverse: bool = False
    limit: int | None = None

    def order(self, columns: Mapping[str, str]) -> dict[str, str | None]:
        """Return the order as parameters of the API. `--sort` takes titles of columns and fields."""
        sort = None if self.sort is None else columns.get(self.sort, self.sort)
        return {"sort": sort, "sort_reverse": "true" if self.reverse else None}


def _in_pages(ask: partial[Any], query: Query, order: Mapping[str, str | None]) -> list[Row]:
    rows: list[Row] = []
    # The first page decides about the size of all: a smaller last page would begin at another place.
    size = min(_PAGE_MAX, query.limit or _PAGE_MAX)
    number = 1
    while True:
        page = ask(
            page=number,
            page_size=size,
            name=query.name,
            use_regex="true" if query.regex else None,
            **order,
        )
        rows += page["items"]
        number += 1
        if number > page["page_count"] or len(rows) >= (query.limit or len(rows) + 1):
            return rows[: query.limit]


def _searcher(name: str, *, regex: bool) -> Any:
    try:
        return re.compile(name if regex else re.escape(name), re.IGNORECASE).search
    except re.error as error:
        raise typer.BadParameter(
            f"'{name}' is not a regular expression: {error}", param_hint="--name"
        ) from error


def value_at(row: Any, field: str) -> Any:
    """Return the value of a field, which may be in an inner object, or None.

    >>> value_at({"message_stats": {"ack": 5}}, "message_stats.ack"), value_at({}, "message_stats.ack")
    (5, None)
    """
    for name in field.split("."):
        if not isinstance(row, dict):
            return None
        row = row.get(name)
    return row


def cell(value: Any) -> object:
    """Return a value of the API as it stands in a table.

    >>> [cell(value) for value in (None, True, 5, 0.25, "orders", {}, {"x-max-length": 5}, ["a", "b"])]
    ['–', 'yes', 5, 0.25, 'orders', '', '{"x-max-length": 5}', 'a, b']
    """
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return ", ".join(map(str, value))
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return value if isinstance(value, int | float) else str(value)


def fields(row: Row, prefix: str = "") -> list[tuple[str, object]]:
    """Return all fields of an object with their values; those of inner objects have dots in their names.

    >>> fields({"name": "orders", "message_stats": {"ack": 5}})
    [('name', 'orders'), ('message_stats.ack', 5)]
    """
    found: list[tuple[str, object]] = []
    for name, value in row.items():
        if isinstance(value, dict) and value and not name.endswith("arguments"):
            found += fields(value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
            found += [(f"{prefix}{name}", cell(part)) for part in value]
        else:
            found.append((f"{prefix}{name}", cell(value)))
    return found


def draw_object(page: Page, row: Row) -> RenderableType:
    """Return an object as a table of its fields."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields(row):
        is_number = isinstance(value, int | float)
        table.add_row(Text(printable(name)), Text(f"{value:,}" if is_number else printable(str(value))))
    return table


def register(app: typer.Typer, resource: Resource, *, showing: bool = True) -> None:
    """Add `list` to the commands of a resource, and `show` unless the resource has one of its own."""
    plural, noun = resource.name, resource.noun

    def list_rows(
        name: Name = None,
        regex: Regex = False,
        sort: Sort = None,
        reverse: Reverse = False,
        limit: Limit = None,
        watch: Watch = None,
        http: Http = DEFAULT_HTTP,
        vhost: Vhost = "/",
        as_json: AsJson = False,
    ) -> None:
        query = Query(name, regex, sort, reverse, limit)
        with exit_on_error(as_json=as_json) as screen:
            api = Api(http, vhost=vhost)
            fetch = partial(resource.rows, api, vhost, query)
            rows = present(fetch, resource.table, as_json=as_json, watch_s=watch)
            if not rows and not as_json:
                screen.say(f"there are no {plural} in vhost '{vhost}'" + (" with this name" if name else ""))

    app.command(name="list", help=f"List the {plural} of a virtual host.")(list_rows)

    def show(
        name: ListedName,
        watch: Watch = None,
        http: Http = DEFAULT_HTTP,
        vhost: Vhost = "/",
        as_json: AsJson = False,
    ) -> None:
        with exit_on_error(as_json=as_json), missing(f"there is no {noun} '{name}' in vhost '{vhost}'"):
            fetch = partial(resource.row, Api(http, vhost=vhost), name)
            present(fetch, draw_object, as_json=as_json, watch_s=watch)

    if showing:
        app.command(name="show", help=f"Show all that the broker knows of one {noun}.")(show)
