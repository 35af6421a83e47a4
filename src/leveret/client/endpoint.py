"""Where a broker is, and as whom to log in: AMQP URLs.

    amqp[s]://user:password@host:port/vhost?heartbeat=30

As RabbitMQ's clients read them: no path means vhost `/`, an empty one (`amqp://host/`) too, anything else is
percent-decoded. A query may set `heartbeat` and `connection_timeout` (both in seconds).
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

PORTS = {"amqp": 5672, "amqps": 5671}


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
        parts = urlsplit(url)
        if parts.scheme not in PORTS:
            raise ValueError(f"an AMQP URL starts with amqp:// or amqps://, not {parts.scheme!r}")
        query = parse_qs(parts.query)
        heartbeat = query.get("heartbeat")
        timeout = query.get("connection_timeout")
        return cls(
            host=parts.hostname or "localhost",
            port=parts.port or PORTS[parts.scheme],
            user=unquote("guest" if parts.username is None else parts.username),
            password=unquote("guest" if parts.password is None else parts.password),
            vhost=unquote(parts.path[1:]) or "/",
            tls=parts.scheme == "amqps",
            heartbeat_s=int(heartbeat[0]) if heartbeat else None,
            timeout_s=float(timeout[0]) if timeout else None,
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
