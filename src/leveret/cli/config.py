"""`leveret config show|check`: the settings of a broker, and where each value comes from.

Parses, reads the configuration as `leveret serve` does, prints. What it needs of the broker is imported when
a command runs: the other commands start sooner without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeAlias

import typer

if TYPE_CHECKING:
    from leveret.server.configuration import Configuration

FILE_VARIABLE = "LEVERET_CONFIG"

ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=FILE_VARIABLE,
        help="A TOML file with settings; docs/guide/configuration.md lists them.",
        show_default=False,
    ),
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting, as amqp.heartbeat_s=30.", show_default=False
    ),
]

config = typer.Typer(help="Settings of the broker: values, and where they come from.", no_args_is_help=True)


@config.command()
def show(
    file: ConfigFile = None,
    assignments: Set = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object of settings.")] = False,
) -> None:
    """Show every setting with its value and where the value comes from."""
    from leveret.server.configuration import DEFAULT
    from leveret.server.settings import SETTINGS

    configuration = load(file, assignments or ())
    names = [each.name for each in SETTINGS if not changed or configuration.origin(each.name) != DEFAULT]
    if as_json:
        rows = {name: {"value": configuration[name], "from": configuration.origin(name)} for name in names}
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(map(len, names), default=0)
    for name in names:
        typer.echo(f"{name:{width}}  {_shown(configuration[name])}  ({configuration.origin(name)})")


@config.command()
def check(file: ConfigFile = None, assignments: Set = None) -> None:
    """Read the configuration as the broker would; the exit code is 1 if it has a mistake."""
    load(file, assignments or ())
    typer.echo("leveret: the configuration has no mistakes")


def load(
    file: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, tuple[str, str | int | float]] | None = None,
) -> Configuration:
    """Return the configuration, or print its mistakes and exit with 1."""
    from leveret.server.configuration import ConfigurationError

    try:
        return read_again(file, assignments, flags)
    except OSError as error:
        _fail([f"{file} can't be read: {error.strerror} (is --config right?)"])
    except UnicodeDecodeError:
        _fail([f"{file} can't be read: it is not UTF-8"])
    except ConfigurationError as error:
        _fail(error.mistakes)


def read_again(
    file: Path | None,
    assignments: Sequence[str],
    flags: Mapping[str, tuple[str, str | int | float]] | None = None,
) -> Configuration:
    """Return the configuration as it is in file and environment now; raise what is wrong with it."""
    from leveret.server.configuration import read

    text = "" if file is None else file.read_text(encoding="utf-8")
    return read(
        text,
        file=str(file),
        environment=os.environ,
        flags={**(flags or {}), **_assigned(assignments)},
    )


def _assigned(assignments: Sequence[str]) -> dict[str, tuple[str, str | int | float]]:
    flags: dict[str, tuple[str, str | int | float]] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(f"{assignment!r} is not NAME=VALUE", param_hint="--set")
        flags[name.strip()] = ("--set", value.strip())
    return flags


def _shown(value: object) -> str:
    """
    >>> _shown(""), _shown(None), _shown(5.0)
    ("''", 'not set', '5.0')
    """
    return "not set" if value is None else repr(value)


def _fail(mistakes: Sequence[str]) -> NoReturn:
    for mistake in mistakes:
        typer.echo(f"leveret: {mistake}", err=True)
    raise typer.Exit(1)
