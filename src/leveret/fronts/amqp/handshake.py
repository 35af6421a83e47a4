"""The handshake: how a socket becomes a connection of a user to a virtual host.

Owns the steps from the protocol header to connection.open (AMQP 0-9-1, section 2.2.4).
The rule: where RabbitMQ closes the socket without an answer, `HungUp` does so too.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from pamqp import commands

from leveret import __version__
from leveret.amqp.errors import LoginRefused, NotAllowed
from leveret.amqp.frames import FRAME_MIN_BYTES, PROTOCOL_HEADER
from leveret.amqp.methods import make
from leveret.amqp.tables import Value
from leveret.broker import product
from leveret.broker.access.accounts import User
from leveret.broker.usage_limits import connection_refusal
from leveret.fronts.amqp.login import EXTERNAL, BadResponse, read_response
from leveret.fronts.amqp.wire import State, Wire

_CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "delayed_requeue",
    "begun_marks",
    "publisher_dedup",
    "consumer_groups",
    "queue_peek",
)


class HungUp(Exception):
    """The client broke the protocol during the handshake: the socket is closed without an answer."""


def greet(connection: Wire, data: bytes) -> None:
    """Answer the protocol header with connection.start; answer another version with our header."""
    if data != PROTOCOL_HEADER:
        connection.send(PROTOCOL_HEADER)
        connection.lost()
        return
    connection.state = State.STARTING
    properties: dict[str, Value] = {
        "capabilities": dict.fromkeys(_CAPABILITIES, True),
        "cluster_name": connection.broker.name,
        "copyright": "Apache License 2.0",
        "information": "Every message is accounted for.",
        "platform": "Python",
        "product": product.NAME,
        "version": product.RABBITMQ_VERSION,
        "leveret_version": __version__,
        **connection.broker.advertised,
    }
    connection.send_method(
        0,
        make(
            commands.Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties=properties,
            mechanisms="PLAIN AMQPLAIN" if connection.external is None else "PLAIN AMQPLAIN EXTERNAL",
            locales="en_US",
        ),
    )


def log_in(connection: Wire, method: commands.Connection.StartOk) -> None:
    """Handle connection.start-ok: begin to check the login. The answer follows the check."""
    connection.properties = cast(dict[str, Value], method.client_properties)
    name = connection.properties.get("connection_name")
    if isinstance(name, str):
        connection.session.name = f"{connection.name} {name}"
    mechanism = connection.mechanism = method.mechanism
    logins, origin = connection.broker.logins, connection.session.origin
    done = partial(_finish_login, connection, mechanism)
    if mechanism == EXTERNAL and connection.external is not None:
        connection.state = State.AUTHENTICATING
        # The response is ignored, as by RabbitMQ: the certificate names the user.
        logins.accept_certified(connection.external, origin=origin, done=done)
        return
    try:
        user_name, password = read_response(mechanism, cast(bytes, method.response))
    except BadResponse:
        cause = "the mechanism is unknown, or the response does not have its form"
        connection.broker.note_failed_login("", connection.session.origin, cause)
        raise HungUp from None
    connection.state = State.AUTHENTICATING
    logins.begin(user_name, password, origin=origin, done=done)


def _finish_login(connection: Wire, mechanism: str, user: User | None) -> None:
    # The client may have closed the socket meanwhile, or the broker may be stopping.
    if connection.state is not State.AUTHENTICATING:
        return
    if user is not None:
        connection.session.logged_in(user)
        limits = connection.broker.limits
        connection.send_method(
            0, commands.Connection.Tune(limits.channel_max, limits.frame_max, limits.heartbeat_s)
        )
        connection.state = State.TUNING
    elif connection.understands("authentication_failure_close"):
        connection.close(
            LoginRefused(
                f"Login was refused using authentication mechanism {mechanism}. For details see the "
                "broker logfile.",
                method=None,
            )
        )
    else:
        connection.lost()


def tune(connection: Wire, method: commands.Connection.TuneOk) -> None:
    """Handle connection.tune-ok: accept limits up to those offered. 0 means no limit, so it is refused."""
    limits = connection.broker.limits
    channel_max, frame_max = method.channel_max, method.frame_max
    if not 0 < channel_max <= limits.channel_max or not FRAME_MIN_BYTES <= frame_max <= limits.frame_max:
        raise HungUp
    connection.channel_max = channel_max
    connection.frame_max = frame_max
    connection.heartbeat_s = method.heartbeat
    connection.state = State.OPENING


def enter(connection: Wire, method: commands.Connection.Open) -> None:
    """Handle connection.open: enter a virtual host that exists and for which the user has permissions."""
    vhost = connection.broker.vhosts.get(method.virtual_host)
    if vhost is None:
        raise NotAllowed(f"vhost {method.virtual_host} not found")
    user = connection.session.user
    refusal = connection_refusal(connection.broker, user, vhost)
    if refusal is not None:
        raise NotAllowed(refusal)
    if vhost.name not in user.permissions:
        raise NotAllowed(f"access to vhost '{vhost.name}' refused for user '{user.name}'")
    connection.session.enter(vhost)
    connection.state = State.RUNNING
    connection.send_method(0, commands.Connection.OpenOk())
