"""Topics: an exchange that spreads messages over streams by their keys, seen as one thing.

There is nothing more to a topic than that: an `x-consistent-hash` exchange with streams bound to it, so that
any AMQP client can make one and publish to it. The partitions of a topic are in the natural order of their
names (`orders-2` before `orders-10`), whatever the order in which they were bound. Making and deleting topics
by hand is left to `operations.topics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter
from leveret.broker.exchanges.exchange import Exchange
from leveret.broker.streams.stream import Stream
from leveret.broker.vhosts.destination import Destination

TYPE: Final = "x-consistent-hash"


class TopicHost(Protocol):
    """The virtual host, for those who look for topics in it."""

    name: str

    @property
    def queues(self) -> Mapping[str, Destination]: ...

    @property
    def streams(self) -> Mapping[str, Stream]: ...

    @property
    def exchanges(self) -> Mapping[str, Exchange]: ...


def streams_of(vhost: TopicHost, subject: str) -> list[Stream]:
    """What a group on this name reads: the stream, or the streams of the topic."""
    stream, queue = vhost.streams.get(subject), vhost.queues.get(subject)
    if stream is not None:
        return [stream]
    found = partitions(vhost, subject)
    if found:
        return found
    if queue is not None:
        raise PreconditionFailed(f"{queue} is no stream: groups read streams and topics")
    raise NotFound(f"no stream or topic '{subject}' in vhost '{vhost.name}'")


def partitions(vhost: TopicHost, name: str) -> list[Stream]:
    """Those of a topic, in order; none for an exchange that is no topic."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or not isinstance(exchange.router, ConsistentHashRouter):
        return []
    bound = ((each, vhost.streams.get(each.name)) for each in exchange.router.partitions)
    return [stream for each, stream in bound if stream is not None and stream is each]


def all_topics(vhost: TopicHost) -> dict[str, list[Stream]]:
    found = {name: partitions(vhost, name) for name in vhost.exchanges}
    return {name: streams for name, streams in found.items() if streams}
