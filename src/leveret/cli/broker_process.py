"""The broker as a process, from its start to the signal that ends it.

Owns the order of starting and stopping, the signals, and the line that says it is ready. Everything else is
`leveret.server`'s and `leveret.fronts.http`'s.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from leveret import __version__
from leveret.fronts.flight.endpoint import FlightSettings
from leveret.fronts.http.app import create_app
from leveret.server.alarms import measured
from leveret.server.definitions import Definitions
from leveret.server.descriptors import Descriptors
from leveret.server.http import HttpListener
from leveret.server.malloc_settings import collect_nothing, collect_rarely, keep_memory
from leveret.server.server import Server
from leveret.server.tls import OFF, TlsSettings
from leveret.storage.files import OsFiles

log = logging.getLogger("leveret")


async def serve(
    host: str,
    port: int,
    http_port: int,
    data_dir: Path,
    *,
    flight: FlightSettings | None,
    tls: TlsSettings | None,
) -> bool:
    """Until a signal, or until the server ends by itself; whether it failed."""
    keep_memory()
    collect_nothing()
    descriptors = Descriptors()
    data_dir.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  # the loop serves nobody yet
    server = Server(
        OsFiles(str(data_dir)),
        definitions=Definitions(str(data_dir / "definitions.db")),
        host=host,
        port=port,
        measure=measured(str(data_dir)),
        flight=flight if importlib.util.find_spec("pyarrow") else None,
        tls=tls,
        descriptors=descriptors,
    )
    told = _listen_for_signals()
    await server.start()
    app = create_app(server.broker, changed=server.turns.begin)
    http = [] if http_port == OFF else [HttpListener(app, host, http_port, descriptors=descriptors)]
    if tls is not None and tls.http_port != OFF:
        http.append(HttpListener(app, host, tls.http_port, tls=tls.context(), descriptors=descriptors))
    try:
        for listener in http:
            await listener.start()
        collect_rarely()
        where = [] if server.port == OFF else [f"amqp://{host}:{server.port}"]
        if server.tls_port is not None:
            where.append(f"amqps://{host}:{server.tls_port}")
        where += [listener.url for listener in http]
        if server.endpoint is not None:
            where.append(server.endpoint.url)
        print(
            f"leveret: ready on {_listed(where)} (version {__version__}, data in {data_dir})",
            flush=True,
        )
        await _until_told(told, server)
    finally:
        for listener in http:
            await listener.stop()
        await server.stop()
    return server.failure is not None


def _listed(places: Sequence[str]) -> str:
    return " and ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def _listen_for_signals() -> asyncio.Event:
    """Set when somebody wants it to stop; from before the start on, so that nothing is ever cut short."""
    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _say_nothing_is_reloaded)
    return told


def _say_nothing_is_reloaded() -> None:
    """Other servers read their settings again on SIGHUP. By default the signal would kill the process."""
    log.info("SIGHUP: there is nothing to reload; to change options or certificates, start the broker again")


async def _until_told(told: asyncio.Event, server: Server) -> None:
    """Until somebody says so, or the server has ended by itself."""
    waits = [asyncio.create_task(told.wait()), asyncio.create_task(server.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
