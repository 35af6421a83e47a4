"""`leveret backup`: a copy of a data directory, also while its broker runs.

Copies definitions and messages; `leveret.storage.backup` says what a copy holds. Parses, copies, prints. To
restore a backup, run a broker on the copy.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from leveret.cli.screen import Screen
from leveret.storage.errors import StorageError

DEFINITIONS = "definitions.db"


def backup(
    target: Annotated[Path, typer.Argument(help="An empty or new directory for the copy.")],
    data_dir: Annotated[Path, typer.Option(help="The data directory of the broker.")] = Path("leveret-data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")] = False,
) -> None:
    """Copy a data directory, also while its broker runs. Nothing confirmed before the copy is missing in it.

    leveret backup /backup/monday --data-dir /var/lib/leveret
    """
    from leveret.storage.backup import copy_store
    from leveret.storage.files import OsFiles

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        _fail(f"{target} is not empty (name a new directory)")
    if not (data_dir / DEFINITIONS).exists():
        _fail(f"{data_dir} is no data directory of a broker (name it with --data-dir)")
    screen = Screen(as_json=as_json)
    damage: list[object] = []
    copied_bytes = 0
    with screen.gauge("copied") as gauge:

        def count(size: int) -> None:
            nonlocal copied_bytes
            copied_bytes += size
            gauge.tell(f"{copied_bytes / 2**20:,.0f} MiB")

        try:
            target.mkdir(parents=True, exist_ok=True, mode=0o750)
            _copy_definitions(data_dir / DEFINITIONS, target / DEFINITIONS)
            source = OsFiles(str(data_dir), read_only=True)
            copy_store(source, OsFiles(str(target)), damage.append, copied=count)
        except (OSError, StorageError, sqlite3.Error) as error:
            _fail(f"{data_dir} can't be copied to {target}: {error}")
    for place in damage:
        screen.say(f"damaged: {place}")
    account = {"directory": str(target), "bytes": copied_bytes, "damage": [str(place) for place in damage]}
    screen.result(account, f"copied {copied_bytes / 2**20:,.0f} MiB to {target}")


def _copy_definitions(source: Path, target: Path) -> None:
    """Copy the database as it is between two transactions."""
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"leveret: {sentence}", err=True)
    raise typer.Exit(1)
