"""Finds out which product the broker is and where it takes Flight calls, by its AMQP URL.

A Leveret tells the port of its Flight endpoint in its server properties (`flight_port`, `flight_tls`). Host
and login are those of the URL that answered, so no broker gets another one's password. Other brokers are
served over plain AMQP, by other modules. No connection stays open. The rule: a Leveret is never taken for
another product, because a query would then lose "exactly once" without notice. A Leveret that starts may
offer AMQP before Flight: `find` waits for Flight, then raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from leveret.client import BlockingConnection, ClientError, LoginRefused, TlsFailed
from leveret.client.endpoint import Endpoint as AmqpEndpoint
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.options import BrokerOptions

_LEVERET: Final = "Leveret"
_LOOK_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker that answered. It may be shown and pickled: `options` hide their password."""

    options: BrokerOptions
    product: str
    location: str | None
    """Where Flight calls go: `grpc+tcp://host:port` or `grpc+tls://host:port`; None off Leveret."""
    answered: int = 0
    """Index of the URL in the options that answered; the URL itself may hold a password."""

    @property
    def is_leveret(self) -> bool:
        """Whether the broker has leases and stages."""
        return self.location is not None

    @property
    def login(self) -> AmqpEndpoint:
        """The parsed URL that answered, with its user and password."""
        return _urls(self.options)[self.answered]

    def at(self, location: str) -> Endpoint:
        """Return the endpoint at another location, with the login of the URL that has its host."""
        hosts = [url.host for url in _urls(self.options)]
        host = urlsplit(location).hostname or ""
        keeps_login = host == hosts[self.answered] or host not in hosts
        return replace(self, location=location, answered=self.answered if keeps_login else hosts.index(host))


def find(options: BrokerOptions, timeout_s: float | None = None) -> Endpoint:
    """Wait for a broker to answer, `brokerTimeout` if no other timeout is given, and return its endpoint."""
    wait_s = options.broker_timeout_s if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + wait_s
    while True:
        endpoint = _ask(options, max(deadline_s - time.monotonic(), _LOOK_AGAIN_S))
        if endpoint is not None and (endpoint.is_leveret or endpoint.product != _LEVERET):
            return endpoint
        if time.monotonic() + _LOOK_AGAIN_S >= deadline_s:
            if endpoint is None:
                raise BrokerAway(f"the broker at {options.where} has closed the connection at once")
            raise BrokerAway(
                f"the Leveret at {options.where} offered no Flight endpoint for {wait_s:g} s",
                hint="start it with a Flight port; Spark reads and writes it there",
            )
        time.sleep(_LOOK_AGAIN_S)


@contextmanager
def connected(options: BrokerOptions, timeout_s: float) -> Iterator[BlockingConnection]:
    """Wait for a broker and yield a connection that closes at the end of the block."""
    connection = BlockingConnection(*options.amqp_urls, tls=options.ssl_context(), name="leveret.spark")
    try:
        connection.open(timeout_s)
    except LoginRefused as error:
        hint = "check url, user, password and vhost"
        raise BrokerRefused(error.sentence, code=403, hint=hint) from None
    except TlsFailed as error:
        hint = "see option tlsCaFile, and certfile and keyfile in the url"
        raise BrokerRefused(error.sentence, code=403, hint=hint) from None
    except ClientError as error:
        hint = "check that it runs, the option url, and brokerTimeout"
        raise BrokerAway(f"no broker answered at {options.where}: {error.sentence}", hint=hint) from None
    try:
        yield connection
    finally:
        connection.close()


def _ask(options: BrokerOptions, timeout_s: float) -> Endpoint | None:
    """Return the endpoint of the broker that answers; None if it closed the connection at once."""
    with connected(options, timeout_s) as connection:
        session = connection.connection.session
        if session is None:
            return None
        product = str(session.server.get("product", "an unknown broker"))
        location = _location(session.server, session.endpoint.host)
        if session.endpoint.tls and location and not (location.startswith("grpc+tls") or options.flight_url):
            raise BrokerRefused(
                f"the broker at {options.where} takes Flight calls without TLS, but option url has TLS",
                code=403,
                hint="serve with --tls-cert and --tls-key; or set flightUrl if the network is safe",
            )
        answered = _urls(options).index(session.endpoint)
        return Endpoint(options, product, location and (options.flight_url or location), answered)


def _urls(options: BrokerOptions) -> list[AmqpEndpoint]:
    return [AmqpEndpoint.parse(url) for url in options.amqp_urls]


def _location(server: Mapping[str, object], host: str) -> str | None:
    port = server.get("flight_port")
    if server.get("product") != _LEVERET or not isinstance(port, int):
        return None
    scheme = "grpc+tls" if server.get("flight_tls") else "grpc+tcp"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
