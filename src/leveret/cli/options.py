"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from leveret.client.endpoint import Endpoint

DEFAULT_URL: Final = "amqp://guest:guest@localhost:5672/"


def _check_urls(urls: list[str] | None) -> list[str]:
    for url in urls or ():
        try:
            Endpoint.parse(url)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return urls or [DEFAULT_URL]


def positive(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"must be above 0, not {value:g}")
    return value


Urls: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        envvar="LEVERET_URL",
        callback=_check_urls,
        help=f"URL of the broker (default: {DEFAULT_URL}). Repeat it for more hosts, which are tried "
        "in turn.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[
    bool,
    typer.Option("--json", help="Print the result as one JSON object on stdout, and nothing else there."),
]
ConnectS: TypeAlias = Annotated[
    float,
    typer.Option("--connect-timeout", callback=positive, help="Seconds to wait for the broker to answer."),
]
CONNECT_S: Final = 5.0
RatePerS: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--rate", callback=positive, help="Maximum number of messages per second.", show_default=False
    ),
]
