"""`leveret vhosts`: list, create and delete virtual hosts.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Yes, confirm, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, show_json

vhosts = typer.Typer(help="Manage virtual hosts.", no_args_is_help=True)

Name: TypeAlias = Annotated[str, typer.Argument(help="The virtual host's name.")]


@vhosts.command(name="list")
def list_vhosts(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """List the virtual hosts that the user may see."""
    with exit_on_error(as_json=as_json):
        rows = Api(http, vhost="/").get("vhosts")
    if as_json:
        show_json(rows)
        return
    fields = ("name", "description", "tags", "default_queue_type", "messages")
    cells = [[row["name"], row["description"], ", ".join(row["tags"])] for row in rows]
    for row, cell in zip(rows, cells, strict=True):
        # RabbitMQ counts no messages while no virtual host has a queue.
        cell += [row["default_queue_type"], str(row.get("messages", 0))]
    Page().table(fields, cells)


@vhosts.command()
def create(
    name: Name,
    description: Annotated[str, typer.Option(help="What the virtual host is for.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeatable.", show_default=False)] = None,
    default_queue_type: Annotated[
        str | None,
        typer.Option(help="classic, quorum or stream: for queues declared without a type."),
    ] = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Create a virtual host, or replace description and tags of one. Its creator has all permissions in it.

    leveret vhosts create billing --description Invoices --tag production
    """
    body = {"description": description, "tags": tag or [], "default_queue_type": default_queue_type}
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=name).put("vhosts", name, body=body)
    screen.result({"vhost": name, **body}, f"virtual host '{name}' is there")


@vhosts.command()
def delete(name: Name, yes: Yes = False, http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
    """Delete a virtual host with all queues, messages and permissions in it, and close its connections."""
    confirm(f"Delete virtual host '{name}' with all messages in it?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=name).delete("vhosts", name)
    screen.result({"deleted": name}, f"virtual host '{name}' is deleted")
