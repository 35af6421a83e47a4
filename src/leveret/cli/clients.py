"""`leveret connections`, `leveret channels` and `leveret consumers`: list, show, and close connections.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the commands work on RabbitMQ too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error, missing
from leveret.cli.options import AsJson
from leveret.cli.resources import Resource, Row, draw_object, register
from leveret.cli.tables import Page
from leveret.cli.watching import Watch, present

connections = typer.Typer(help="Show and close connections.", no_args_is_help=True)
channels = typer.Typer(help="Show channels.", no_args_is_help=True)
consumers = typer.Typer(help="Show consumers.", no_args_is_help=True)

CONNECTIONS: Final = Resource(
    "connections",
    "connection",
    {
        "name": "name",
        "user": "user",
        "client": "user_provided_name",
        "channels": "channels",
        "in B/s": "recv_oct_details.rate",
        "out B/s": "send_oct_details.rate",
    },
    paged=False,
)
CHANNELS: Final = Resource(
    "channels",
    "channel",
    {
        "name": "name",
        "user": "user",
        "prefetch": "prefetch_count",
        "unacked": "messages_unacknowledged",
        "in/s": "message_stats.publish_details.rate",
        "out/s": "message_stats.deliver_get_details.rate",
    },
    paged=False,
)
CONSUMERS: Final = Resource(
    "consumers",
    "consumer",
    {
        "queue": "queue.name",
        "tag": "consumer_tag",
        "channel": "channel_details.name",
        "prefetch": "prefetch_count",
        "acks": "ack_required",
        "active": "active",
    },
    paged=False,
    named_by=("queue.name", "consumer_tag"),
)
register(connections, CONNECTIONS)
register(channels, CHANNELS)
register(consumers, CONSUMERS, showing=False)


@connections.command()
def close(
    name: Annotated[str, typer.Argument(help="The name of the connection, as it is listed.")],
    reason: Annotated[str | None, typer.Option(help="What the client is told.", show_default=False)] = None,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Close a connection. Its client gets the error 320 with the reason; its unacked messages are requeued.

    leveret connections close '127.0.0.1:50020 -> 127.0.0.1:5672' --reason maintenance
    """
    if reason is not None and not (reason.isascii() and reason.isprintable()):
        raise typer.BadParameter("a reason has printable ASCII characters only", param_hint="--reason")
    confirm(f"Close connection '{name}'?", yes=yes)
    with exit_on_error(as_json=as_json) as screen, missing(f"there is no connection '{name}'"):
        Api(http, vhost=None).close("connections", name, reason=reason)
    screen.result({"closed": name}, f"connection '{name}' is closed")


@consumers.command()
def show(
    tag: Annotated[str, typer.Argument(help="The consumer's tag.")],
    watch: Watch = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show all that the broker knows of the consumers with this tag: each channel may have one."""
    with exit_on_error(as_json=as_json) as screen:
        rows = present(_tagged(Api(http, vhost=vhost), tag), _draw_all, as_json=as_json, watch_s=watch)
        if not rows:
            screen.fail(f"there is no consumer '{tag}' in vhost '{vhost}'")


def _tagged(api: Api, tag: str) -> Callable[[], list[Row]]:
    return lambda: [row for row in api.get("consumers") if row["consumer_tag"] == tag]


def _draw_all(page: Page, rows: list[Row]) -> RenderableType:
    return Group(*(draw_object(page, row) for row in rows))
