"""`leveret queues`: list, show, declare, purge and delete queues and streams.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
The broker decides which arguments are valid.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error, missing
from leveret.cli.declaring import Arguments, Transient, parsed_arguments
from leveret.cli.options import AsJson
from leveret.cli.resources import Resource, register

queues = typer.Typer(help="Show, declare, purge and delete queues and streams.", no_args_is_help=True)

QUEUES: Final = Resource(
    "queues",
    "queue",
    {
        "name": "name",
        "type": "type",
        "ready": "messages_ready",
        "unacked": "messages_unacknowledged",
        "delayed": "delayed",
        "consumers": "consumers",
        "in/s": "message_stats.publish_details.rate",
        "out/s": "message_stats.deliver_get_details.rate",
    },
)
register(queues, QUEUES)

Name: TypeAlias = Annotated[str, typer.Argument(help="The queue's name.")]


@queues.command()
def declare(
    name: Name,
    type_: Annotated[
        str | None, typer.Option("--type", help="classic, quorum or stream.", show_default=False)
    ] = None,
    arguments: Arguments = None,
    transient: Transient = False,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete the queue when its last consumer is gone.")
    ] = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Declare a queue. An existing queue with the same properties stays as it is, others are refused.

    leveret queues declare invoices --type quorum --argument x-max-length=1000
    """
    wanted = parsed_arguments(arguments) | ({} if type_ is None else {"x-queue-type": type_})
    body = {"durable": not transient, "auto_delete": auto_delete, "arguments": wanted}
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).put("queues", name, body=body)
    screen.result({"queue": name, "vhost": vhost, **body}, f"queue '{name}' is there")


@queues.command()
def purge(
    name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """Delete all messages of a queue that are not with a consumer."""
    confirm(f"Delete the messages of queue '{name}'?", yes=yes)
    with exit_on_error(as_json=as_json) as screen, _known(name, vhost):
        Api(http, vhost=vhost).delete("queues", name, "contents")
    screen.result({"purged": name}, f"queue '{name}' is purged")


@queues.command()
def delete(
    name: Name,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if the queue has no messages.")] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if the queue has no consumers.")
    ] = False,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Delete a queue with all its messages. Its consumers are cancelled."""
    confirm(f"Delete queue '{name}' with all its messages?", yes=yes)
    conditions = {"if-empty": "true" if if_empty else None, "if-unused": "true" if if_unused else None}
    with exit_on_error(as_json=as_json) as screen, _known(name, vhost):
        Api(http, vhost=vhost).delete("queues", name, **conditions)
    screen.result({"deleted": name}, f"queue '{name}' is deleted")


def _known(name: str, vhost: str) -> AbstractContextManager[None]:
    return missing(f"there is no queue '{name}' in vhost '{vhost}'")
