"""Publishes as they come over AMQP: from method frames to routes.

Where a publish leads is remembered under the bytes of its method frame until the topology or the user's
rights change, so a run of publishes costs one look into a dictionary. What follows is left to
`leveret.broker.sessions.publishing`.
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

_REMEMBERED_MAX: Final = 4096


def publish_by_headers(
    channel: AmqpChannel, route: Route, method: bytes, contents: Sequence[tuple[bytes, bytes]]
) -> None:
    """Take in messages that were published with one method frame, and that need a look each."""
    if requeue.is_request(method):
        requeue.requeue(channel.core, contents)
    else:
        publishing.publish(channel.core, route, contents)


def copies_max(route: Route) -> int:
    """Return how many queues a publish may go to whose headers decide where it goes."""
    return len(route.exchange.router) + 1


def find_route(channel: AmqpChannel, method: bytes) -> Route:
    """Return where publishes with this method go, and remember it; raise if they may not be made."""
    connection = channel.connection
    routes = connection.routes
    known = routes.get(method)
    if known is not None and known.version == channel.vhost.version:
        return known
    route = _resolve(channel, method)
    if len(routes) >= _REMEMBERED_MAX or connection.routes_version != route.version:
        routes.clear()  # older ones are void, and would keep queues that are gone
    connection.routes_version = route.version
    routes[method] = route
    return route


def _resolve(channel: AmqpChannel, method: bytes) -> Route:
    publish = methods.decode(method)
    assert isinstance(publish, commands.Basic.Publish)
    if not requeue.is_request(method):  # which whoever was sent the delivery may ask for
        channel.session.check_access("write", "exchange", publish.exchange)
    if publish.immediate:
        raise NotImplemented_("immediate=true")
    exchange, key = publish.exchange, publish.routing_key
    route = publishing.resolve(channel.vhost, exchange, key, mandatory=publish.mandatory)
    return route._replace(by_headers=True) if requeue.is_request(method) else route
