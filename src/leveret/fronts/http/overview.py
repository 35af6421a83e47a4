"""`GET /api/overview`: version and totals of the broker.

Names of fields are RabbitMQ's. Users who may monitor see the whole broker, others only their virtual hosts
and their connections. No rates are counted: `rates_mode` is "none", as in RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from leveret import __version__
from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.product import NAME, RABBITMQ_VERSION
from leveret.broker.views.overview import overview, totals
from leveret.broker.views.vhosts import VhostView, vhost_names
from leveret.fronts.http.auth import is_monitor, visible
from leveret.fronts.http.json_replies import reply, text


def show_overview(broker: Broker, request: Request, user: User) -> Response:
    sees_all = is_monitor(user)
    vhosts = vhost_names(broker) if sees_all else visible(broker, user)
    view = overview(broker, vhosts, user=None if sees_all else user.name)
    content: dict[str, object] = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "none",
        "exchange_types": [{"name": name, "enabled": True} for name in view.exchange_types],
        "product_name": NAME,
        "product_version": __version__,
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": text(view.name),
    }
    if sees_all:
        sums = totals(broker)
        content["message_stats"] = {"publish": sums.counters.published}
        content["nacked"] = {text(reason): count for reason, count in sums.refused.items()}
        content["dead"] = sums.deaths
        content["damaged"] = sums.damaged
    objects = {"channels": view.channels, "connections": view.connections}
    return reply(content | _totals(view.vhosts, objects))


def _totals(vhosts: Sequence[VhostView], objects: dict[str, int]) -> dict[str, object]:
    ready, unacked = sum(vhost.ready for vhost in vhosts), sum(vhost.unacked for vhost in vhosts)
    delayed = sum(vhost.delayed for vhost in vhosts)
    return {
        "queue_totals": {
            "messages": ready + unacked + delayed,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "delayed": delayed,
        },
        "object_totals": {
            **objects,
            "consumers": sum(vhost.consumers for vhost in vhosts),
            "exchanges": sum(vhost.exchanges for vhost in vhosts),
            "queues": sum(vhost.queues for vhost in vhosts),
        },
    }
