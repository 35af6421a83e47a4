"""Views of topics: exchanges that distribute messages over streams, each together with its streams."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.canonical import Value
from leveret.broker.groups import topics

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.streams.stream import Stream
    from leveret.broker.vhosts.vhost import VirtualHost


class PartitionView(NamedTuple):
    stream: str
    first: int
    """The first offset that can be read, or `end` if there is none."""
    end: int
    messages: int
    bytes: int
    readers: int


class TopicGroupView(NamedTuple):
    """A group that reads the topic."""

    name: str
    mode: str
    lag: int


class TopicView(NamedTuple):
    vhost: str
    name: str
    messages: int
    bytes: int
    max_age: Value
    """The argument `x-max-age` as declared."""
    max_bytes: int | None
    partitions: tuple[PartitionView, ...]
    groups: tuple[TopicGroupView, ...]


def each_topic(broker: Broker, vhosts: Collection[str]) -> Iterator[TopicView]:
    """Iterate over the present topics by name; skip a topic that is deleted before it is reached."""
    names = [(vhost, name) for vhost in vhosts for name in sorted(topics.all_topics(broker.vhosts[vhost]))]
    views = (one_topic(broker, vhost, name) for vhost, name in names)
    return (view for view in views if view is not None)


def one_topic(broker: Broker, vhost: str, name: str) -> TopicView | None:
    host = broker.vhosts.get(vhost)
    streams = [] if host is None else topics.partitions(host, name)
    return _topic(host, name, streams) if host is not None and streams else None


def _topic(vhost: VirtualHost, name: str, streams: list[Stream]) -> TopicView:
    groups = [group for group in vhost.groups if group.subject == name]
    return TopicView(
        vhost.name,
        name,
        sum(stream.ready for stream in streams),
        sum(stream.log.size_bytes for stream in streams),
        streams[0].table.get("x-max-age"),
        streams[0].settings.kept_bytes,
        tuple(map(_partition, streams)),
        tuple(TopicGroupView(group.name, group.settings.mode, group.lag) for group in groups),
    )


def _partition(stream: Stream) -> PartitionView:
    end, first = stream.readable(), stream.cursor.waiting.first_ready()
    return PartitionView(
        stream.name,
        end if first is None else min(first, end),
        end,
        stream.ready,
        stream.log.size_bytes,
        stream.consumer_count,
    )
