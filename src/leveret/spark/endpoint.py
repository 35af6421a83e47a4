"""Which broker it is, and where it takes Flight calls: asked over AMQP, since the AMQP URL is all users give.

A Leveret says where its Flight endpoint is when it introduces itself (`flight_port`, `flight_tls`); the host
is the one that answered, and so is the login: no broker is told another one's password. Anything else is
served over plain AMQP by other files. Nothing is kept open. The rule: a Leveret is never taken for something
else. While it starts, AMQP may be there before Flight, and what is exactly once would quietly be less: it is
waited for, then refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from leveret.client import BlockingConnection, ClientError, LoginRefused
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
    """For Flight: `grpc+tcp://host:port` or `grpc+tls://host:port`; None off Leveret."""
    answered: int = 0
    """Which of the options' URLs, by its place among them: the URL itself may hold a password."""

    @property
    def is_leveret(self) -> bool:
        """Whether there are leases and stages."""
        return self.location is not None

    @property
    def login(self) -> AmqpEndpoint:
        """The URL that answered, with its user and password."""
        return _urls(self.options)[self.answered]

    def at(self, location: str) -> Endpoint:
        """The same broker where somebody else found it: with the login of the URL that has this host."""
        hosts = [each.host for each in _urls(self.options)]
        host = urlsplit(location).hostname or ""
        same = host == hosts[self.answered] or host not in hosts
        return replace(self, location=location, answered=self.answered if same else hosts.index(host))


def find(options: BrokerOptions, timeout_s: float | None = None) -> Endpoint:
    """Waits for a broker to answer, `brokerTimeout` if no other time is given."""
    wait_s = options.broker_timeout_s if timeout_s is None else timeout_s
    deadline_s = time.monotonic() + wait_s
    while True:
        found = _ask(options, max(deadline_s - time.monotonic(), _LOOK_AGAIN_S))
        if found is not None and (found.is_leveret or found.product != _LEVERET):
            return found
        if time.monotonic() + _LOOK_AGAIN_S >= deadline_s:
            if found is None:
                raise BrokerAway(f"the broker at {options.where} has hung up")
            raise BrokerAway(
                f"the Leveret at {options.where} offered no Flight endpoint for {wait_s:g} s",
                hint="start it with a Flight port; Spark reads and writes it there",
            )
        time.sleep(_LOOK_AGAIN_S)


def _ask(options: BrokerOptions, timeout_s: float) -> Endpoint | None:
    """None if it hung up at once: it may be back soon."""
    connection = BlockingConnection(*options.amqp_urls, tls=options.ssl_context(), name="leveret.spark")
    try:
        connection.open(timeout_s)
    except LoginRefused as error:
        hint = "check url, user, password and vhost"
        raise BrokerRefused(error.sentence, code=403, hint=hint) from None
    except ClientError as error:
        hint = "check that it runs, the option url, and brokerTimeout"
        raise BrokerAway(f"no broker answered at {options.where}: {error.sentence}", hint=hint) from None
    try:
        session = connection.connection.session
        if session is None:
            return None
        product = str(session.server.get("product", "an unknown broker"))
        location = _location(session.server, session.endpoint.host)
        if session.endpoint.tls and location and not (location.startswith("grpc+tls") or options.flight_url):
            raise BrokerRefused(
                f"the broker at {options.where} takes Flight calls without TLS, and url is one with TLS",
                code=403,
                hint="serve with --tls-cert and --tls-key; or say flightUrl, where the way there is safe",
            )
        answered = _urls(options).index(session.endpoint)
        return Endpoint(options, product, location and (options.flight_url or location), answered)
    finally:
        connection.close()


def _urls(options: BrokerOptions) -> list[AmqpEndpoint]:
    return [AmqpEndpoint.parse(url) for url in options.amqp_urls]


def _location(server: Mapping[str, object], host: str) -> str | None:
    port = server.get("flight_port")
    if server.get("product") != _LEVERET or not isinstance(port, int):
        return None
    scheme = "grpc+tls" if server.get("flight_tls") else "grpc+tcp"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
