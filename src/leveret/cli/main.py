"""`leveret`: the list of commands. Each command has a module of its own, which parses, calls and prints."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret import __version__
from leveret.cli.audit import audit
from leveret.cli.backup import backup
from leveret.cli.bindings import bindings
from leveret.cli.clients import channels, connections, consumers
from leveret.cli.config import config
from leveret.cli.consume import consume
from leveret.cli.definitions import definitions
from leveret.cli.demo.command import demo
from leveret.cli.doctor import doctor
from leveret.cli.exchanges import exchanges
from leveret.cli.groups import groups
from leveret.cli.limits import limits
from leveret.cli.message_timeline import timeline
from leveret.cli.messages import messages
from leveret.cli.permissions import permissions
from leveret.cli.pipeline import pipeline
from leveret.cli.policies import policies
from leveret.cli.publish import publish
from leveret.cli.queue_map import show_map
from leveret.cli.queues import queues
from leveret.cli.redrive import redrive
from leveret.cli.serve import serve
from leveret.cli.status import status
from leveret.cli.tables import escape_unencodable_characters
from leveret.cli.top import top
from leveret.cli.topic import topic
from leveret.cli.users import users
from leveret.cli.vhosts import vhosts

app = typer.Typer(
    help="A message broker that accounts for every message.",
    no_args_is_help=True,
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


for command in (demo, serve, publish, consume, redrive, audit, backup, status, top, doctor):
    app.command()(command)
queues.command("map")(show_map)
messages.command("timeline")(timeline)
app.add_typer(queues, name="queues")
app.add_typer(exchanges, name="exchanges")
app.add_typer(bindings, name="bindings")
app.add_typer(connections, name="connections")
app.add_typer(channels, name="channels")
app.add_typer(consumers, name="consumers")
app.add_typer(messages, name="messages")
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
