"""`leveret permissions`: list, set and clear what users may do in a virtual host, also by routing key.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
The broker decides which patterns are valid.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, show_json

permissions = typer.Typer(
    help="Manage permissions: regular expressions on names, and on the routing keys of topic exchanges.",
    no_args_is_help=True,
)

User: TypeAlias = Annotated[str, typer.Argument(help="The user's name.")]
Topics: TypeAlias = Annotated[
    bool, typer.Option("--topics", help="Topic permissions: patterns on routing keys, by exchange.")
]

_COLUMNS: Final = ("user", "configure", "write", "read")
_TOPIC_COLUMNS: Final = ("user", "exchange", "write", "read")


@permissions.command(name="list")
def list_permissions(
    topics: Topics = False, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """List the permissions of all users in a virtual host."""
    with exit_on_error(as_json=as_json):
        rows = Api(http, vhost=vhost).get("vhosts", vhost, _resource(topics=topics))
    if as_json:
        show_json(rows)
        return
    columns = _TOPIC_COLUMNS if topics else _COLUMNS
    Page().table(columns, [[row[column] for column in columns] for row in rows])


@permissions.command(name="set")
def set_permissions(
    user: User,
    configure: Annotated[
        str, typer.Option(help="Regular expression: what the user may declare and delete.")
    ] = "",
    write: Annotated[
        str,
        typer.Option(help="Regular expression: what, or with which routing key, the user may publish to."),
    ] = "",
    read: Annotated[
        str, typer.Option(help="Regular expression: what the user may consume, or with which key bind.")
    ] = "",
    topic: Annotated[
        str | None,
        typer.Option(
            help="Set topic permissions for this topic exchange instead: patterns on routing keys. "
            "{username} and {vhost} in a pattern are replaced.",
            show_default=False,
        ),
    ] = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Set a user's permissions in a virtual host: regular expressions; '' permits nothing.

    leveret permissions set spark --read '^orders$' --write '^results$'

    leveret permissions set spark --topic amq.topic --write '^spark\\.' --read '.*'
    """
    if topic is not None and configure:
        raise typer.BadParameter("topic permissions have --write and --read, and no --configure")
    body = {"write": write, "read": read}
    body |= {"configure": configure} if topic is None else {"exchange": topic}
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).put(_resource(topics=topic is not None), user, body=body)
    what = "permissions" if topic is None else f"topic permissions for exchange '{topic}'"
    screen.result(
        {"user": user, "vhost": vhost, **body}, f"{what} of user '{user}' in vhost '{vhost}' are set"
    )


@permissions.command()
def clear(
    user: User,
    topics: Topics = False,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Remove a user's permissions: the user can't enter the virtual host any more.

    With --topics, remove the topic permissions for all exchanges: every routing key is permitted then.
    """
    what = "topic permissions" if topics else "permissions"
    confirm(f"Remove the {what} of user '{user}' in vhost '{vhost}'?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).delete(_resource(topics=topics), user)
    screen.result({"cleared": user, "vhost": vhost}, f"the {what} of user '{user}' are removed")


def _resource(*, topics: bool) -> str:
    return "topic-permissions" if topics else "permissions"
