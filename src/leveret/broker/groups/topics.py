"""Topics: an exchange that spreads messages over streams by their keys, seen as one thing.

A topic is only this: an `x-consistent-hash` exchange with streams bound to it, so any AMQP client can create
one. The partitions of a topic are in the natural order of their names (`orders-2` before `orders-10`),
whatever the order of their bindings. Creating and deleting whole topics is left to `operations.topics`.
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
    """What the search for topics needs of a virtual host."""

    name: str

    @property
    def queues(self) -> Mapping[str, Destination]: ...

    @property
    def streams(self) -> Mapping[str, Stream]: ...

    @property
    def exchanges(self) -> Mapping[str, Exchange]: ...


def streams_of(vhost: TopicHost, subject: str) -> list[Stream]:
    """Return the stream of this name, or the partitions of the topic; raise if there is neither."""
    stream, queue = vhost.streams.get(subject), vhost.queues.get(subject)
    if stream is not None:
        return [stream]
    streams = partitions(vhost, subject)
    if streams:
        return streams
    if queue is not None:
        raise PreconditionFailed(f"{queue} is no stream: groups read streams and topics")
    raise NotFound(f"no stream or topic '{subject}' in vhost '{vhost.name}'")


def partitions(vhost: TopicHost, name: str) -> list[Stream]:
    """Return the partitions of a topic, in order; an empty list if the exchange is no topic."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or not isinstance(exchange.router, ConsistentHashRouter):
        return []
    destinations = ((bound, vhost.streams.get(bound.name)) for bound in exchange.router.partitions)
    return [stream for bound, stream in destinations if stream is not None and stream is bound]


def all_topics(vhost: TopicHost) -> dict[str, list[Stream]]:
    return {name: streams for name in vhost.exchanges if (streams := partitions(vhost, name))}
