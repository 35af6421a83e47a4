"""`leveret serve`: the options of the broker as a process, and what its failures look like.

`broker_process` does the work. Only `leveret serve` imports it and `preflight`: with the broker the other
commands would take half as long again to start. Each option is a setting of `leveret.server.settings` with a
shorter name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeAlias

import typer

from leveret.cli.config import ConfigFile, Set, load, read_again
from leveret.cli.cpu_scheduling import keep_to, parse_cpus, set_priority
from leveret.storage.errors import StorageError

if TYPE_CHECKING:
    from leveret.cli.preflight import Listener
    from leveret.server.configuration import Configuration

_PORT_MIN, _PORT_MAX = -1, 65535


Host: TypeAlias = Annotated[
    str | None, typer.Option(help="Address to listen on; 127.0.0.1 if it is not given.", show_default=False)
]
Port: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=_PORT_MIN,
        max=_PORT_MAX,
        help="Port for AMQP; 0 picks a free one, -1 is off: over TLS only. 5672 if it is not given.",
        show_default=False,
    ),
]
HttpPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=_PORT_MIN,
        max=_PORT_MAX,
        help="Port for HTTP; 0 picks a free one, -1 is off. 15672 unless --port is 0.",
        show_default=False,
    ),
]
FlightPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=_PORT_MIN,
        max=_PORT_MAX,
        help="Port for Arrow Flight, which Spark uses; 0 picks a free one, -1 is off. 8815 unless --port is "
        "0. Needs Leveret's extra 'spark'.",
        show_default=False,
    ),
]
TlsPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=_PORT_MAX,
        help="Port for AMQP over TLS, with --tls-cert; 0 picks a free one. 5671 unless --port is 0.",
        show_default=False,
    ),
]
HttpsPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=_PORT_MIN,
        max=_PORT_MAX,
        help="Port for HTTPS, with --tls-cert; 0 picks a free one, -1 is off. 15671 unless --port is 0.",
        show_default=False,
    ),
]
TlsCert: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Certificate chain (PEM): AMQP over TLS on --tls-port, HTTPS on --https-port, and Flight "
        "speaks TLS only.",
        show_default=False,
    ),
]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option(help="The key of that certificate (PEM).", show_default=False)
]
Cpus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Processors for the broker alone, as 0 or 0,2-3: Flight runs on the others. Linux only.",
        show_default=False,
    ),
]
Nice: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=-20,
        max=19,
        help="How soon the broker gets a processor that others want too: -20 is first, 19 last. Without it "
        "the broker keeps the priority that it was started with.",
        show_default=False,
    ),
]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Where messages and definitions are kept; leveret-data if it is not given.", show_default=False
    ),
]
DefinitionsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="File of definitions to import before the broker listens, in RabbitMQ's form.",
        show_default=False,
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    http_port: HttpPort = None,
    flight_port: FlightPort = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_port: TlsPort = None,
    https_port: HttpsPort = None,
    cpus: Cpus = None,
    nice: Nice = None,
    data_dir: DataDir = None,
    definitions: DefinitionsFile = None,
    config: ConfigFile = None,
    assignments: Set = None,
) -> None:
    """Run the broker until it is told to stop (Ctrl-C or SIGTERM)."""
    flags = _given(
        {
            "listeners.host": ("--host", host),
            "listeners.amqp_port": ("--port", port),
            "listeners.http_port": ("--http-port", http_port),
            "listeners.flight_port": ("--flight-port", flight_port),
            "listeners.amqps_port": ("--tls-port", tls_port),
            "listeners.https_port": ("--https-port", https_port),
            "tls.certificate": ("--tls-cert", tls_cert),
            "tls.key": ("--tls-key", tls_key),
            "process.cpus": ("--cpus", cpus),
            "process.nice": ("--nice", nice),
            "data.directory": ("--data-dir", data_dir),
            "data.definitions": ("--definitions", definitions),
        }
    )
    configuration = load(config, assignments or (), flags)
    _run(configuration, lambda: read_again(config, assignments or (), flags))


def _given(options: Mapping[str, tuple[str, object]]) -> dict[str, tuple[str, str]]:
    """Return the options that are on the command line, by setting."""
    return {name: (flag, str(value)) for name, (flag, value) in options.items() if value is not None}


def _run(configuration: Configuration, read_configuration: Callable[[], Configuration]) -> None:
    from leveret.cli import broker_process, preflight
    from leveret.server import logs

    host = configuration["listeners.host"]
    listeners = listeners_of(configuration)
    directory = Path(configuration["data.directory"])
    try:
        logs.set_up(configuration)
    except OSError as error:
        _fail(f"the log {configuration['log.file']} can't be written: {error.strerror} (see log.file)")
    try:
        preflight.check(host, listeners[:-1], listeners[-1], directory, configuration.tls)
    except preflight.StartRefused as refused:
        _fail(str(refused))
    cpus = configuration["process.cpus"]
    others = keep_to(parse_cpus(cpus)) if cpus else frozenset()
    set_priority(configuration["process.nice"])
    try:
        failed = asyncio.run(
            broker_process.serve(configuration, read_configuration, flight_cpus=tuple(sorted(others)))
        )
    except broker_process.DefinitionsFileRefused as refused:
        _fail(str(refused))
    except (StorageError, OSError) as error:
        _fail(preflight.explained(error, host, listeners))
    if failed:
        raise typer.Exit(1)


def listeners_of(configuration: Configuration) -> list[Listener]:
    """Return what is listened on, with the options that choose the ports; Flight comes last."""
    from leveret.cli.preflight import Listener
    from leveret.server.tls import OFF

    listeners = [
        Listener("AMQP", "--port", configuration.port("amqp_port")),
        Listener("HTTP", "--http-port", configuration.port("http_port")),
    ]
    metrics_port = configuration.port("metrics_port")
    if metrics_port != OFF:
        listeners.append(Listener("metrics", "--set listeners.metrics_port", metrics_port))
    if (tls := configuration.tls) is not None:
        listeners.append(Listener("AMQP over TLS", "--tls-port", tls.port))
        listeners.append(Listener("HTTPS", "--https-port", tls.http_port))
    flight_port = configuration.port("flight_port") if find_spec("pyarrow") else OFF
    return [*listeners, Listener("Arrow Flight", "--flight-port", flight_port)]


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"leveret: {sentence}", err=True)
    raise typer.Exit(1)
