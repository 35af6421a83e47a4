"""`leveret limits`: list, set and clear the limits of virtual hosts and users.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
The broker decides which limits there are.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, show_json

limits = typer.Typer(
    help="Manage limits: how many connections, channels and queues there may be.", no_args_is_help=True
)

Limit: TypeAlias = Annotated[
    str, typer.Argument(help="max-connections; max-queues of a virtual host; max-channels of a user.")
]
OfVhost: TypeAlias = Annotated[
    str | None, typer.Option("--vhost", help="The virtual host with the limit.", show_default=False)
]
OfUser: TypeAlias = Annotated[
    str | None, typer.Option("--user", help="The user with the limit.", show_default=False)
]


class _Owner(NamedTuple):
    resource: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"


@limits.command(name="list")
def list_limits(
    vhost: OfVhost = None, user: OfUser = None, http: Http = DEFAULT_HTTP, as_json: AsJson = False
) -> None:
    """List the limits of a virtual host or a user; without either, all limits."""
    with exit_on_error(as_json=as_json):
        api = Api(http, vhost=vhost or "/")
        if vhost is None and user is None:
            rows = [*api.get("vhost-limits"), *api.get("user-limits")]
        else:
            owner = _owner(vhost, user)
            rows = api.get(owner.resource, owner.name)
    if as_json:
        show_json(rows)
        return
    cells = [
        ["vhost" if "vhost" in row else "user", row.get("vhost", row.get("user")), limit, str(value)]
        for row in rows
        # RabbitMQ has an empty list where the last limit was cleared.
        for limit, value in sorted(dict(row["value"]).items())
    ]
    Page().table(("of", "name", "limit", "value"), cells)


@limits.command(name="set")
def set_limit(
    limit: Limit,
    value: Annotated[int, typer.Argument(help="0 allows nothing, -1 everything.")],
    vhost: OfVhost = None,
    user: OfUser = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Set a limit of a virtual host or a user. What exists stays, also above the limit.

    leveret limits set max-queues 100 --vhost billing
    """
    owner = _owner(vhost, user)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost or "/").put(owner.resource, owner.name, limit, body={"value": value})
    screen.result({owner.kind: owner.name, "limit": limit, "value": value}, f"{limit} of {owner} is {value}")


@limits.command()
def clear(
    limit: Limit,
    vhost: OfVhost = None,
    user: OfUser = None,
    http: Http = DEFAULT_HTTP,
    as_json: AsJson = False,
) -> None:
    """Clear a limit of a virtual host or a user."""
    owner = _owner(vhost, user)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost or "/").delete(owner.resource, owner.name, limit)
    screen.result({owner.kind: owner.name, "cleared": limit}, f"{owner} has no {limit}")


def _owner(vhost: str | None, user: str | None) -> _Owner:
    if vhost is not None and user is None:
        return _Owner("vhost-limits", "vhost", vhost)
    if user is not None and vhost is None:
        return _Owner("user-limits", "user", user)
    raise typer.BadParameter("give either --vhost or --user")
