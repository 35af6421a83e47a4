"""`leveret groups seek|skip|pause|resume|redrive`: change a group's progress by hand.

Parses, calls the broker's HTTP API, prints. The broker decides what is possible, and says why not.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.screen import counted

Group: TypeAlias = Annotated[str, typer.Argument(help="The group's name.")]
Subject: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The group's stream or topic, if several groups have this name.", show_default=False),
]
Partition: TypeAlias = Annotated[
    str | None, typer.Option(help="The partition's stream (default: all partitions).", show_default=False)
]


def seek(
    group: Group,
    to_first: Annotated[bool, typer.Option("--to-first", help="To the oldest message.")] = False,
    to_last: Annotated[bool, typer.Option("--to-last", help="To the end, for new messages only.")] = False,
    to_offset: Annotated[
        int | None, typer.Option(help="To this offset of one partition.", show_default=False)
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(help="To a time: 2026-11-15T09:00Z, or 1h for an hour ago.", show_default=False),
    ] = None,
    partition: Partition = None,
    reason: Annotated[str, typer.Option(help="Why; recorded by the broker.")] = "",
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Move a group back, to receive messages again, or ahead, to skip some.

    leveret groups seek billing --to-time 2026-11-15T09:00Z --reason "a bad release"
    """
    targets: list[dict[str, Any]] = [
        *([{"to": "first"}] if to_first else []),
        *([{"to": "last"}] if to_last else []),
        *([{"offset": to_offset}] if to_offset is not None else []),
        *([{"time": to_time}] if to_time is not None else []),
    ]
    if len(targets) != 1:
        raise typer.BadParameter("give exactly one of --to-first, --to-last, --to-offset, --to-time")
    body = {**targets[0], "reason": reason, "partition": partition}
    with exit_on_error(as_json=as_json) as screen:
        result = Api(http, vhost=vhost).post("groups", group, "seek", body=body, subject=subject)
    offsets = ", ".join(f"{name} at {offset:,}" for name, offset in result["partitions"].items())
    screen.result(result, f"group '{group}' continues from: {offsets}")


def skip(
    group: Group,
    offset: Annotated[int, typer.Argument(help="The offset of the message to skip.")],
    reason: Annotated[str, typer.Option(help="Why; recorded by the broker, with your user name.")],
    partition: Annotated[
        str | None,
        typer.Option(help="The partition's stream; needed if there are several.", show_default=False),
    ] = None,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Settle one message by hand, even if a member holds it: the group does not receive it again.

    leveret groups skip billing 2101 --partition orders-0 --reason "it fails every time"
    """
    body = {"offset": offset, "reason": reason, "partition": partition}
    with exit_on_error(as_json=as_json) as screen:
        skipped = Api(http, vhost=vhost).post("groups", group, "skip", body=body, subject=subject)
    screen.result(
        skipped,
        f"offset {offset:,} of '{skipped['partition']}' is settled; the watermark is at "
        f"{skipped['watermark']:,}",
    )


def pause(
    group: Group,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Deliver nothing to a group until it is resumed. Members stay and can settle what they hold."""
    _change_state(group, "pause", subject, http, vhost, as_json)


def resume(
    group: Group,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Resume deliveries to a paused group."""
    _change_state(group, "resume", subject, http, vhost, as_json)


def _change_state(group: str, action: str, subject: str | None, http: str, vhost: str, as_json: bool) -> None:
    with exit_on_error(as_json=as_json) as screen:
        state = Api(http, vhost=vhost).post("groups", group, action, body={}, subject=subject)
    screen.result(state, f"group '{group}' {'is paused' if state['paused'] else 'is resumed'}")


def redrive(
    group: Group,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.", show_default=False)] = None,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Deliver a group's dead letters to it again, from their places in the streams.

    leveret groups redrive billing --limit 100
    """
    with exit_on_error(as_json=as_json) as screen:
        result = Api(http, vhost=vhost).post(
            "groups", group, "redrive", body={"limit": limit}, subject=subject
        )
    gone = f", {result['gone']:,} no longer in their stream" if result["gone"] else ""
    screen.result(result, f"{counted(result['redriven'], 'message')} redriven{gone}, {result['left']:,} left")


def register(groups: typer.Typer) -> None:
    """Add the commands of this module to `leveret groups`."""
    for command in (seek, skip, pause, resume, redrive):
        groups.command()(command)
