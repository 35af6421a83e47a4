"""`leveret queues map`: where the unsettled messages of a queue are, as a chart and tables.

Owns the words of the page. The figures come from the HTTP API, the look of signs from `partition_chart`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, exit_on_error
from leveret.cli.durations import readable_duration, utc_time
from leveret.cli.options import AsJson
from leveret.cli.partition_chart import DELAYED, IN_FLIGHT, SETTLED, WAITING, Sign
from leveret.cli.screen import counted
from leveret.cli.tables import Page, printable, show_json

JsonObject: TypeAlias = Mapping[str, Any]

CELLS: Final = 64
_LEASED: Final = Sign("◆", "%", "magenta", "leased by a query")
_HIDDEN: Final = Sign("?", "?", "dim", "hidden until a commit")
_SIGNS: Final = {
    "in_flight": IN_FLIGHT,
    "leased": _LEASED,
    "delayed": DELAYED,
    "hidden": _HIDDEN,
    "ready": WAITING,
    "settled": SETTLED,
}
"""The sign of a cell is that of the first of these states which it has messages in."""

Group: TypeAlias = Annotated[
    str | None, typer.Option(help="The group of a stream whose progress is shown.", show_default=False)
]


def show_map(
    queue: Annotated[str, typer.Argument(help="The queue or stream.")],
    group: Group = None,
    limit: Annotated[int, typer.Option(min=0, max=200, help="At most so many rows of each table.")] = 10,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show where the unsettled messages of a queue are: ready, in flight with whom, delayed, leased."""
    with exit_on_error(as_json=as_json):
        api = Api(http, vhost=vhost)
        shown = api.get("queues", queue, "map", group=group, cells=CELLS, limit=limit)
    if as_json:
        show_json(shown)
    else:
        _draw(Page(), shown)


def _draw(page: Page, shown: JsonObject) -> None:
    name = printable(shown["queue"]) + (f", group {printable(shown['group'])}" if shown["group"] else "")
    totals = [
        f"{shown['totals'][state]:,} {state.replace('_', ' ')}" for state in _SIGNS if shown["totals"][state]
    ]
    page.line(Text(name, style="bold"), f": {', '.join(totals) or 'nothing is unsettled'}")
    if not shown["group"] and shown["groups"]:
        page.line(
            f"read by {counted(len(shown['groups']), 'group')}: {', '.join(map(printable, shown['groups']))}"
        )
    if shown["cells"]:
        page.line(_chart(shown, ascii_only=page.ascii_only))
        page.line(_legend(shown, ascii_only=page.ascii_only))
    for columns, rows in _tables(shown):
        if rows:
            page.line()
            page.table(columns, rows)


def _chart(shown: JsonObject, *, ascii_only: bool) -> Text:
    start, stop = shown["start"], shown["stop"]
    size = max(1, -(-(stop - start) // CELLS))
    line = Text()
    for cell in shown["cells"]:
        sign = _sign(cell)
        columns = -(-(cell["stop"] - cell["start"]) // size)
        line.append((sign.ascii if ascii_only else sign.glyph) * columns, style=sign.style)
    line.append(f"  {start:,} to {stop - 1:,}")
    return line.append(f", {size:,} per cell") if size > 1 else line


def _sign(cell: JsonObject) -> Sign:
    """Return the sign of the state that most needs attention.

    >>> _sign({"start": 0, "stop": 9, "settled": 8, "delayed": 1}).meaning
    'delayed'
    """
    return next(sign for state, sign in _SIGNS.items() if cell.get(state))


def _legend(shown: JsonObject, *, ascii_only: bool) -> Text:
    line = Text()
    for sign in dict.fromkeys(map(_sign, shown["cells"])):
        line.append(sign.ascii if ascii_only else sign.glyph, style=sign.style).append(f" {sign.meaning}   ")
    line.rstrip()
    return line


def _tables(shown: JsonObject) -> Iterator[tuple[tuple[str, ...], list[tuple[object, ...]]]]:
    yield (
        ("in flight", "holder", "user", "for", "returns"),
        [_delivery(each) for each in shown["in_flight"]],
    )
    yield (
        ("delayed", "until", "in", "returns", "reason"),
        [_delay(each, shown["now_ms"]) for each in shown["delayed"]],
    )
    yield (
        ("leased", "query", "epoch", "lease", "messages"),
        [
            (_offsets(each), each["query"], each["epoch"], each["lease"], each["messages"])
            for each in shown["leased"]
        ],
    )
    yield (
        ("hidden", "query", "batch", "messages"),
        [(_offsets(each), each["query"], each["batch"], each["messages"]) for each in shown["hidden"]],
    )


def _delivery(each: JsonObject) -> tuple[object, ...]:
    holder, age = each["holder"], readable_duration(each["age_ms"])
    return _offsets(each), holder_name(holder), holder["user"], age, each["returns"]


def _delay(each: JsonObject, now_ms: int) -> tuple[object, ...]:
    left = readable_duration(each["due_ms"] - now_ms)
    return each["offset"], utc_time(each["due_ms"]), left, each["returns"], each["reason"] or "–"


def _offsets(each: JsonObject) -> str:
    """
    >>> _offsets({"first": 7, "last": 7}), _offsets({"first": 7, "last": 1200})
    ('7', '7 to 1,200')
    """
    first, last = each["first"], each["last"]
    if first is None:
        return "–"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def holder_name(holder: JsonObject) -> str:
    """Return the channel and the consumer tag that hold a message."""
    return f"{holder['connection']} ({holder['channel']}) {holder['tag'] or 'basic.get'}"
