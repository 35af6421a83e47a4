"""`leveret groups seek|skip|pause|resume|redrive`: groups moved by hand.

Parses, asks the broker's HTTP API, prints. What can't be done, and why not, the broker says.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, spoken
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen, counted

Group: TypeAlias = Annotated[str, typer.Argument(help="The group's name.")]
Subject: TypeAlias = Annotated[
    str | None, typer.Option(help="What it reads, where several groups have its name.", show_default=False)
]
Partition: TypeAlias = Annotated[
    str | None, typer.Option(help="The stream; all of them unless given.", show_default=False)
]


def seek(
    group: Group,
    to_first: Annotated[bool, typer.Option("--to-first", help="To the oldest message there is.")] = False,
    to_last: Annotated[bool, typer.Option("--to-last", help="To the end: what comes from now on.")] = False,
    to_offset: Annotated[
        int | None, typer.Option(help="To this offset, of one partition.", show_default=False)
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(help="To what came in at 2026-11-15T09:00Z or later, or 1h ago.", show_default=False),
    ] = None,
    partition: Partition = None,
    reason: Annotated[str, typer.Option(help="Why; it is written down.")] = "",
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Send a group somewhere else: back, to see messages again, or ahead, to leave some out.

    leveret groups seek billing --to-time 2026-11-15T09:00Z --reason "a bad release"
    """
    wanted: list[dict[str, Any]] = [
        *([{"to": "first"}] if to_first else []),
        *([{"to": "last"}] if to_last else []),
        *([{"offset": to_offset}] if to_offset is not None else []),
        *([{"time": to_time}] if to_time is not None else []),
    ]
    if len(wanted) != 1:
        raise typer.BadParameter("say where to with one of --to-first, --to-last, --to-offset, --to-time")
    body = {**wanted[0], "reason": reason} | ({} if partition is None else {"partition": partition})
    screen = Screen(as_json=as_json)
    with spoken(screen):
        moved = Api(http, vhost=vhost).post("groups", group, "seek", body=body, subject=subject)
    places = ", ".join(f"{name} at {offset:,}" for name, offset in moved["partitions"].items())
    screen.result(moved, f"group '{group}' goes on from there: {places}")


def skip(
    group: Group,
    offset: Annotated[int, typer.Argument(help="The message to leave out.")],
    reason: Annotated[str, typer.Option(help="Why; it is written down with who did it.")],
    partition: Annotated[
        str | None,
        typer.Option(help="The stream; it may be left out where there is one only.", show_default=False),
    ] = None,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Settle one message by hand, whoever has it: the group does not see it again.

    leveret groups skip billing 2101 --partition orders-0 --reason "it loops for ever"
    """
    body = {"offset": offset, "reason": reason} | ({} if partition is None else {"partition": partition})
    screen = Screen(as_json=as_json)
    with spoken(screen):
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
    """Deliver nothing to a group until it is resumed; its members stay, and settle what they hold."""
    _switch(group, "pause", Api(http, vhost=vhost), subject, Screen(as_json=as_json))


def resume(
    group: Group,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Go on with a group that was paused."""
    _switch(group, "resume", Api(http, vhost=vhost), subject, Screen(as_json=as_json))


def _switch(group: str, how: str, api: Api, subject: str | None, screen: Screen) -> None:
    with spoken(screen):
        found = api.post("groups", group, how, body={}, subject=subject)
    screen.result(found, f"group '{group}' {'is paused' if found['paused'] else 'goes on'}")


def redrive(
    group: Group,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default=False)] = None,
    subject: Subject = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Deliver a group's dead letters to it once more, from where they are in their streams.

    leveret groups redrive billing --limit 100
    """
    screen = Screen(as_json=as_json)
    with spoken(screen):
        done = Api(http, vhost=vhost).post(
            "groups", group, "redrive", body={} if limit is None else {"limit": limit}, subject=subject
        )
    gone = f", {done['gone']:,} no longer in their stream" if done["gone"] else ""
    screen.result(done, f"{counted(done['redriven'], 'message')} redriven{gone}, {done['left']:,} left")


def register(groups: typer.Typer) -> None:
    """Makes them commands of `leveret groups`."""
    for command in (seek, skip, pause, resume, redrive):
        groups.command()(command)
