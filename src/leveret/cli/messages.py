"""`leveret messages get`: look at messages at the head of a queue.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
`leveret consume` is for many messages, and `leveret consume --peek` looks without a delivery.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, exit_on_error, missing
from leveret.cli.options import AsJson
from leveret.cli.resources import fields
from leveret.cli.screen import counted
from leveret.cli.tables import Page, printable, show_json

messages = typer.Typer(help="Look at messages in queues.", no_args_is_help=True)

GotMessage: TypeAlias = dict[str, Any]


@messages.callback()
def group() -> None:
    """Look at messages in queues."""


@messages.command()
def get(
    queue: Annotated[str, typer.Argument(help="The queue.")],
    count: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 1,
    remove: Annotated[
        bool, typer.Option("--remove", help="Ack the messages: they are gone from the queue.")
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Reject the messages: they are dead-lettered or gone.")
    ] = False,
    truncate: Annotated[
        int | None, typer.Option(min=1, help="At most so many bytes of each payload.", show_default=False)
    ] = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show the first messages of a queue with their properties. They go back to their places.

    This counts as a delivery of each. To look without one: `leveret consume QUEUE --peek`.
    """
    if remove and reject:
        raise typer.BadParameter("give --remove or --reject, not both")
    mode = "ack_requeue_false" if remove else "reject_requeue_false" if reject else "ack_requeue_true"
    body = {"count": count, "ackmode": mode, "encoding": "auto", "truncate": truncate}
    sentence = f"there is no queue '{queue}' in vhost '{vhost}'"
    with exit_on_error(as_json=as_json) as screen, missing(sentence):
        shown = Api(http, vhost=vhost).post("queues", queue, "get", body=body)
    if as_json:
        show_json(shown)
        return
    page = Page()
    for number, message in enumerate(shown):
        page.line(_draw(message, first=number == 0))
    what = {"ack_requeue_true": "put back", "ack_requeue_false": "removed"}.get(mode, "rejected")
    screen.say(f"{counted(len(shown), 'message')} shown and {what}" if shown else f"queue '{queue}' is empty")


def _draw(message: GotMessage, *, first: bool) -> RenderableType:
    """Return a message: where it came from, its properties, its payload."""
    source = message["exchange"] or "(default)"
    heading = f"{source} / {message['routing_key']}"
    again = ", redelivered" if message["redelivered"] else ""
    size = f"  {counted(message['payload_bytes'], 'byte')}{again}"
    lines = [Text(printable(heading), style="bold").append(size, style="not bold")]
    if not first:
        lines.insert(0, Text())
    # RabbitMQ has an empty list for a message without properties.
    properties = message["properties"] or {}
    lines += [Text(f"  {printable(name)}: {printable(str(value))}") for name, value in fields(properties)]
    lines += map(Text, _payload(message))
    return Group(*lines)


def _payload(message: GotMessage) -> Iterable[str]:
    text = message["payload"]
    if message["payload_encoding"] != "string":
        yield "  (base64)"
    if len(text.encode("utf-8", "surrogateescape")) < message["payload_bytes"]:
        yield "  (only its beginning)"
    yield from map(printable, text.splitlines())
