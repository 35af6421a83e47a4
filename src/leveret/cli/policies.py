"""`leveret policies`: list, set and delete policies and operator policies.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
The broker decides which keys and values are valid.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, Http, Vhost, Yes, confirm, exit_on_error
from leveret.cli.options import AsJson
from leveret.cli.tables import Page, show_json

policies = typer.Typer(
    help="Manage policies: settings for all queues and exchanges whose names match a pattern.",
    no_args_is_help=True,
)

Name: TypeAlias = Annotated[str, typer.Argument(help="The policy's name.")]
Operator: TypeAlias = Annotated[
    bool, typer.Option("--operator", help="Operator policies, which bound what users set.")
]


@policies.command(name="list")
def list_policies(
    operator: Operator = False, http: Http = DEFAULT_HTTP, vhost: Vhost = "/", as_json: AsJson = False
) -> None:
    """List the policies of a virtual host."""
    with exit_on_error(as_json=as_json):
        rows = Api(http, vhost=vhost).get(_resource(operator=operator))
    if as_json:
        show_json(rows)
        return
    fields = ("name", "pattern", "apply-to", "priority")
    cells = [[*(str(row[field]) for field in fields), json.dumps(row["definition"])] for row in rows]
    Page().table((*fields, "definition"), cells)


@policies.command(name="set")
def set_policy(
    name: Name,
    pattern: Annotated[str, typer.Argument(help="Regular expression, searched for in names.")],
    definition: Annotated[str, typer.Argument(help="Settings as JSON: '{\"max-length\": 1000}'.")],
    priority: Annotated[int, typer.Option(help="Of several matching policies the highest applies.")] = 0,
    apply_to: Annotated[str, typer.Option(help="queues, exchanges or all.")] = "all",
    operator: Operator = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Create or replace a policy. It takes effect at once, also on what is in the queues.

    leveret policies set limits '^temp' '{"max-length": 1000}' --apply-to queues
    """
    body = {
        "pattern": pattern,
        "definition": _parsed(definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).put(_resource(operator=operator), name, body=body)
    screen.result({"name": name, "vhost": vhost, **body}, f"policy '{name}' in vhost '{vhost}' is set")


@policies.command()
def delete(
    name: Name,
    operator: Operator = False,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Delete a policy. Queues and exchanges have their declared settings again at once."""
    confirm(f"Delete policy '{name}'?", yes=yes)
    with exit_on_error(as_json=as_json) as screen:
        Api(http, vhost=vhost).delete(_resource(operator=operator), name)
    screen.result({"deleted": name}, f"policy '{name}' is deleted")


def _resource(*, operator: bool) -> str:
    return "operator-policies" if operator else "policies"


def _parsed(definition: str) -> dict[str, Any]:
    try:
        document = json.loads(definition)
    except ValueError as error:
        raise typer.BadParameter(f"the definition is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise typer.BadParameter("the definition must be a JSON object")
    return document
