"""`--watch`: an answer of the HTTP API shown once, or again and again until Ctrl-C.

Owns the repetition. On a terminal the answer is redrawn in place; in a pipe the next one stands below. A
broker that goes away while it is watched does not end the command: the last answer stays, with the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from leveret.cli.api import ApiError
from leveret.cli.options import positive
from leveret.cli.tables import Page, show_json

T = TypeVar("T")

Watch: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--watch",
        callback=positive,
        metavar="SECONDS",
        help="Show it again every so many seconds, until Ctrl-C.",
        show_default=False,
    ),
]


def present(
    fetch: Callable[[], T],
    draw: Callable[[Page, T], RenderableType],
    *,
    as_json: bool,
    watch_s: float | None,
) -> T:
    """Show what `fetch` returns, as JSON or drawn; return the last answer. Without `watch_s` show it once."""
    page = Page()
    answer = fetch()
    if watch_s is not None and page.console.is_terminal and not as_json:
        return _redraw(page, answer, fetch, lambda answer: draw(page, answer), every_s=watch_s)
    try:
        while True:
            if as_json:
                show_json(answer)
            else:
                page.line(draw(page, answer))
            if watch_s is None:
                return answer
            time.sleep(watch_s)
            answer = fetch()
    except KeyboardInterrupt:
        return answer


def _redraw(
    page: Page, answer: T, fetch: Callable[[], T], draw: Callable[[T], RenderableType], *, every_s: float
) -> T:
    """Redraw in place until Ctrl-C, and return the last answer."""
    from rich.live import Live

    try:
        with Live(draw(answer), console=page.console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                try:
                    answer = fetch()
                except ApiError as error:
                    live.update(Group(Text(str(error), style="bold"), draw(answer)), refresh=True)
                else:
                    live.update(draw(answer), refresh=True)
    except KeyboardInterrupt:
        return answer
