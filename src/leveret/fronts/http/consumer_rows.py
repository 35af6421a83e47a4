"""Consumers as JSON, with RabbitMQ's names."""

from __future__ import annotations

from leveret.broker.views.connections import ConsumerView
from leveret.fronts.http.json_replies import text


def describe_consumer(consumer: ConsumerView, node: str) -> dict[str, object]:
    """Return a consumer; `node` is the name of the broker."""
    return {
        "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
        "channel_details": {
            "connection_name": text(consumer.connection),
            "name": text(f"{consumer.connection} ({consumer.channel})"),
            "node": text(node),
            "number": consumer.channel,
            **peer_of(consumer.connection),
            "user": text(consumer.user),
        },
        "ack_required": consumer.acks,
        "active": consumer.active,
        "activity_status": "up" if consumer.active else "waiting",
        "consumer_tag": text(consumer.tag),
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "queue": {"name": text(consumer.queue), "vhost": text(consumer.vhost)},
    }


def peer_of(connection: str) -> dict[str, object]:
    """Return the address of a connection's client, as the connection's name has it.

    >>> peer_of("127.0.0.1:52136 -> 127.0.0.1:5672")
    {'peer_host': '127.0.0.1', 'peer_port': 52136}
    """
    host, _, port = connection.partition(" -> ")[0].rpartition(":")
    return {"peer_host": text(host), "peer_port": int(port) if port.isdecimal() else 0}
