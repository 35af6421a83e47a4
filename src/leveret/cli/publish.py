"""`leveret publish`: publish messages from files or from stdin, with a receipt for each.

Owns the options and checks their combinations; `Publishing` does the work.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, TypeAlias, cast

import typer

from leveret.amqp.tables import Value
from leveret.cli.command_runner import Interruption, connected, queue_depth, require_exchange, run
from leveret.cli.inputs import is_interactive, read_files, read_lines, total_bytes
from leveret.cli.message_json import BadEnvelope, parse_json
from leveret.cli.options import CONNECT_S, AsJson, ConnectS, RatePerS, Urls, positive
from leveret.cli.publishing import Composer, Publishing
from leveret.cli.screen import Screen
from leveret.client import ClientError, Connection, Publisher, Queue, Topology
from leveret.client.message import Properties


class InputFormat(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"
    ENVELOPE = "envelope"
    FILE = "file"


Files: TypeAlias = Annotated[
    list[Path] | None,
    typer.Argument(exists=True, dir_okay=False, allow_dash=True, help="Input files; - is stdin."),
]
QueueName: TypeAlias = Annotated[str | None, typer.Option("--queue", "-q", help="The queue to publish to.")]
Declare: TypeAlias = Annotated[
    bool, typer.Option("--declare", help="Declare the queue (durable) if it does not exist.")
]
Exchange: TypeAlias = Annotated[
    str | None, typer.Option("--exchange", "-x", help="The exchange to publish to.")
]
Key: TypeAlias = Annotated[str | None, typer.Option("--key", "-k", help="The routing key, with --exchange.")]
Format: TypeAlias = Annotated[
    InputFormat,
    typer.Option("--format", "-f", help="One message is a line, a line of JSON, an envelope, or a file."),
]
AsEnvelope: TypeAlias = Annotated[
    bool,
    typer.Option("--envelope", "-e", help="Short for --format envelope: messages as written by consume -e."),
]
ContentType: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Content type (default: by --format, or by the name of a file).", show_default=False),
]
Headers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help="A header: name=text, or name:=JSON for other types. Repeatable."),
]
Persistent: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--persistent/--transient",
        help="Whether messages survive a restart of the broker (default: persistent).",
        show_default=False,
    ),
]
Mandatory: TypeAlias = Annotated[bool, typer.Option(help="Report messages that no queue takes as returned.")]
Window: TypeAlias = Annotated[int, typer.Option(min=1, help="Maximum number of unconfirmed messages.")]
TimeoutS: TypeAlias = Annotated[
    float, typer.Option("--timeout", callback=positive, help="Seconds to wait for a confirm.")
]
Repeat: TypeAlias = Annotated[int, typer.Option(min=1, help="How often to publish each message.")]
FailedFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--failed", dir_okay=False, help="Append unconfirmed messages to this file, for publish -e."
    ),
]


def publish(
    files: Files = None,
    url: Urls = None,
    queue: QueueName = None,
    declare: Declare = False,
    exchange: Exchange = None,
    key: Key = None,
    format: Format = InputFormat.LINES,
    envelope: AsEnvelope = False,
    content_type: ContentType = None,
    header: Headers = None,
    persistent: Persistent = None,
    mandatory: Mandatory = True,
    window: Window = 1000,
    timeout: TimeoutS = 30.0,
    rate: RatePerS = None,
    repeat: Repeat = 1,
    failed: FailedFile = None,
    connect_timeout: ConnectS = CONNECT_S,
    as_json: AsJson = False,
) -> None:
    """Publish messages from files or from stdin, and wait for the broker to confirm each.

    leveret publish --queue orders --format jsonl orders.jsonl
    """
    form = "envelope" if envelope else format.value
    exchange, key = _target(queue, exchange, key, form=form, declare=declare)
    properties = Properties()
    if content_type is not None:
        properties["content_type"] = content_type
    if persistent is not None:
        properties["persistent"] = persistent
    composer = Composer(form, exchange, key, properties, _headers(header or []))
    inputs = files or [Path("-")]
    screen = Screen(as_json=as_json)
    topology = _topology(queue) if queue and declare else None

    async def work(interruption: Interruption) -> int:
        with ExitStack() as stack:
            publishing = Publishing(
                screen,
                interruption,
                composer,
                repeat=repeat,
                rate_per_s=rate,
                total_bytes=total_bytes(inputs),
                failed=None if failed is None else stack.enter_context(_open_failed_file(failed, inputs)),
                visible=not is_interactive(inputs),
            )
            batches = read_files(inputs) if form == "file" else read_lines(inputs)
            async with connected(
                url, timeout_s=connect_timeout, name="leveret publish", topology=topology
            ) as connection:
                await _check_target_exists(connection, queue, exchange)
                publisher = Publisher(connection, window=window, timeout_s=timeout, mandatory=mandatory)
                async with publisher:
                    return await publishing.run(publisher, batches)

    run(screen, work)


def _target(
    queue: str | None, exchange: str | None, key: str | None, *, form: str, declare: bool
) -> tuple[str | None, str | None]:
    """Return exchange and routing key; None stands for the one in the envelope."""
    if queue is not None and (exchange is not None or key is not None):
        raise typer.BadParameter("use either --queue, or --exchange and --key")
    if declare and queue is None:
        raise typer.BadParameter("--declare needs --queue")
    if queue is not None:
        return "", queue
    if exchange is None and form != "envelope":
        raise typer.BadParameter("no destination: give --queue, or --exchange and --key")
    if exchange is not None and form != "envelope":
        return exchange, key or ""
    return exchange, key


def _topology(queue: str) -> Topology:
    """Return a topology with the durable queue; an existing queue is used as it is."""
    try:
        return Topology(Queue(queue), on_mismatch="ignore")
    except ValueError as error:
        raise typer.BadParameter(f"--declare: {error}") from error


def _headers(options: list[str]) -> dict[str, Value]:
    """
    >>> _headers(["region=eu", "tries:=3"])
    {'region': 'eu', 'tries': 3}
    """
    headers: dict[str, Value] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or name in ("", ":"):
            raise typer.BadParameter(f"--header must be name=text or name:=JSON, not {option!r}")
        if name.endswith(":"):
            try:
                headers[name[:-1]] = cast(Value, parse_json(text.encode()))
            except BadEnvelope as error:
                raise typer.BadParameter(f"--header {option}: {error}") from error
        else:
            headers[name] = text
    return headers


def _open_failed_file(failed: Path, inputs: list[Path]) -> IO[bytes]:
    """Open the file for unconfirmed messages; refuse an input file."""
    if failed.exists() and any(path.exists() and os.path.samefile(path, failed) for path in inputs):
        raise ClientError(f"{failed} is also an input", hint="give --failed another name")
    return failed.open("ab")


async def _check_target_exists(connection: Connection, queue: str | None, exchange: str | None) -> None:
    """Raise `ClientError` if the queue or exchange does not exist, before anything is published."""
    if queue is not None:
        await queue_depth(connection, queue, hint="--declare creates it")
    elif exchange:
        await require_exchange(connection, exchange)
