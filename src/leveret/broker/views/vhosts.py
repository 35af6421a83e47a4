"""Views of virtual hosts: the numbers of their objects and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhosts.vhost import VirtualHost


class VhostView(NamedTuple):
    name: str
    exchanges: int
    queues: int
    groups: int
    consumers: int
    ready: int
    unacked: int
    delayed: int
    description: str
    tags: tuple[str, ...]
    default_queue_type: str
    tracing: bool


def one_vhost(broker: Broker, name: str) -> VhostView | None:
    vhost = broker.vhosts.get(name)
    return None if vhost is None else _vhost(vhost)


def vhost_names(broker: Broker) -> list[str]:
    """Return the names of all virtual hosts, sorted."""
    return sorted(broker.vhosts)


def _vhost(vhost: VirtualHost) -> VhostView:
    consumers = ready = unacked = delayed = 0
    for queue in vhost.queues.values():
        consumers += queue.consumer_count
        ready += queue.ready
        unacked += queue.unacked
        delayed += queue.delayed
    return VhostView(
        vhost.name,
        len(vhost.exchanges),
        len(vhost.queues),
        len(vhost.groups),
        consumers,
        ready,
        unacked,
        delayed,
        *vhost.metadata,
    )
