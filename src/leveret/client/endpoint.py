"""Where a broker is, and as whom to log in: AMQP URLs.

    amqp[s]://user:password@host:port/vhost?heartbeat=30

As RabbitMQ's clients read them: no path means vhost `/`, an empty one (`amqp://host/`) too, anything else is
percent-decoded. A query may set `heartbeat` and `connection_timeout` (both in seconds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

PORTS = {"amqp": 5672, "amqps": 5671}
_HEARTBEAT_S_MAX: Final = 65_535
_HINT: Final = "(percent-encode / # ? @ in user and password)"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    >>> Endpoint.parse("amqp://guest:secret@example.org/")
    Endpoint(host='example.org', port=5672, user='guest', vhost='/', tls=False, heartbeat_s=None,
    timeout_s=None)
    """

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool
    heartbeat_s: int | None = None
    timeout_s: float | None = None

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        parts = split(url)
        if parts.scheme not in PORTS:
            raise ValueError(f"an AMQP URL starts with amqp:// or amqps://, not {parts.scheme!r}")
        query = parse_qs(parts.query)
        return cls(
            host=parts.hostname or "localhost",
            port=parts.port or PORTS[parts.scheme],
            user=unquote("guest" if parts.username is None else parts.username),
            password=unquote("guest" if parts.password is None else parts.password),
            vhost=unquote(parts.path[1:]) or "/",
            tls=parts.scheme == "amqps",
            heartbeat_s=_heartbeat_s(query),
            timeout_s=_timeout_s(query),
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        """Without the password: errors and logs show it."""
        return (
            f"Endpoint(host={self.host!r}, port={self.port}, user={self.user!r}, vhost={self.vhost!r}, "
            f"tls={self.tls}, heartbeat_s={self.heartbeat_s}, timeout_s={self.timeout_s})"
        )


def split(url: str) -> SplitResult:
    """The parts of a URL, with a port that is one.

    What `urllib` says about a wrong one is kept from the error: there may be a password in it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"this is no URL {_HINT}") from None
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"the URL's port is no number from 0 to 65535 {_HINT}") from None
    return parts


def _heartbeat_s(query: Mapping[str, list[str]]) -> int | None:
    if "heartbeat" not in query:
        return None
    said = query["heartbeat"][0]
    if not said.isdecimal() or not int(said) <= _HEARTBEAT_S_MAX:
        raise ValueError(f"heartbeat is a number from 0 to {_HEARTBEAT_S_MAX}, not {said!r}")
    return int(said)


def _timeout_s(query: Mapping[str, list[str]]) -> float | None:
    if "connection_timeout" not in query:
        return None
    said = query["connection_timeout"][0]
    try:
        timeout_s = float(said)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise ValueError(f"connection_timeout is a number of seconds, not {said!r}")
    return timeout_s
