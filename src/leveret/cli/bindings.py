"""`leveret bindings`: list, show, declare and delete bindings of queues and exchanges to exchanges.

Parses, calls the HTTP API of the broker, prints. The API is RabbitMQ's, so the command works on RabbitMQ too.
A binding has no name: source, destination, key and arguments say which one is meant.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Final, TypeAlias

import typer

from leveret.cli.api import DEFAULT_HTTP, Api, ApiError, Http, Vhost, Yes, confirm, exit_on_error, missing
from leveret.cli.declaring import Arguments, parsed_arguments
from leveret.cli.options import AsJson
from leveret.cli.resources import DEFAULT_EXCHANGE, Resource, Row, register
from leveret.cli.watching import Watch, present

bindings = typer.Typer(help="Show, declare and delete bindings.", no_args_is_help=True)

BINDINGS: Final = Resource(
    "bindings",
    "binding",
    {
        "source": "source",
        "destination": "destination",
        "kind": "destination_type",
        "key": "routing_key",
        "arguments": "arguments",
    },
    paged=False,
    named_by=("source", "destination"),
)
register(bindings, BINDINGS, showing=False)

Source: TypeAlias = Annotated[str, typer.Argument(help="The exchange that messages come from.")]
Destination: TypeAlias = Annotated[str, typer.Argument(help="The queue that messages go to.")]
ToExchange: TypeAlias = Annotated[bool, typer.Option("--to-exchange", help="The destination is an exchange.")]
Key: TypeAlias = Annotated[str, typer.Option("--key", help="The routing key.")]


@bindings.command()
def show(
    source: Source,
    destination: Destination,
    to_exchange: ToExchange = False,
    watch: Watch = None,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Show the bindings between an exchange and a queue."""
    path = _between(source, destination, to_exchange=to_exchange)
    with exit_on_error(as_json=as_json) as screen, _known(source, destination):
        api = Api(http, vhost=vhost)
        rows = present(lambda: _rows(api, path), BINDINGS.table, as_json=as_json, watch_s=watch)
        if not rows and not as_json:
            screen.fail(_none(source, destination))


@bindings.command()
def declare(
    source: Source,
    destination: Destination,
    key: Key = "",
    arguments: Arguments = None,
    to_exchange: ToExchange = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Bind a queue to an exchange. Both must exist; an equal binding stays as it is.

    leveret bindings declare events invoices --key 'order.*'
    """
    path = _between(source, destination, to_exchange=to_exchange)
    body = {"routing_key": key, "arguments": parsed_arguments(arguments)}
    problem = f"exchange '{source}' or destination '{destination}' does not exist in vhost '{vhost}'"
    with exit_on_error(as_json=as_json) as screen, missing(problem):
        Api(http, vhost=vhost).post("bindings", *path, body=body)
    screen.result(
        {"source": source, "destination": destination, **body}, f"'{destination}' is bound to '{source}'"
    )


@bindings.command()
def delete(
    source: Source,
    destination: Destination,
    key: Key = "",
    arguments: Arguments = None,
    to_exchange: ToExchange = False,
    yes: Yes = False,
    http: Http = DEFAULT_HTTP,
    vhost: Vhost = "/",
    as_json: AsJson = False,
) -> None:
    """Remove the binding with this key and these arguments."""
    confirm(f"Remove the binding of '{destination}' to '{source}'?", yes=yes)
    path = _between(source, destination, to_exchange=to_exchange)
    wanted = (key, parsed_arguments(arguments))
    with exit_on_error(as_json=as_json) as screen, _known(source, destination):
        api = Api(http, vhost=vhost)
        for row in _rows(api, path):
            if (row["routing_key"], row["arguments"]) == wanted:
                api.delete("bindings", *path, row["properties_key"])
                break
        else:
            raise ApiError(f"{_none(source, destination)} with key '{key}' and these arguments")
    screen.result({"deleted": row}, f"'{destination}' is not bound to '{source}' by key '{key}' any more")


def _between(source: str, destination: str, *, to_exchange: bool) -> tuple[str, ...]:
    return ("e", source or DEFAULT_EXCHANGE, "e" if to_exchange else "q", destination)


def _rows(api: Api, path: tuple[str, ...]) -> list[Row]:
    rows: list[Row] = api.get("bindings", *path)
    return rows


def _known(source: str, destination: str) -> AbstractContextManager[None]:
    return missing(_none(source, destination))


def _none(source: str, destination: str) -> str:
    return f"there is no binding of '{destination}' to '{source}'"
