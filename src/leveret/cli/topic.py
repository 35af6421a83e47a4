"""`leveret topic create|list|show|delete`: topics, which spread messages over streams by their routing keys.

Parses, calls the broker's HTTP API, prints. A topic is an exchange with streams bound to it, so any AMQP
client can publish to it: `leveret publish --exchange orders --key customer-7`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.screen import counted
from leveret.cli.tables import Page, show_json

topic = typer.Typer(help="Create, show and delete topics.", no_args_is_help=True)

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
_PARTITION_COLUMNS: Final = {
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
        typer.Option(
            help="Number of partitions (default: 1). An existing topic can get more.", show_default=False
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(help="How long messages are kept: 7D, 12h; units Y M D h m s.", show_default=False),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Approximate size that each partition keeps.", show_default=False)
    ] = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Create a topic, or add partitions to an existing one.

    leveret topic create orders --partitions 8 --max-age 7D
    """
    body = {"partitions": partitions, "max_age": max_age, "max_bytes": max_bytes}
    with exit_on_error(as_json=as_json) as screen:
        created = Api(http, vhost=vhost).put("topics", name, body=body)
    screen.result(created, f"topic '{name}' has {counted(len(created['partitions']), 'partition')}")


@topic.command(name="list")
def list_topics(http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """List all topics."""
    with exit_on_error(as_json=as_json) as screen:
        topics = Api(http, vhost=vhost).get("topics")
    if as_json:
        show_json(topics)
    elif topics:
        rows = [[_cell(topic_json[field]) for field in _COLUMNS.values()] for topic_json in topics]
        Page().table(tuple(_COLUMNS), rows)
    else:
        screen.say(f"there are no topics in vhost '{vhost}'")


@topic.command()
def show(name: Name, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False) -> None:
    """Show a topic: its partitions, and the groups that read it."""
    with exit_on_error(as_json=as_json):
        topic_json = Api(http, vhost=vhost).get("topics", name)
    if as_json:
        show_json(topic_json)
        return
    page = Page()
    page.table(
        tuple(_PARTITION_COLUMNS),
        [[part[field] for field in _PARTITION_COLUMNS.values()] for part in topic_json["partitions"]],
    )
    if topic_json["groups"]:
        page.line()
        page.table(
            ("group", "mode", "lag"),
            [[group["name"], group["mode"], group["lag"]] for group in topic_json["groups"]],
        )


@topic.command()
def delete(
    name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """Delete a topic and all its messages. Delete the groups that read it first."""
    confirm(f"Delete topic '{name}' and all messages in it?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).delete("topics", name)
    screen.result({"deleted": name}, f"topic '{name}' is deleted")


def _cell(value: Any) -> object:
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else value
