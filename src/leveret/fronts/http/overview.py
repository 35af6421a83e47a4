"""`GET /api/overview`: what the broker is, and how much of everything it has.

Names of fields are RabbitMQ's. Who may monitor sees the whole broker, others the virtual hosts and the
connections that are theirs. Rates are not counted here: `rates_mode` says so, as RabbitMQ does.
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


class Overview:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def show(self, request: Request, user: User) -> Response:
        broker, sees_all = self._broker, is_monitor(user)
        vhosts = vhost_names(broker) if sees_all else visible(broker, user)
        found = overview(broker, vhosts, user=None if sees_all else user.name)
        content: dict[str, object] = {
            "management_version": RABBITMQ_VERSION,
            "rates_mode": "none",
            "exchange_types": [{"name": name, "enabled": True} for name in found.exchange_types],
            "product_name": NAME,
            "product_version": __version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "cluster_name": text(found.name),
        }
        if sees_all:
            happened = totals(broker)
            content["message_stats"] = {"publish": happened.counters.published}
            content["nacked"] = {text(why): count for why, count in happened.refused.items()}
            content["dead"] = happened.deaths
            content["damaged"] = happened.damaged
        objects = {"channels": found.channels, "connections": found.connections}
        return reply(content | _totals(found.vhosts, objects))


def _totals(vhosts: Sequence[VhostView], objects: dict[str, int]) -> dict[str, object]:
    ready, unacked = sum(each.ready for each in vhosts), sum(each.unacked for each in vhosts)
    delayed = sum(each.delayed for each in vhosts)
    return {
        "queue_totals": {
            "messages": ready + unacked + delayed,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "delayed": delayed,
        },
        "object_totals": {
            **objects,
            "consumers": sum(each.consumers for each in vhosts),
            "exchanges": sum(each.exchanges for each in vhosts),
            "queues": sum(each.queues for each in vhosts),
        },
    }
