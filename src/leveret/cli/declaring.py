"""Options for declarations of queues, exchanges and bindings."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

import typer

Arguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--argument",
        metavar="NAME=VALUE",
        help="An argument, as x-max-length=1000; repeatable. The value is JSON, or else text.",
        show_default=False,
    ),
]
Transient: TypeAlias = Annotated[
    bool, typer.Option("--transient", help="Not durable: gone after a restart of the broker.")
]


def parsed_arguments(arguments: list[str] | None) -> dict[str, Any]:
    """
    >>> parsed_arguments(["x-max-length=1000", "x-overflow=reject-publish", 'version="1"'])
    {'x-max-length': 1000, 'x-overflow': 'reject-publish', 'version': '1'}
    """
    parsed: dict[str, Any] = {}
    for argument in arguments or ():
        name, equals, value = argument.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{argument!r} is not NAME=VALUE", param_hint="--argument")
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            parsed[name] = value
    return parsed
