"""`leveret serve`: the options of the broker as a process, and what its failures look like.

The work is `serving`'s, which is imported only here and only when it is needed: with the broker the other
commands would take half as long again to start.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from leveret.storage.errors import StorageError

_HTTP_PORT = 15672


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for AMQP; 0 picks a free one.")] = 5672,
    http_port: Annotated[
        int | None,
        typer.Option(help="Port for HTTP; 0 picks a free one. 15672 unless --port is 0.", show_default=False),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where messages and definitions are kept.")] = Path(
        "leveret-data"
    ),
) -> None:
    """Run the broker until it is told to stop (Ctrl-C or SIGTERM)."""
    from leveret.cli import serving

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    if http_port is None:
        http_port = _HTTP_PORT if port else 0
    try:
        failed = asyncio.run(serving.serve(host, port, http_port, data_dir))
    except (StorageError, OSError) as error:
        typer.echo(f"leveret: {error}", err=True)
        raise typer.Exit(1) from None
    if failed:
        raise typer.Exit(1)
