"""`leveret topic create|list|show|delete`: messages spread over streams by their keys.

Parses, asks the broker's HTTP API, prints. A topic is an exchange with streams bound to it, so that messages
come in with any AMQP client: `leveret publish --exchange orders --key customer-7`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, make_sure, spoken
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen, counted
from leveret.cli.tables import Page, show_json

topic = typer.Typer(help="Make topics, and look at them.", no_args_is_help=True)

Name: TypeAlias = Annotated[str, typer.Argument(help="The topic's name.")]

_COLUMNS: Final = {
    "topic": "name",
    "partitions": "partitions",
    "messages": "messages",
    "bytes": "bytes",
    "max age": "max_age",
    "max bytes": "max_bytes",
    "groups": "groups",
}
_PARTITION: Final = {
    "partition": "stream",
    "first": "first",
    "end": "end",
    "messages": "messages",
    "bytes": "bytes",
    "readers": "readers",
}


@topic.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(help="How many streams it has (1); more for one that is there.", show_default=False),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(help="How long messages are kept: 7D, 12h, with Y M D h m s.", show_default=False),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="How much each partition keeps, about.", show_default=False)
    ] = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Make a topic, or more partitions for one that is there.

    leveret topic create orders --partitions 8 --max-age 7D
    """
    wanted = {"partitions": partitions, "max_age": max_age, "max_bytes": max_bytes}
    body = {field: value for field, value in wanted.items() if value is not None}
    screen = Screen(as_json=as_json)
    with spoken(screen):
        made = Api(http, vhost=vhost).put("topics", name, body=body)
    screen.result(made, f"topic '{name}' has {counted(len(made['partitions']), 'partition')}")


@topic.command(name="list")
def list_topics(http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """List all topics."""
    screen = Screen(as_json=as_json)
    with spoken(screen):
        found = Api(http, vhost=vhost).get("topics")
    if as_json:
        show_json(found)
    elif found:
        Page().table(
            tuple(_COLUMNS), [[_shown(each[field]) for field in _COLUMNS.values()] for each in found]
        )
    else:
        screen.say(f"there are no topics in vhost '{vhost}'")


@topic.command()
def show(name: Name, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """Show a topic: its partitions, and the groups that read it."""
    with spoken(Screen(as_json=as_json)):
        found = Api(http, vhost=vhost).get("topics", name)
    if as_json:
        show_json(found)
        return
    page = Page()
    rows = [[each[field] for field in _PARTITION.values()] for each in found["partitions"]]
    page.table(tuple(_PARTITION), rows)
    if found["groups"]:
        page.line()
        page.table(
            ("group", "mode", "lag"), [[each["name"], each["mode"], each["lag"]] for each in found["groups"]]
        )


@topic.command()
def delete(
    name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """Delete a topic with all that is in it; groups that read it must be deleted before."""
    make_sure(f"Delete topic '{name}' and all messages in it?", yes=yes)
    screen = Screen(as_json=as_json)
    with spoken(screen):
        Api(http, vhost=vhost).delete("topics", name)
    screen.result({"deleted": name}, f"topic '{name}' is deleted")


def _shown(value: Any) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else value
