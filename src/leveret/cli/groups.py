"""`leveret groups`: list, describe, create, change and delete consumer groups.

Parses, calls the broker's HTTP API, prints. `group_moves` changes a group's progress (seek, skip, pause,
redrive), `group_page` prints one group. The broker decides what a setting means and whether it is valid.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer

from leveret.cli import group_page
from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error
from leveret.cli.durations import parse_duration_ms
from leveret.cli.group_moves import Group, Subject, register
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, show_json

groups = typer.Typer(help="Show and change consumer groups.")

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

_SETTINGS: Final = ("mode", "max_span", "consume_timeout_ms", "max_reconsume", "delays", "first_level")

Mode: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="concurrent: any member gets any message; orderly: one message at a time in each partition."
    ),
]
MaxSpan: TypeAlias = Annotated[
    int | None,
    typer.Option(help="How far deliveries may run ahead of the lowest unsettled message (default: 2000)."),
]
ConsumeTimeout: TypeAlias = Annotated[
    str | None, typer.Option(help="How long a delivery may take, like 2m (default: 15m); 0 is unlimited.")
]
MaxReconsume: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Redeliveries of a message before it is dead-lettered (default: 16); -1 is unlimited."),
]
Delays: TypeAlias = Annotated[
    str | None, typer.Option(help="Delays before each redelivery of a message, ascending: '1s 5s 1m'.")
]
FirstLevel: TypeAlias = Annotated[
    int | None, typer.Option(help="Which of the delays comes first, counted from 1.")
]
Start: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Where a new group starts: first, last, an offset, a time like 2026-11-15T09:00Z, or an age "
        "like 1h."
    ),
]


@groups.callback(invoke_without_command=True)
def list_groups(
    context: typer.Context, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """Show and change consumer groups. Without a command: list them."""
    if context.invoked_subcommand is not None:
        _refuse_options_before_command(context)
        return
    with exit_on_error(as_json=as_json) as screen:
        groups_json = Api(http, vhost=vhost).get("groups")
    if as_json:
        show_json(groups_json)
    elif groups_json:
        Page().table(tuple(COLUMNS), [_row(group) for group in groups_json])
    else:
        screen.say(f"there are no groups in vhost '{vhost}'")


def _row(group: dict[str, Any]) -> list[object]:
    fields = {**group, "mode": f"{group['mode']}, paused" if group["paused"] else group["mode"]}
    return [fields[field] for field in COLUMNS.values()]


def _refuse_options_before_command(context: typer.Context) -> None:
    """Raise `BadParameter` for an option before the command: it would have no effect there."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put options after the command '{context.invoked_subcommand}'")


@groups.command()
def describe(
    group: Group,
    subject: Subject = None,
    limit: Annotated[int, typer.Option(min=0, help="Delayed messages to list for each partition.")] = 5,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show a group: its members, and a chart of its progress in each partition.

    leveret groups describe billing
    """
    with exit_on_error(as_json=as_json):
        descriptions = Api(http, vhost=vhost).get(
            "groups", group, subject=subject, limit=limit, cells=group_page.CELLS
        )
    if as_json:
        show_json(descriptions)
        return
    page = Page()
    for number, description in enumerate(descriptions):
        if number:
            page.line()
        group_page.describe(page, description)


@groups.command()
def create(
    group: Group,
    subject: Annotated[str, typer.Option(help="The stream or topic to read.")],
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
    """Create a group before a member joins it. An existing group gets the settings and keeps its progress.

    leveret groups create billing --subject orders --start last --max-span 500
    """
    timeout_ms = parse_duration_ms(consume_timeout)
    settings = _settings(mode, max_span, timeout_ms, max_reconsume, delays, first_level)
    position: str | int = int(start) if start.isdecimal() else start
    with exit_on_error(as_json=as_json) as screen:
        created = Api(http, vhost=vhost).put(
            "groups", group, body={"subject": subject, "start": position, **settings}
        )
    screen.result(created, f"group '{group}' reads '{subject}', lag {created['lag']:,}")


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
    """Change settings of a group at once, also for messages that are in flight.

    leveret groups set billing --consume-timeout 2m --max-reconsume 5
    """
    timeout_ms = parse_duration_ms(consume_timeout)
    settings = _settings(mode, max_span, timeout_ms, max_reconsume, delays, first_level)
    if not settings:
        raise typer.BadParameter("give at least one setting to change: --max-span, --consume-timeout, …")
    with exit_on_error(as_json=as_json) as screen:
        changed = Api(http, vhost=vhost).patch("groups", group, body=settings, subject=subject)
    screen.result(changed, f"group '{group}' changed: {', '.join(settings)}")


@groups.command()
def delete(
    group: Group,
    subject: Subject = None,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Delete a group and its progress; its members are notified. Its dead letters stay."""
    confirm(f"Delete group '{group}' and its progress?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).delete("groups", group, subject=subject)
    screen.result({"deleted": group}, f"group '{group}' is deleted")


def _settings(*values: str | int | None) -> dict[str, str | int]:
    """Return the settings that are given, by name; the values are in the sequence of `_SETTINGS`."""
    return {name: value for name, value in zip(_SETTINGS, values, strict=True) if value is not None}


register(groups)
