"""Consumers as JSON, with RabbitMQ's names."""

from __future__ import annotations

from leveret.broker.views.connections import ConsumerView
from leveret.fronts.http.json_replies import jsonable, text


def describe_consumer(consumer: ConsumerView, node: str) -> dict[str, object]:
    """Return a consumer; `node` is the name of the broker's process."""
    group = {} if consumer.group is None else {"group": text(consumer.group)}
    return {
        "arguments": jsonable(consumer.arguments),
        "channel_details": {
            "connection_name": text(consumer.addresses),
            "name": f"{text(consumer.addresses)} ({consumer.channel})",
            "node": text(node),
            "number": consumer.channel,
            **peer_of(consumer.addresses),
            "user": text(consumer.user),
        },
        "ack_required": consumer.acks,
        "active": consumer.active,
        "activity_status": _activity(consumer),
        "consumer_tag": text(consumer.tag),
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "queue": {"name": text(consumer.queue), "vhost": text(consumer.vhost)},
        **group,
    }


def peer_of(connection: str) -> dict[str, object]:
    """Return the address of a connection's client, as the connection's name has it.

    >>> peer_of("127.0.0.1:52136 -> 127.0.0.1:5672")
    {'peer_host': '127.0.0.1', 'peer_port': 52136}
    """
    host, port = _place(connection.partition(" -> ")[0])
    return {"peer_host": host, "peer_port": port}


def ends_of(connection: str) -> dict[str, object]:
    """Return the addresses of both ends of a connection.

    >>> ends_of("127.0.0.1:52136 -> 127.0.0.1:5672")
    {'host': '127.0.0.1', 'port': 5672, 'peer_host': '127.0.0.1', 'peer_port': 52136}
    """
    host, port = _place(connection.partition(" -> ")[2])
    return {"host": host, "port": port, **peer_of(connection)}


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return text(host), int(port) if port.isdecimal() else 0


def _activity(consumer: ConsumerView) -> str:
    if not consumer.active:
        return "waiting"
    return "single_active" if consumer.is_single_active else "up"
