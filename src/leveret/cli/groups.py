"""`leveret groups`: which there are, one as a page, and making, changing and deleting them.

Parses, asks the broker's HTTP API, prints. Moves by hand (seek, skip, pause, redrive) are in `moves`, the
page of one group in `group_page`; what a setting means and whether it makes sense is the broker's to say.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from leveret.cli import group_page
from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, make_sure, spoken
from leveret.cli.durations import length_ms
from leveret.cli.group_moves import Group, Subject, register
from leveret.cli.options import AsJson
from leveret.cli.screen import Screen
from leveret.cli.tables import Page, show_json

groups = typer.Typer(help="Look at consumer groups, and move them.")

COLUMNS: Final = {
    "group": "name",
    "subject": "subject",
    "mode": "mode",
    "members": "members",
    "lag": "lag",
    "in flight": "in_flight",
    "delayed": "delayed",
    "dead": "dead_letters",
}

Mode: TypeAlias = Annotated[
    str | None,
    typer.Option(help="concurrent: any member takes any message; orderly: one at a time in each partition."),
]
MaxSpan: TypeAlias = Annotated[
    int | None, typer.Option(help="Deliver at most so far above the lowest unsettled message (2000).")
]
ConsumeTimeout: TypeAlias = Annotated[
    str | None, typer.Option(help="How long a delivery may take, like 15m (that is the default); 0 for ever.")
]
MaxReconsume: TypeAlias = Annotated[
    int | None,
    typer.Option(help="How often a message comes again before it is a dead letter (16); -1 for ever."),
]
Delays: TypeAlias = Annotated[
    str | None, typer.Option(help="How long a message waits before it comes again: '1s 5s 1m', each longer.")
]
FirstLevel: TypeAlias = Annotated[
    int | None, typer.Option(help="Which of the delays is the first one's, counted from 1.")
]
Start: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Where a new group starts: first, last, an offset, a time like 2026-11-15T09:00Z, or how long "
        "ago, like 1h."
    ),
]


@groups.callback(invoke_without_command=True)
def list_groups(
    context: typer.Context, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """Look at consumer groups, and move them. Without a command: list them."""
    if context.invoked_subcommand is not None:
        _check_none_lost(context)
        return
    screen = Screen(as_json=as_json)
    with spoken(screen):
        found = Api(http, vhost=vhost).get("groups")
    if as_json:
        show_json(found)
    elif found:
        Page().table(tuple(COLUMNS), [_line(group) for group in found])
    else:
        screen.say(f"there are no groups in vhost '{vhost}'")


def _line(group: dict[str, Any]) -> list[object]:
    shown = {**group, "mode": f"{group['mode']}, paused" if group["paused"] else group["mode"]}
    return [shown[field] for field in COLUMNS.values()]


def _check_none_lost(context: typer.Context) -> None:
    """An option before the command is the list's: it would be read and do nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"options come behind the command: '{context.invoked_subcommand}'")


@groups.command()
def describe(
    group: Group,
    subject: Subject = None,
    limit: Annotated[int, typer.Option(min=0, help="List at most so many delays of a partition.")] = 5,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show a group: its members, and how far it has come in each partition, as a picture.

    leveret groups describe billing
    """
    with spoken(Screen(as_json=as_json)):
        found = Api(http, vhost=vhost).get(
            "groups", group, subject=subject, limit=limit, cells=group_page.CELLS
        )
    if as_json:
        show_json(found)
        return
    page = Page()
    for place, each in enumerate(found):
        if place:
            page.line()
        group_page.describe(page, each)


@groups.command()
def create(
    group: Group,
    subject: Annotated[str, typer.Option(help="The stream or topic that it reads.")],
    start: Start = "first",
    mode: Mode = None,
    max_span: MaxSpan = None,
    consume_timeout: ConsumeTimeout = None,
    max_reconsume: MaxReconsume = None,
    delays: Delays = None,
    first_level: FirstLevel = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Make a group before anybody joins it. One that is there gets the settings, and stays where it is.

    leveret groups create billing --subject orders --start last --max-span 500
    """
    wanted = _settings(
        mode=mode,
        max_span=max_span,
        consume_timeout_ms=length_ms(consume_timeout),
        max_reconsume=max_reconsume,
        delays=delays,
        first_level=first_level,
    )
    screen = Screen(as_json=as_json)
    place: str | int = int(start) if start.isdecimal() else start
    with spoken(screen):
        made = Api(http, vhost=vhost).put(
            "groups", group, body={"subject": subject, "start": place, **wanted}
        )
    screen.result(made, f"group '{group}' reads '{subject}', lag {made['lag']:,}")


@groups.command(name="set")
def change(
    group: Group,
    subject: Subject = None,
    mode: Mode = None,
    max_span: MaxSpan = None,
    consume_timeout: ConsumeTimeout = None,
    max_reconsume: MaxReconsume = None,
    delays: Delays = None,
    first_level: FirstLevel = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Change settings of a group, at once, also for what its members hold.

    leveret groups set billing --consume-timeout 2m --max-reconsume 5
    """
    wanted = _settings(
        mode=mode,
        max_span=max_span,
        consume_timeout_ms=length_ms(consume_timeout),
        max_reconsume=max_reconsume,
        delays=delays,
        first_level=first_level,
    )
    if not wanted:
        raise typer.BadParameter("say what to change: --max-span, --consume-timeout, …")
    screen = Screen(as_json=as_json)
    with spoken(screen):
        changed = Api(http, vhost=vhost).patch("groups", group, body=wanted, subject=subject)
    screen.result(changed, f"group '{group}' has them: {', '.join(wanted)}")


@groups.command()
def delete(
    group: Group,
    subject: Subject = None,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Delete a group with its progress; its members are told. Its dead letters stay."""
    make_sure(f"Delete group '{group}' and forget how far it has come?", yes=yes)
    screen = Screen(as_json=as_json)
    with spoken(screen):
        Api(http, vhost=vhost).delete("groups", group, subject=subject)
    screen.result({"deleted": group}, f"group '{group}' is deleted")


def _settings(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


register(groups)
