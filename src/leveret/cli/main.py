"""`leveret`: the list of commands. Each command has a module of its own, which parses, calls and prints."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret import __version__
from leveret.cli.audit import audit
from leveret.cli.backup import backup
from leveret.cli.config import config
from leveret.cli.consume import consume
from leveret.cli.definitions import definitions
from leveret.cli.demo.command import demo
from leveret.cli.groups import groups
from leveret.cli.limits import limits
from leveret.cli.message_timeline import timeline
from leveret.cli.permissions import permissions
from leveret.cli.pipeline import pipeline
from leveret.cli.policies import policies
from leveret.cli.publish import publish
from leveret.cli.queue_map import show_map
from leveret.cli.redrive import redrive
from leveret.cli.serve import serve
from leveret.cli.tables import escape_unencodable_characters
from leveret.cli.topic import topic
from leveret.cli.users import users
from leveret.cli.vhosts import vhosts

app = typer.Typer(
    help="A message broker that accounts for every message.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leveret {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A message broker that accounts for every message."""
    escape_unencodable_characters()


for command in (demo, serve, publish, consume, redrive, audit, backup):
    app.command()(command)
app.add_typer(topic, name="topic")
app.add_typer(groups, name="groups")
app.add_typer(users, name="users")
app.add_typer(permissions, name="permissions")
app.add_typer(pipeline, name="pipeline")
app.add_typer(policies, name="policies")
app.add_typer(definitions, name="definitions")
app.add_typer(vhosts, name="vhosts")
app.add_typer(limits, name="limits")
app.add_typer(config, name="config")
queues, messages = typer.Typer(help="Look into queues."), typer.Typer(help="Look at messages in queues.")
queues.command("map")(show_map)
messages.command("timeline")(timeline)
app.add_typer(queues, name="queues")
app.add_typer(messages, name="messages")
