"""`GET /api/overview`: version, totals and rates of the broker.

Names of fields are RabbitMQ's. Users who may monitor see the whole broker, others only their virtual hosts
and their connections. Samples are shown on request, see `rates`. There is no Erlang; clients that ask for its
version get a text without a number.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret import __version__
from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.product import NAME, RABBITMQ_VERSION
from leveret.broker.views.overview import OverviewView, TotalsView, overview, totals
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import is_monitor, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.json_replies import reply, text
from leveret.fronts.http.listings import columns_of
from leveret.fronts.http.node_facts import NodeFacts
from leveret.fronts.http.rates import OF_CHANNEL, Past, Ranges, detailed, grouped, ranges_of

RATES_MODE: Final = "basic"
_READY, _UNACKED, _DELAYED = "ready", "unacked", "delayed"
_CHURN: Final = {
    "channel_closed": "channels_closed",
    "channel_created": "channels_opened",
    "connection_closed": "connections_closed",
    "connection_created": "connections_opened",
    "queue_created": "queues_created",
    "queue_declared": "queues_declared",
    "queue_deleted": "queues_deleted",
}
"""Names of the broker's counters by RabbitMQ's names."""
_DESCRIPTIONS: Final = {
    "direct": "AMQP direct exchange, as per the AMQP specification",
    "fanout": "AMQP fanout exchange, as per the AMQP specification",
    "headers": "AMQP headers exchange, as per the AMQP specification",
    "topic": "AMQP topic exchange, as per the AMQP specification",
    "x-consistent-hash": "Consistent Hashing Exchange",
}
_CONTEXT: Final = {"description": f"{NAME} Management", "path": "/", "cowboy_opts": "[]", "ssl_opts": []}


class Overview:
    def __init__(self, broker: Broker, *, node: Callable[[], NodeFacts]) -> None:
        self._broker = broker
        self._node = node

    def routes(self, make: Endpoints) -> list[Route]:
        return [Route("/api/overview", make.reading(self.show))]

    def show(self, request: Request, user: User) -> Response:
        broker, sees_all = self._broker, is_monitor(user)
        ranges = ranges_of(request, now_us=broker.now_us())
        vhosts = vhost_names(broker) if sees_all else visible(broker, user)
        view = overview(broker, vhosts, user=None if sees_all else user.name)
        sums = totals(broker)
        content: dict[str, object] = {
            "management_version": RABBITMQ_VERSION,
            "rates_mode": RATES_MODE,
            "sample_retention_policies": {
                "global": [600, 3600, 28_800, 86_400],
                "basic": [600, 3600],
                "detailed": [600],
            },
            "exchange_types": exchange_types(view.exchange_types),
            "product_version": __version__,
            "product_name": NAME,
            "rabbitmq_version": RABBITMQ_VERSION,
            "cluster_name": text(view.name),
            "erlang_version": "none",
            "erlang_full_version": f"none: {platform.python_implementation()} {platform.python_version()}",
            "release_series_support_status": "supported",
            "disable_stats": False,
            "enable_queue_totals": False,
            "message_stats": _message_stats(view, ranges)
            | (_disk_stats(sums, view.past, ranges) if sees_all else {}),
            "churn_rates": churn_rates(sums, view.past if sees_all else None, ranges),
            "queue_totals": _queue_totals(view, ranges),
            "object_totals": {
                "channels": view.channels,
                "connections": view.connections,
                "consumers": view.standing.consumers,
                "exchanges": view.exchanges,
                "queues": view.queues,
            },
            "statistics_db_event_queue": 0,
        }
        if sees_all:
            node = self._node()
            content["node"] = text(broker.node)
            content["listeners"] = [{"node": text(broker.node), **each} for each in listeners(node)]
            content["contexts"] = [{"node": text(broker.node), **each} for each in contexts(node)]
            content["nacked"] = {text(reason): count for reason, count in sums.refused.items()}
            content["dead"] = sums.deaths
            content["damaged"] = sums.damaged
        columns = columns_of(request)
        if columns is not None:
            # As in RabbitMQ, inner objects are whole, and no columns at all are an empty list.
            wanted = {path[0] for path in columns}
            return reply({name: value for name, value in content.items() if name in wanted} or [])
        return reply(content)


def exchange_types(names: Iterable[str]) -> list[object]:
    return [{"name": name, "description": _DESCRIPTIONS[name], "enabled": True} for name in names]


def churn_rates(sums: TotalsView, past: Past | None, ranges: Ranges) -> dict[str, object]:
    """Return how many connections, channels and queues began and ended, with rates."""
    rates: dict[str, object] = {}
    for name, counter in _CHURN.items():
        rates |= detailed(name, getattr(sums.churn, counter), past, (counter,), ranges.msg_rates)
    return rates


def contexts(node: NodeFacts) -> list[dict[str, object]]:
    """Return the places where this API is served."""
    return [
        {**_CONTEXT, "ip": each.address, "port": str(each.port)}
        for each in node.listeners
        if each.protocol in ("http", "https")
    ]


def listeners(node: NodeFacts) -> list[dict[str, object]]:
    return [
        {
            "protocol": each.protocol,
            "ip_address": each.address,
            "port": each.port,
            "socket_opts": {},
        }
        for each in node.listeners
    ]


def _message_stats(view: OverviewView, ranges: Ranges) -> dict[str, object]:
    return grouped(view.counters, OF_CHANNEL, view.past, ranges.msg_rates)


def _disk_stats(sums: TotalsView, past: Past, ranges: Ranges) -> dict[str, object]:
    """Return how many messages went to disk and came from there; nothing as long as none did."""
    if not sums.disk_reads and not sums.disk_writes:
        return {}
    reads = detailed("disk_reads", sums.disk_reads, past, ("disk_reads",), ranges.msg_rates)
    return reads | detailed("disk_writes", sums.disk_writes, past, ("disk_writes",), ranges.msg_rates)


def _queue_totals(view: OverviewView, ranges: Ranges) -> dict[str, object]:
    ready, unacked, delayed, _ = view.standing
    parts = {
        "messages": (ready + unacked + delayed, (_READY, _UNACKED, _DELAYED)),
        "messages_ready": (ready, (_READY,)),
        "messages_unacknowledged": (unacked, (_UNACKED,)),
        "delayed": (delayed, (_DELAYED,)),
    }
    totals: dict[str, object] = {}
    for name, (value, names) in parts.items():
        totals |= detailed(name, value, view.past, names, ranges.lengths)
    return totals
