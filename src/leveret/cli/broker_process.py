"""The broker as a process, from its start to the signal that ends it.

Owns the order of starting and stopping, the signals, and the line that says it is ready. `leveret.server` and
`leveret.fronts.http` do the work, `leveret.server.configuration` knows the settings.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from leveret import __version__
from leveret.fronts.flight.endpoint import FlightSettings
from leveret.fronts.http.app import create_app
from leveret.fronts.http.metrics import create_metrics_app
from leveret.server import logs
from leveret.server.alarms import MachineMeasure
from leveret.server.configuration import Configuration, ConfigurationError
from leveret.server.definitions import Definitions
from leveret.server.descriptors import Descriptors
from leveret.server.hashing import HashThreads
from leveret.server.http import HttpListener
from leveret.server.malloc_settings import collect_nothing, collect_rarely, keep_memory, machine_bytes
from leveret.server.node import Node
from leveret.server.server import Server
from leveret.server.settings import SETTINGS, Setting
from leveret.server.systemd_notify import ServiceManager
from leveret.server.tls import OFF, REQUIRED, CurrentTls, TlsSettings
from leveret.storage.files import OsFiles

log = logging.getLogger("leveret")

_DAY_S = 86_400.0


async def serve(
    configuration: Configuration,
    read_configuration: Callable[[], Configuration],
    *,
    flight_cpus: tuple[int, ...] = (),
) -> bool:
    """Serve until a signal comes or the server ends by itself; return whether the server failed.

    `read_configuration` reads file and environment again, at SIGHUP.
    """
    manager = ServiceManager(os.environ)
    keep_memory()
    collect_nothing()
    descriptors = Descriptors()
    directory = Path(configuration["data.directory"])
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240  # the loop serves nobody yet
    host = configuration["listeners.host"]
    tls = None if configuration.tls is None else CurrentTls(configuration.tls)
    server = Server(
        OsFiles(str(directory)),
        definitions=Definitions(str(directory / "definitions.db")),
        host=host,
        port=configuration.port("amqp_port"),
        options=configuration.store_options,
        limits=configuration.limits,
        measure=_measure(configuration),
        measure_every_s=configuration["alarms.interval_s"],
        goodbye_s=configuration["process.stop_timeout_s"],
        handshake_s=configuration["amqp.handshake_timeout_s"],
        memory_max_bytes=_memory_max_bytes(configuration),
        flight=_flight(configuration, flight_cpus),
        tls=tls,
        descriptors=descriptors,
        backlog=configuration["listeners.backlog"],
        hashing=HashThreads(
            threads_max=configuration["logins.hash_threads_max"],
            waiting_max=configuration["logins.hashes_waiting_max"],
        ),
    )
    reload = Reload(configuration, read_configuration, server, tls, manager)
    told = _listen_for_signals(reload)
    await server.start()
    node = Node(
        server,
        tls=tls,
        config_files=lambda: reload.configuration.files,
        log_file=lambda: str(reload.configuration["log.file"]),
    )
    node.http = http = _http_listeners(configuration, server, node, tls=tls, descriptors=descriptors)
    try:
        for listener in http:
            await listener.start()
        collect_rarely()
        ready = (
            f"ready on {_listed(_places(server, host, http))} (version {__version__}, data in {directory})"
        )
        print(f"leveret: {ready}", flush=True)
        reload.status = ready
        manager.ready(ready)
        reload.look_at_certificates()
        await _until_told(told, server)
    finally:
        manager.stopping()
        for listener in http:
            await listener.stop()
        await server.stop()
    return server.failure is not None


def _http_listeners(
    configuration: Configuration,
    server: Server,
    node: Node,
    *,
    tls: CurrentTls | None,
    descriptors: Descriptors,
) -> list[HttpListener]:
    """Return the listeners for metrics, HTTP and HTTPS, without those that are off."""
    app = create_app(
        server.broker, changed=server.turns.begin, limits=configuration.api_limits, node=node.facts
    )
    metrics = create_metrics_app(server.broker, node=node.facts)
    ports = (
        (metrics, configuration.port("metrics_port"), None),
        (app, configuration.port("http_port"), None),
        (app, OFF if tls is None else tls.settings.http_port, tls),
    )
    listen = partial(
        HttpListener,
        host=configuration["listeners.host"],
        limits=configuration.http_limits,
        descriptors=descriptors,
        backlog=configuration["listeners.backlog"],
    )
    return [listen(served, port=port, tls=context) for served, port, context in ports if port != OFF]


def _places(server: Server, host: str, http: Sequence[HttpListener]) -> list[str]:
    """Return the URLs of all listeners."""
    places = [] if server.port == OFF else [f"amqp://{host}:{server.port}"]
    if server.tls_port is not None:
        places.append(f"amqps://{host}:{server.tls_port}")
    places += [listener.url for listener in http]
    return places if server.endpoint is None else [*places, server.endpoint.url]


def _measure(configuration: Configuration) -> MachineMeasure:
    return MachineMeasure(
        configuration["data.directory"],
        disk_free_min_bytes=configuration["alarms.disk_free_min_bytes"],
        memory_max_bytes=_memory_max_bytes(configuration),
    )


def _memory_max_bytes(configuration: Configuration) -> int:
    return int(configuration["alarms.memory_share"] * machine_bytes())


def _flight(configuration: Configuration, cpus: tuple[int, ...]) -> FlightSettings | None:
    port = configuration.port("flight_port")
    if port == OFF or not importlib.util.find_spec("pyarrow"):
        return None
    tls = configuration.tls
    return FlightSettings(
        configuration["data.directory"],
        configuration["listeners.host"],
        port,
        **({} if tls is None else _flight_tls(tls)),
        cpus=cpus,
        limits=configuration.flight_limits,
    )


def _flight_tls(tls: TlsSettings) -> dict[str, Any]:
    """Return the settings of Flight that come from those of TLS: Flight can only require certificates."""
    authority = tls.client_authority if tls.client_certificates == REQUIRED else None
    return {
        "tls_certificate": tls.certificate,
        "tls_key": tls.key,
        "tls_client_authority": authority,
    }


class Reload:
    """SIGHUP: settings that a running broker can change are read again. The log names those that it can't."""

    def __init__(
        self,
        configuration: Configuration,
        read_configuration: Callable[[], Configuration],
        server: Server,
        tls: CurrentTls | None,
        manager: ServiceManager,
    ) -> None:
        self.configuration = configuration
        self._read = read_configuration
        self._server = server
        self._tls = tls
        self._files = None if tls is None else tls.settings.digest()
        self._manager = manager
        self.status = "starting"
        """What the service manager shows after a reload."""
        self._daily: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        self._manager.reloading()
        self._change()
        self._manager.ready(self.status)

    def _change(self) -> None:
        """Change what can be changed, or nothing if the new configuration has a mistake."""
        try:
            new = self._read()
            tls = None if self._tls is None else new.tls
            # Both raise what is wrong, before anything is changed.
            context = None if tls is None else tls.context()
            files = self._files if tls is None else tls.digest()
            logs.set_up(new)
        except (ConfigurationError, OSError, UnicodeDecodeError) as error:
            log.error("SIGHUP: nothing is changed: %s", error)
            return
        if tls is not None and context is not None and self._tls is not None:
            self._tls.use(tls, context)
        self._server.change_alarms(_measure(new), new["alarms.interval_s"])
        self._replace_flight(new, tls, files)
        changed = [each for each in SETTINGS if new[each.name] != self.configuration[each.name]]
        for wanted, what in ((True, "changed"), (False, "changes after a restart")):
            for setting in (each for each in changed if self._is_reloaded(each, tls) is wanted):
                old, value = self.configuration[setting.name], new[setting.name]
                log.info("SIGHUP: %s %s from %r to %r", setting.name, what, old, value)
        log.info("SIGHUP: the settings are read again, and the certificate; %d settings differ", len(changed))
        self.configuration = new
        self.look_at_certificates()

    @staticmethod
    def _is_reloaded(setting: Setting, tls: TlsSettings | None) -> bool:
        """Return whether a changed setting holds now. To begin or end with TLS takes a restart."""
        return setting.is_reloaded and (tls is not None or not setting.name.startswith("tls."))

    def _replace_flight(self, new: Configuration, tls: TlsSettings | None, files: bytes | None) -> None:
        """Start another Flight process if the present one would go on with old files or settings.

        Other settings of Flight change after a restart.
        """
        before, self._files = self._files, files
        endpoint = self._server.endpoint
        if endpoint is None:
            return
        wanted = endpoint.settings
        if tls is not None:
            wanted = replace(wanted, **_flight_tls(tls))
        memory_max_bytes = _memory_max_bytes(new)
        if (wanted, memory_max_bytes, files) != (
            endpoint.settings,
            _memory_max_bytes(self.configuration),
            before,
        ):
            log.info("SIGHUP: another Flight process takes new calls; running calls end in the present one")
            endpoint.replace(wanted, memory_max_bytes)

    def look_at_certificates(self) -> None:
        """Log what is wrong with the dates of certificates, now and once a day."""
        if self._daily is not None:
            self._daily.cancel()
        self._daily = asyncio.get_running_loop().call_later(_DAY_S, self.look_at_certificates)
        if self._tls is None:
            return
        try:
            sentences = self._tls.settings.warnings(time.time())
        except OSError as error:
            sentences = [str(error)]
        for sentence in sentences:
            log.warning("TLS: %s", sentence)


def _listed(places: Sequence[str]) -> str:
    return " and ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def _listen_for_signals(reload: Callable[[], None]) -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set. From here on no signal cuts anything short."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    return told


async def _until_told(told: asyncio.Event, server: Server) -> None:
    """Wait for a signal, or for the end of the server."""
    waits = [asyncio.create_task(told.wait()), asyncio.create_task(server.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
