"""Views of all connections, channels and consumers, ordered by connection, as the HTTP API has them."""

from __future__ import annotations

from operator import attrgetter

from leveret.broker.broker import Broker
from leveret.broker.views import connections
from leveret.broker.views.connections import ChannelView, ConnectionView, ConsumerView


def connections_of(broker: Broker, *, user: str | None = None) -> list[ConnectionView]:
    sessions = sorted(connections.running(broker, user=user), key=attrgetter("name"))
    return [connections.describe(session) for session in sessions]


def channels_of(broker: Broker) -> list[ChannelView]:
    sessions = sorted(connections.running(broker), key=attrgetter("name"))
    return [
        connections.describe_channel(channel)
        for session in sessions
        for channel in connections.sorted_channels(session)
    ]


def consumers_of(broker: Broker) -> list[ConsumerView]:
    views = [
        connections.describe_consumer(part)
        for session in sorted(connections.running(broker), key=attrgetter("name"))
        for channel in connections.sorted_channels(session)
        for part in connections.consumers_on(channel)
    ]
    return [view for view in views if view is not None]
