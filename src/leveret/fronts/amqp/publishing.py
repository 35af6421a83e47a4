"""Publishes of AMQP clients: from basic.publish methods to routes.

A route is cached under the bytes of its method until the topology or the user's permissions change, so a run
of publishes costs one dictionary lookup. Publishing itself is left to `leveret.broker.sessions.publishing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.errors import NotImplemented_
from leveret.broker.sessions import publishing
from leveret.broker.sessions.route import Route
from leveret.fronts.amqp import requeue
from leveret.fronts.amqp.channel import AmqpChannel

_ROUTES_MAX: Final = 4096


def publish_by_headers(
    channel: AmqpChannel, route: Route, method: bytes, contents: Sequence[tuple[bytes, bytes]]
) -> None:
    """Publish messages of one method whose headers must be read: requeue requests, or routes by headers."""
    if requeue.is_request(method):
        requeue.requeue(channel.core, contents)
    else:
        publishing.publish(channel.core, route, contents)


def find_route(channel: AmqpChannel, method: bytes) -> Route:
    """Return the route of publishes with this method, from the cache if possible; raise if not permitted."""
    connection = channel.connection
    routes = connection.routes
    known = routes.get(method)
    if known is not None and known.version == channel.vhost.version:
        return known
    route = _resolve(channel, method)
    if len(routes) >= _ROUTES_MAX or connection.routes_version != route.version:
        # Outdated routes are useless, and would keep deleted queues in memory.
        routes.clear()
    connection.routes_version = route.version
    routes[method] = route
    return route


def _resolve(channel: AmqpChannel, method: bytes) -> Route:
    publish = methods.decode(method)
    assert isinstance(publish, commands.Basic.Publish)
    # A requeue needs no permission: only the channel with the delivery can ask for it.
    if not requeue.is_request(method):
        channel.session.check_access("write", "exchange", publish.exchange)
    if publish.immediate:
        raise NotImplemented_("immediate=true")
    exchange, key = publish.exchange, publish.routing_key
    mandatory, user = publish.mandatory, channel.session.user
    route = publishing.resolve(channel.vhost, exchange, key, mandatory=mandatory, user=user)
    return route._replace(by_headers=True) if requeue.is_request(method) else route
