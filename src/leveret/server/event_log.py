"""Logs what clients do: connections, failed logins, publishes and settlements that were refused.

Owns the sentences and their levels. A connection that opens and closes as planned is a debug message. One
that is lost, or closed by the broker for an error, is a warning. Each record has the parts of its sentence as
fields for the JSON form. The rules: names come from strangers, so they are cut and quoted; no client can
write more lines than `line_limit` allows; no line has a password.
"""

from __future__ import annotations

import logging
from typing import Final

from leveret.amqp.errors import ConnectionForced, LoginRefused
from leveret.broker.access.logins import Origin
from leveret.broker.sessions.channel import Channel
from leveret.fronts.amqp.connection import Connection
from leveret.server.line_limit import Later, LineLimit
from leveret.server.logs import cut

log = logging.getLogger("leveret")
connection_log = logging.getLogger("leveret.connections")
# A broker inside of another program, as in tests, says nothing about connections unless it sets up logging.
connection_log.addHandler(logging.NullHandler())
login_log = logging.getLogger("leveret.logins")

_UNNAMED: Final = "an unknown address"
VANISHED: Final = "the socket was closed without connection.close"


class EventLog:
    """`EventLog(loop.call_later)`: a `leveret.broker.broker.Listener`; sockets report their connections."""

    def __init__(self, later: Later) -> None:
        self._connections = LineLimit(connection_log, "connections that failed", later=later)
        self._logins = LineLimit(login_log, "failed logins", later=later)
        self._nacks = LineLimit(log, "lines about nacked publishes", later=later)

    def close(self) -> None:
        """Log the events that were only counted so far."""
        for limit in (self._connections, self._logins, self._nacks):
            limit.end_period()

    # connections

    def opened(self, connection: Connection, address: str) -> None:
        """Log that a client has logged in and entered a virtual host."""
        if connection_log.isEnabledFor(logging.DEBUG):
            sentence, fields = _described(connection, address)
            connection_log.debug("connection opened: %s", sentence, extra=fields | {"event": "opened"})

    def ended(self, connection: Connection, address: str, lost: str) -> None:
        """Log the end of a connection; `lost` is the reason if neither side has sent connection.close."""
        error, close = connection.close_error, connection.peer_close
        if error is not None:
            event, reason = "closed by the broker", error.reply_text
            is_failure = not isinstance(error, ConnectionForced | LoginRefused)
        elif close is not None:
            event, reason, is_failure = "closed by the client", f"{close[0]} {close[1]}", False
        else:
            event, reason, is_failure = "lost", lost, connection.session.has_entered
        if not (is_failure or connection_log.isEnabledFor(logging.DEBUG)):
            return
        sentence, fields = _described(connection, address)
        fields |= {"event": event, "reason": reason}
        if is_failure:
            line = "connection %s: %s: %s"
            self._connections.log(_host(address), line, event, sentence, reason, fields=fields)
        else:
            connection_log.debug("connection %s: %s: %s", event, sentence, reason, extra=fields)

    # events of the broker

    def login_failed(self, name: str, origin: Origin, cause: str) -> None:
        address = origin.address or _UNNAMED
        self._logins.log(
            address,
            "login failed: user %r from %s over %s: %s",
            cut(name),
            address,
            origin.protocol,
            cause,
            fields={"user": cut(name), "address": address, "protocol": origin.protocol, "cause": cause},
        )

    def refused_late(self, partition: str, count: int, so_far: int) -> None:
        """Log late settlements less and less often: a member that hangs settles everything late."""
        if so_far.bit_length() != (so_far - count).bit_length():
            log.warning(
                "%s: %d settlements came too late and were refused, in all its group", partition, so_far
            )

    def nacked(self, channel: Channel, reason: str, count: int) -> None:
        self._nacks.log(
            channel.session.origin.address, "%s: %d publishes nacked: %s", cut(channel.name), count, reason
        )


def _described(connection: Connection, address: str) -> tuple[str, dict[str, object]]:
    """Return a connection as part of a sentence, and as fields."""
    session = connection.session
    fields: dict[str, object] = {"address": address}
    if session.has_logged_in:
        fields["user"] = cut(session.user.name)
    if session.has_entered:
        fields["vhost"] = cut(session.vhost.name)
    for field, value in (
        ("client", connection.properties.get("connection_name")),
        ("product", _product(connection)),
    ):
        if isinstance(value, str) and value:
            fields[field] = cut(value)
    named = [f"{field} {value!r}" for field, value in fields.items() if field != "address"]
    return ", ".join([f"from {address or _UNNAMED}", *named]), fields


def _product(connection: Connection) -> str:
    """Return the name and version of the client's library."""
    words = [connection.properties.get(name) for name in ("product", "version")]
    return " ".join(word for word in words if isinstance(word, str))


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address
