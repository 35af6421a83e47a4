"""`leveret`: the commands, and what they print."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from leveret import __version__
from leveret.management.app import create_app
from leveret.server.alarms import measured
from leveret.server.definitions import Definitions
from leveret.server.http import HttpListener
from leveret.server.memory import allow_many_files, collect_rarely, keep_memory
from leveret.server.server import Server
from leveret.storage.errors import StorageError
from leveret.storage.files import OsFiles

_HTTP_PORT = 15672

app = typer.Typer(
    help="A message broker that accounts for every message.", no_args_is_help=True, add_completion=False
)


@app.callback()
def main() -> None:
    """A message broker that accounts for every message."""


@app.command()
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
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    if http_port is None:
        http_port = _HTTP_PORT if port else 0
    try:
        failed = asyncio.run(_serve(host, port, http_port, data_dir))
    except (StorageError, OSError) as error:
        typer.echo(f"leveret: {error}", err=True)
        raise typer.Exit(1) from None
    if failed:
        raise typer.Exit(1)


async def _serve(host: str, port: int, http_port: int, data_dir: Path) -> bool:
    allow_many_files()
    keep_memory()
    data_dir.mkdir(parents=True, exist_ok=True)
    server = Server(
        OsFiles(str(data_dir)),
        definitions=Definitions(str(data_dir / "definitions.db")),
        host=host,
        port=port,
        measure=measured(str(data_dir)),
    )
    told = _listen_for_signals()
    await server.start()
    http = HttpListener(create_app(server.broker, changed=server.turns.begin), host, http_port)
    try:
        await http.start()
        collect_rarely()
        print(
            f"leveret: ready on amqp://{host}:{server.port} and http://{host}:{http.port} "
            f"(version {__version__}, data in {data_dir})",
            flush=True,
        )
        await _until_told(told, server)
        await http.stop()
    finally:
        await server.stop()
    return server.failure is not None


def _listen_for_signals() -> asyncio.Event:
    """Set when somebody wants it to stop; from before the start on, so that nothing is ever cut short."""
    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    return told


async def _until_told(told: asyncio.Event, server: Server) -> None:
    """Until somebody says so, or the server has ended by itself."""
    waits = [asyncio.create_task(told.wait()), asyncio.create_task(server.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
