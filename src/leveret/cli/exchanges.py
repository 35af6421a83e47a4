"""`leveret exchanges`: list, show, declare and delete exchanges.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
The broker decides which types there are.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error, missing
from leveret.cli.declaring import Arguments, Transient, parsed_arguments
from leveret.cli.options import AsJson
from leveret.cli.resources import Resource, register

exchanges = typer.Typer(help="Show, declare and delete exchanges.", no_args_is_help=True)

EXCHANGES: Final = Resource(
    "exchanges",
    "exchange",
    {
        "name": "name",
        "type": "type",
        "durable": "durable",
        "internal": "internal",
        "policy": "policy",
        "in/s": "message_stats.publish_in_details.rate",
        "out/s": "message_stats.publish_out_details.rate",
    },
)
register(exchanges, EXCHANGES)

Name: TypeAlias = Annotated[str, typer.Argument(help="The exchange's name.")]


@exchanges.command()
def declare(
    name: Name,
    type_: Annotated[
        str, typer.Option("--type", help="direct, fanout, topic, headers or x-consistent-hash.")
    ] = "direct",
    arguments: Arguments = None,
    transient: Transient = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete the exchange when its last binding is gone.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Only exchanges publish to it, by bindings.")
    ] = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Declare an exchange. An existing one with the same properties stays as it is, others are refused.

    leveret exchanges declare events --type topic
    """
    body = {
        "type": type_,
        "durable": not transient,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": parsed_arguments(arguments),
    }
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).put("exchanges", name, body=body)
    screen.result({"exchange": name, "vhost": vhost, **body}, f"exchange '{name}' is there")


@exchanges.command()
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if no binding leads from the exchange.")
    ] = False,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Delete an exchange with its bindings. Queues and their messages stay."""
    confirm(f"Delete exchange '{name}' with its bindings?", yes=yes)
    query = {"if-unused": "true" if if_unused else None}
    with (
        exit_on_error(as_json=as_json) as screen,
        missing(f"there is no exchange '{name}' in vhost '{vhost}'"),
    ):
        Api(http, vhost=vhost).delete("exchanges", name, **query)
    screen.result({"deleted": name}, f"exchange '{name}' is deleted")
