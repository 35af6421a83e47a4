"""`leveret top`: the busiest queues and the totals of the broker, live.

Parses, calls the HTTP API of the broker, draws. The rates are the broker's own. The API is RabbitMQ's, so the
command works on RabbitMQ too. Only one page of queues is asked for, so the command is cheap with many queues.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, exit_on_error
from leveret.cli.options import AsJson, positive
from leveret.cli.queues import QUEUES
from leveret.cli.resources import cell, value_at
from leveret.cli.status import fetch, problems, totals
from leveret.cli.tables import Page, printable
from leveret.cli.watching import present

Top: TypeAlias = dict[str, Any]

_EVERY_S: Final = 1.0
_LINES_BESIDE: Final = 10
"""Lines of a screen that are not queues."""
_ORDERS: Final = {
    **{title: QUEUES.columns[title] for title in ("in/s", "out/s", "ready", "unacked")},
    "messages": "messages",
    "acks/s": "message_stats.ack_details.rate",
}


def top(
    sort: Annotated[str, typer.Option(help="in/s, out/s, acks/s, ready, unacked or messages.")] = "in/s",
    every_s: Annotated[
        float, typer.Option("--every", callback=positive, metavar="SECONDS", help="Time between two looks.")
    ] = _EVERY_S,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Show the busiest queues and the totals of the broker, live until Ctrl-C; in a pipe, once."""
    if sort not in _ORDERS:
        raise typer.BadParameter(f"'{sort}' is none of {', '.join(_ORDERS)}", param_hint="--sort")
    page = Page()
    is_live = page.console.is_terminal and not as_json
    rows_max = max(1, page.console.height - _LINES_BESIDE) if is_live else 100
    with exit_on_error(as_json=as_json):
        api = Api(http, vhost=None)
        present(
            lambda: _fetch(api, sort, min(rows_max, 500)),
            _draw,
            as_json=as_json,
            watch_s=every_s if is_live else None,
        )


def _fetch(api: Api, sort: str, rows_max: int) -> Top:
    queues = api.get("queues", page=1, page_size=rows_max, sort=_ORDERS[sort], sort_reverse="true")
    return {**fetch(api), "queues": queues["items"]}


def _draw(page: Page, seen: Top) -> RenderableType:
    columns = {"vhost": "vhost", **QUEUES.columns} if _has_vhosts(seen) else dict(QUEUES.columns)
    rows = [[cell(value_at(row, field)) for field in columns.values()] for row in seen["queues"]]
    return Group(
        Text(printable(str(seen["overview"]["cluster_name"])), style="bold"),
        *totals(seen["overview"]),
        *(Text(f"! {problem}", style="bold red") for problem in problems(seen)),
        Text(),
        page.narrow_table(tuple(columns), rows),
    )


def _has_vhosts(seen: Top) -> bool:
    return any(row["vhost"] != "/" for row in seen["queues"])
