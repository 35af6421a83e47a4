"""Publishes as they come over AMQP: from method frames to routes.

Where a publish leads is remembered under the bytes of its method frame until the topology or the user's
rights change, so a run of publishes costs one look into a dictionary. What follows is left to
`leveret.broker.publishing`.
"""

from __future__ import annotations

from typing import Final

from pamqp import commands

from leveret.amqp import methods
from leveret.amqp.errors import NotImplemented_
from leveret.broker import publishing
from leveret.broker.route import Route
from leveret.fronts.amqp import requeue
from leveret.fronts.amqp.channel import AmqpChannel

_REMEMBERED_MAX: Final = 4096


def publish(channel: AmqpChannel, method: bytes, contents: list[tuple[bytes, bytes]]) -> None:
    """Take in messages, each as content header and body, that were published with one method frame."""
    route = channel.connection.routes.get(method)
    if route is None or route.version != channel.vhost.version:
        route = find_route(channel, method)
    if requeue.is_request(method):
        requeue.requeue(channel.core, contents)
    else:
        publishing.publish(channel.core, route, contents)


def copies_of_each(channel: AmqpChannel, method: bytes) -> int:
    """Return how many queues each publish with this method goes to; if headers decide, how many it may."""
    route = find_route(channel, method)
    return len(route.exchange.router) + 1 if route.by_headers else len(route.queues)


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
    return publishing.resolve(channel.vhost, exchange, key, mandatory=publish.mandatory)
