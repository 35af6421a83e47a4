"""AMQP URLs: the address of a broker, and the login.

    amqp[s]://user:password@host:port/vhost?heartbeat=30

URLs mean what they mean to RabbitMQ's clients: without a path, or with an empty one (`amqp://host/`), the
vhost is `/`. Any other path is percent-decoded. A query may set `heartbeat` and `connection_timeout`, both in
seconds, `auth_mechanism` (`plain`, or `external`: the client's certificate names the user), and what
`tls_options` lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from leveret.client.tls_options import TlsOptions

PORTS = {"amqp": 5672, "amqps": 5671}
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
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
    tls_options: TlsOptions = field(default_factory=TlsOptions)
    mechanism: str = PLAIN

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
            tls_options=TlsOptions.parse(query),
            mechanism=_mechanism(query, parts.scheme),
        )

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        """Leave out the password, because errors and logs show this text."""
        return (
            f"Endpoint(host={self.host!r}, port={self.port}, user={self.user!r}, vhost={self.vhost!r}, "
            f"tls={self.tls}, heartbeat_s={self.heartbeat_s}, timeout_s={self.timeout_s})"
        )


def split(url: str) -> SplitResult:
    """Split a URL and check its port.

    The error does not have the text of `urllib`, which may contain the password.
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
    text = query["heartbeat"][0]
    if not text.isdecimal() or not int(text) <= _HEARTBEAT_S_MAX:
        raise ValueError(f"heartbeat is a number from 0 to {_HEARTBEAT_S_MAX}, not {text!r}")
    return int(text)


def _mechanism(query: Mapping[str, list[str]], scheme: str) -> str:
    text = query.get("auth_mechanism", [PLAIN])[0]
    if text.upper() not in (PLAIN, EXTERNAL):
        raise ValueError(f"auth_mechanism is plain or external, not {text!r}")
    if text.upper() == EXTERNAL and scheme != "amqps":
        raise ValueError("auth_mechanism=external needs amqps://, because a certificate names the user")
    return text.upper()


def _timeout_s(query: Mapping[str, list[str]]) -> float | None:
    if "connection_timeout" not in query:
        return None
    text = query["connection_timeout"][0]
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise ValueError(f"connection_timeout is a number of seconds, not {text!r}")
    return timeout_s
