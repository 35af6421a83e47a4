"""`leveret serve`: the options of the broker as a process, and what its failures look like.

`broker_process` does the work. Only `leveret serve` imports it: with the broker the other commands would take
half as long again to start.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn, TypeAlias

import typer

from leveret.cli import preflight
from leveret.cli.cpu_scheduling import keep_to, parse_cpus, set_priority
from leveret.cli.preflight import Listener
from leveret.server.tls import OFF, TlsSettings
from leveret.storage.errors import StorageError

_HTTP_PORT = 15672
_FLIGHT_PORT = 8815
_TLS_PORT = 5671
_HTTPS_PORT = 15671
_PORT_MAX = 65535


Port: TypeAlias = Annotated[
    int,
    typer.Option(min=OFF, max=_PORT_MAX, help="Port for AMQP; 0 picks a free one, -1 is off: over TLS only."),
]
HttpPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=OFF,
        max=_PORT_MAX,
        help="Port for HTTP; 0 picks a free one, -1 is off. 15672 unless --port is 0.",
        show_default=False,
    ),
]
FlightPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=OFF,
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
        min=OFF,
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
DataDir: TypeAlias = Annotated[Path, typer.Option(help="Where messages and definitions are kept.")]


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 5672,
    http_port: HttpPort = None,
    flight_port: FlightPort = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_port: TlsPort = None,
    https_port: HttpsPort = None,
    cpus: Cpus = None,
    nice: Nice = None,
    data_dir: DataDir = Path("leveret-data"),
) -> None:
    """Run the broker until it is told to stop (Ctrl-C or SIGTERM)."""
    from leveret.cli import broker_process
    from leveret.fronts.flight.endpoint import FlightSettings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)

    def or_usual(chosen: int | None, usual: int) -> int:
        """With a free port for AMQP the others are free ones too."""
        return chosen if chosen is not None else usual if port else 0

    http_port = or_usual(http_port, _HTTP_PORT)
    flight_port = or_usual(flight_port, _FLIGHT_PORT)
    tls = _tls(tls_cert, tls_key, or_usual(tls_port, _TLS_PORT), or_usual(https_port, _HTTPS_PORT))
    if port == OFF and tls is None:
        raise typer.BadParameter("nobody could connect: give --tls-cert, for TLS", param_hint="--port")
    listeners = _listeners(port, http_port, tls)
    bulk = Listener("Arrow Flight", "--flight-port", flight_port if find_spec("pyarrow") else OFF)
    try:
        preflight.check(host, listeners, bulk, data_dir, tls)
    except preflight.StartRefused as refused:
        _fail(str(refused))
    others = keep_to(parse_cpus(cpus)) if cpus is not None else frozenset()
    set_priority(nice)
    flight = FlightSettings(
        str(data_dir),
        host,
        flight_port,
        None if tls is None else tls.certificate,
        None if tls is None else tls.key,
        tuple(sorted(others)),
    )
    try:
        failed = asyncio.run(
            broker_process.serve(
                host,
                port,
                http_port,
                data_dir,
                flight=None if flight_port == OFF else flight,
                tls=tls,
            )
        )
    except (StorageError, OSError) as error:
        _fail(preflight.explained(error, host, [*listeners, bulk]))
    if failed:
        raise typer.Exit(1)


def _listeners(port: int, http_port: int, tls: TlsSettings | None) -> list[Listener]:
    """Return what is listened on beside Flight, with the options that choose the ports."""
    listeners = [Listener("AMQP", "--port", port), Listener("HTTP", "--http-port", http_port)]
    if tls is not None:
        listeners.append(Listener("AMQP over TLS", "--tls-port", tls.port))
        listeners.append(Listener("HTTPS", "--https-port", tls.http_port))
    return listeners


def _fail(sentence: str) -> NoReturn:
    typer.echo(f"leveret: {sentence}", err=True)
    raise typer.Exit(1)


def _tls(certificate: Path | None, key: Path | None, port: int, http_port: int) -> TlsSettings | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise typer.BadParameter(
            "a certificate needs its key, and the other way round", param_hint="--tls-key"
        )
    return TlsSettings(port, http_port, str(certificate), str(key))
