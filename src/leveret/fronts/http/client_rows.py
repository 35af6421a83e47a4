"""Connections, channels and consumers as rows in JSON.

Owns the fields, which are RabbitMQ's. Fields about Erlang's processes (`reductions`, `garbage_collection`,
`pending_raft_commands`) have no meaning here and are left out. The rule: a row's cost does not depend on
what its connection has done.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from leveret.broker.views import connections as views
from leveret.fronts.http.consumer_rows import describe_consumer, ends_of, peer_of
from leveret.fronts.http.json_replies import jsonable, text
from leveret.fronts.http.rates import OF_CHANNEL, Ranges, detailed, message_stats

Row = dict[str, Any]


class ClientRows:
    """`ClientRows("leveret@db1", ranges).connection(session)`."""

    def __init__(self, node: str, ranges: Ranges) -> None:
        self._node = node
        self._ranges = ranges

    def connection(self, session: Any) -> Row:
        view = views.describe(session)
        peer, counters, rates = view.peer, view.counters, self._ranges.data_rates
        history = counters.history
        given_name = peer.properties.get("connection_name")
        name = {"user_provided_name": text(given_name)} if isinstance(given_name, str) else {}
        tls = peer.tls
        return {
            "name": text(view.addresses),
            "node": text(self._node),
            "type": "network",
            "protocol": peer.protocol,
            "state": view.state,
            "user": text(view.user),
            "user_who_performed_action": text(view.user),
            **name,
            "vhost": text(view.vhost),
            "auth_mechanism": peer.mechanism,
            "channels": view.channels,
            "channel_max": peer.channel_max,
            "frame_max": peer.frame_max,
            "timeout": peer.heartbeat_s,
            "connected_at": view.since_us // 1000,
            "client_properties": jsonable(peer.properties),
            **ends_of(view.addresses),
            "ssl": tls is not None,
            "ssl_protocol": tls and tls.protocol,
            "ssl_key_exchange": tls and tls.key_exchange,
            "ssl_cipher": tls and tls.cipher,
            "ssl_hash": tls and tls.hash,
            "peer_cert_subject": tls and tls.subject,
            "peer_cert_issuer": tls and tls.issuer,
            "peer_cert_validity": tls and tls.validity,
            **detailed("recv_oct", counters.octets_in, history, ("octets_in",), rates),
            "recv_cnt": counters.packets_in,
            **detailed("send_oct", counters.octets_out, history, ("octets_out",), rates),
            "send_cnt": counters.packets_out,
            "send_pend": peer.unsent_bytes,
        }

    def short_connection(self, session: Any) -> Row:
        """Return the few fields that the list of a user's connections has."""
        return {
            "name": text(session.addresses),
            "node": text(self._node),
            "user": text(session.user.name),
            "vhost": text(session.vhost.name),
        }

    def channel(self, channel: Any) -> Row:
        view = views.describe_channel(channel)
        row: Row = {
            "name": f"{text(view.addresses)} ({view.number})",
            "number": view.number,
            "node": text(self._node),
            "user": text(view.user),
            "user_who_performed_action": text(view.user),
            "vhost": text(view.vhost),
            "state": "running",
            "connection_details": {"name": text(view.addresses), **peer_of(view.addresses)},
            "consumer_count": view.consumers,
            "confirm": view.confirms,
            "transactional": view.transactional,
            "prefetch_count": view.consumer_prefetch,
            "global_prefetch_count": view.prefetch,
            "messages_unacknowledged": view.unacked,
            "messages_unconfirmed": view.unconfirmed,
            "messages_uncommitted": view.uncommitted,
            "acks_uncommitted": view.uncommitted_acks,
            "nacked": {text(reason): count for reason, count in view.nacks.items()},
        }
        if view.idle_since_us is not None:
            row["idle_since"] = _timestamp(view.idle_since_us)
        stats = message_stats(view.counters, OF_CHANNEL, self._ranges.msg_rates)
        return row | ({"message_stats": stats} if stats else {})

    def whole_channel(self, channel: Any) -> Row:
        consumers = [self.consumer(part) for part in views.consumers_on(channel)]
        # RabbitMQ fills these lists only with `rates_mode` "detailed".
        return self.channel(channel) | {"consumer_details": consumers, "deliveries": [], "publishes": []}

    def consumer(self, part: Any) -> Row | None:
        """Return the row of an element of `views.consumers_on`; None if the consumer has ended meanwhile."""
        consumer = views.describe_consumer(part)
        if consumer is None:
            return None
        return describe_consumer(consumer, self._node)


def _timestamp(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
