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
from pathlib import Path

from leveret import __version__
from leveret.fronts.flight.endpoint import FlightSettings
from leveret.fronts.http.app import create_app
from leveret.fronts.http.metrics import create_metrics_app
from leveret.server import logs
from leveret.server.alarms import MachineMeasure
from leveret.server.configuration import Configuration, ConfigurationError
from leveret.server.definitions import Definitions
from leveret.server.descriptors import Descriptors
from leveret.server.http import HttpListener
from leveret.server.malloc_settings import collect_nothing, collect_rarely, keep_memory, machine_bytes
from leveret.server.node import Node
from leveret.server.server import Server
from leveret.server.settings import SETTINGS
from leveret.server.systemd_notify import ServiceManager
from leveret.server.tls import OFF, REQUIRED, CurrentTls
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
        goodbye_s=configuration["process.stop_timeout_s"],
        handshake_s=configuration["amqp.handshake_timeout_s"],
        memory_max_bytes=_memory_max_bytes(configuration),
        flight=_flight(configuration, flight_cpus),
        tls=tls,
        descriptors=descriptors,
    )
    reload = Reload(configuration, read_configuration, server, tls, manager, flight_cpus)
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
        where = [] if server.port == OFF else [f"amqp://{host}:{server.port}"]
        if server.tls_port is not None:
            where.append(f"amqps://{host}:{server.tls_port}")
        where += [listener.url for listener in http]
        if server.endpoint is not None:
            where.append(server.endpoint.url)
        ready = f"ready on {_listed(where)} (version {__version__}, data in {directory})"
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
    app = create_app(server.broker, changed=server.turns.begin, node=node.facts)
    metrics = create_metrics_app(server.broker, node=node.facts)
    ports = (
        (metrics, configuration.port("metrics_port"), None),
        (app, configuration.port("http_port"), None),
        (app, OFF if tls is None else tls.settings.http_port, tls),
    )
    host, limits = configuration["listeners.host"], configuration.http_limits
    return [
        HttpListener(served, host, port, tls=context, limits=limits, descriptors=descriptors)
        for served, port, context in ports
        if port != OFF
    ]


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
        None if tls is None else tls.certificate,
        None if tls is None else tls.key,
        tls.client_authority if tls is not None and tls.client_certificates == REQUIRED else None,
        cpus,
        configuration.flight_limits,
    )


class Reload:
    """SIGHUP: settings that a running broker can change are read again. The log names those that it can't."""

    def __init__(
        self,
        configuration: Configuration,
        read_configuration: Callable[[], Configuration],
        server: Server,
        tls: CurrentTls | None,
        manager: ServiceManager,
        flight_cpus: tuple[int, ...],
    ) -> None:
        self.configuration = configuration
        self._read = read_configuration
        self._server = server
        self._tls = tls
        self._files = None if tls is None else tls.settings.digest()
        self._manager = manager
        self._flight_cpus = flight_cpus
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
            files = None
            if tls is not None:
                tls.context()  # raises what is wrong, before anything is changed
                files = tls.digest()
            logs.set_up(new)
        except (ConfigurationError, OSError, UnicodeDecodeError) as error:
            log.error("SIGHUP: nothing is changed: %s", error)
            return
        if tls is not None and self._tls is not None:
            self._tls.replace(tls)
        self._server.change_alarms(_measure(new))
        self._replace_flight(new, files)
        changed = [each for each in SETTINGS if new[each.name] != self.configuration[each.name]]
        for wanted, what in ((True, "changed"), (False, "changes after a restart")):
            for setting in (each for each in changed if each.is_reloaded is wanted):
                old, value = self.configuration[setting.name], new[setting.name]
                log.info("SIGHUP: %s %s from %r to %r", setting.name, what, old, value)
        log.info("SIGHUP: the settings are read again, and the certificate; %d settings differ", len(changed))
        self.configuration = new
        self.look_at_certificates()

    def _replace_flight(self, new: Configuration, files: bytes | None) -> None:
        """Start another Flight process if the present one would go on with old files or settings."""
        before, self._files = self._files, files
        endpoint, flight = self._server.endpoint, _flight(new, self._flight_cpus)
        if endpoint is None or flight is None:
            return
        # Limits and places change after a restart only: they are settings of other processes, too.
        present = endpoint.settings
        wanted = replace(
            present,
            tls_certificate=present.tls_certificate and flight.tls_certificate,
            tls_key=present.tls_key and flight.tls_key,
            tls_client_authority=present.tls_certificate and flight.tls_client_authority,
        )
        memory_max_bytes = _memory_max_bytes(new)
        if (wanted, memory_max_bytes, files) != (present, _memory_max_bytes(self.configuration), before):
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
