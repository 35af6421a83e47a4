"""`leveret consume`: write the messages of a queue to a file, a directory or a pipe.

Owns the options and checks their combinations; `Consuming` does the work.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.background_calls import Background
from leveret.cli.command_runner import Interruption, connected, queue_depth, run
from leveret.cli.consuming import ConsumeOptions, Consuming
from leveret.cli.options import CONNECT_S, AsJson, ConnectS, Urls, positive
from leveret.cli.outputs import Directory, Lines, Output
from leveret.cli.screen import Screen

_STDOUT: Final = 1
_IDLE_S: Final = 1.0
_PREFETCH_MAX: Final = 65_535


class OutputFormat(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"
    ENVELOPE = "envelope"
    DIRECTORY = "directory"


QueueName: TypeAlias = Annotated[str, typer.Argument(help="The queue to consume.")]
Count: TypeAlias = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Stop after N messages.", show_default=False)
]
IdleS: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--idle",
        callback=positive,
        help=f"Stop after this many seconds without a message (default: {_IDLE_S:g}).",
        show_default=False,
    ),
]
Follow: TypeAlias = Annotated[bool, typer.Option("--follow", help="Keep waiting until Ctrl-C or --count.")]
OutputPath: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="File to append to, or directory (default: stdout)."),
]
Format: TypeAlias = Annotated[
    OutputFormat,
    typer.Option(
        "--format", "-f", help="Bodies as lines or as JSON, whole messages, or one file for each body."
    ),
]
AsEnvelope: TypeAlias = Annotated[
    bool,
    typer.Option("--envelope", "-e", help="Short for --format envelope: whole messages, for publish -e."),
]
Prefetch: TypeAlias = Annotated[
    int, typer.Option(min=1, max=_PREFETCH_MAX, help="Maximum number of unacked messages.")
]
Peek: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--peek",
        "--no-ack-messages",
        help="Leave all messages in the queue. On Leveret this does not count as a delivery.",
    ),
]
TimeoutS: TypeAlias = Annotated[
    float,
    typer.Option(
        "--timeout", callback=positive, help="Seconds to wait for a lost broker; unlimited with --follow."
    ),
]


def consume(
    queue: QueueName,
    url: Urls = None,
    count: Count = None,
    idle: IdleS = None,
    follow: Follow = False,
    output: OutputPath = None,
    format: Format = OutputFormat.LINES,
    envelope: AsEnvelope = False,
    prefetch: Prefetch = 500,
    peek: Peek = False,
    timeout: TimeoutS = 30.0,
    connect_timeout: ConnectS = CONNECT_S,
    as_json: AsJson = False,
) -> None:
    """Write the messages of a queue to a file or to stdout. Each is acked after it was written.

    leveret consume orders --envelope --output orders.jsonl
    """
    form = "envelope" if envelope else format.value
    if follow and idle is not None:
        raise typer.BadParameter("--follow and --idle can't be combined")
    if form == "directory" and output is None:
        raise typer.BadParameter("--format directory needs --output")
    if as_json and output is None:
        raise typer.BadParameter("--json needs --output: stdout can't carry both messages and result")
    options = ConsumeOptions(count, None if follow else idle or _IDLE_S, timeout, peek)
    unacked_max = prefetch if count is None else min(prefetch, count)
    screen = Screen(as_json=as_json)

    async def work(interruption: Interruption) -> int:
        background = Background()
        async with connected(url, timeout_s=connect_timeout, name="leveret consume") as connection:
            expected = await queue_depth(connection, queue)
            out = await background.call(lambda: _open_output(output, form))
            # No progress bar while lines go to a terminal or a pipe.
            visible = output is not None or S_ISREG(os.fstat(_STDOUT).st_mode)
            consuming = Consuming(
                screen, interruption, background, out, options, expected=expected, visible=visible
            )
            try:
                return await consuming.run(connection, queue, unacked_max)
            finally:
                out.close()

    run(screen, work)


def _open_output(output: Path | None, form: str) -> Output:
    if form == "directory":
        assert output is not None
        return Directory(output)
    if output is None:
        return Lines(os.dup(_STDOUT), "stdout", form)
    return Lines.to_file(output, form)
