"""`leveret messages timeline`: what has happened to one message, in order, and what is not known.

Owns the words of the page; the events come from the HTTP API, which reads them in the broker's journals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, exit_on_error
from leveret.cli.durations import readable_duration, utc_time
from leveret.cli.options import AsJson
from leveret.cli.queue_map import Group, holder_name
from leveret.cli.tables import Page, printable, show_json

JsonObject: TypeAlias = Mapping[str, Any]

_SHOWN_ELSEWHERE: Final = ("time_ms", "event", "group")


def timeline(
    queue: Annotated[str, typer.Argument(help="The queue or stream.")],
    offset: Annotated[int | None, typer.Argument(min=0, help="The offset.", show_default=False)] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="The message id, instead of the offset.", show_default=False)
    ] = None,
    group: Group = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show what has happened to a message: publish, deliveries, requeues, settlement, dead letters."""
    if (offset is None) == (message_id is None):
        raise typer.BadParameter("give either the offset of the message or its --id")
    with exit_on_error(as_json=as_json) as screen:
        api = Api(http, vhost=vhost)
        if offset is not None:
            shown = [api.get("queues", queue, "messages", str(offset), "timeline", group=group)]
        else:
            shown = _with_id(api, queue, message_id, group)
        if as_json:
            show_json({"timelines": shown})
        elif not shown:
            screen.fail(f"no message in queue '{queue}' has the id '{message_id}'")
        else:
            _draw_all(Page(), shown)


def _with_id(api: Api, queue: str, message_id: str | None, group: str | None) -> list[JsonObject]:
    """Return the timelines of the messages with an id, of the whole queue."""
    found: list[JsonObject] = []
    start: int | None = None
    while True:
        query = {"message_id": message_id, "group": group, "from": start}
        answer = api.get("queues", queue, "messages", "timeline", **query)
        found += answer["timelines"]
        start = answer["next"]
        if start is None:
            return found


def _draw_all(page: Page, timelines: list[JsonObject]) -> None:
    for number, shown in enumerate(timelines):
        if number:
            page.line()
        _draw(page, shown)


def _draw(page: Page, shown: JsonObject) -> None:
    page.line(Text(f"{printable(shown['queue'])} {shown['offset']:,}", style="bold"))
    page.table(("time", "event", "what"), [_row(event) for event in shown["events"]])
    page.line()
    for now in shown["now"]:
        page.line(f"now: {printable(_present(now, shown['now_ms']))}")
    if shown["origin"]:
        origin = shown["origin"]
        place = "" if origin["offset"] is None else f" at offset {origin['offset']:,}"
        page.line(f"dead letter of: {printable(str(origin['queue']))}{place}")
    for copy in shown["copies"]:
        page.line(f"dead letter: {printable(copy['queue'])} at offset {copy['offset']:,}")
    if shown["known_since_ms"] is not None:
        page.line(f"events are known since {utc_time(shown['known_since_ms'])}")
    for each in shown["unknown"]:
        page.line(f"not known: {each['fact']}. {each['why']} To keep it: {each['hint']}.")


def _row(event: JsonObject) -> tuple[str, str, str]:
    time_ms = event["time_ms"]
    time = utc_time(time_ms).replace(" UTC", f".{time_ms % 1000:03} UTC")
    return time, event["event"].replace("_", " "), ", ".join(_facts(event))


def _facts(event: JsonObject) -> Iterator[str]:
    """
    >>> list(_facts({"time_ms": 0, "event": "settled", "group": "g", "outcome": "acked", "by": None}))
    ['group g', 'outcome acked']
    """
    if event.get("group"):
        yield f"group {event['group']}"
    for name, value in event.items():
        if name in _SHOWN_ELSEWHERE or value in (None, ""):
            continue
        if name.endswith("_ms"):
            yield f"{name.removesuffix('_ms').replace('_', ' ')} {utc_time(value)}"
        else:
            yield f"{name.replace('_', ' ')} {value}"


def _present(now: JsonObject, now_ms: int) -> str:
    facts = [now["state"].replace("_", " ")]
    if now["group"]:
        facts.insert(0, f"group {now['group']}")
    if "holder" in now:
        age = readable_duration(now_ms - now["since_ms"])
        facts.append(f"with {holder_name(now['holder'])} for {age}")
    if now.get("due_ms"):
        facts.append(f"until {utc_time(now['due_ms'])}")
    if now.get("lease"):
        lease = now["lease"]
        facts.append(f"by query {lease['query']}, epoch {lease['epoch']}, lease {lease['lease']}")
    if now["returns"]:
        facts.append(f"returned {now['returns']:,} times" if now["returns"] > 1 else "returned once")
    return ", ".join(facts)
