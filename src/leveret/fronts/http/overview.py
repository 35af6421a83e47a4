"""`GET /api/overview`: what the broker is, and how much of everything it has.

Names of fields are RabbitMQ's. Who may monitor sees the whole broker, others the virtual hosts and the
connections that are theirs. Rates are not counted here: `rates_mode` says so, as RabbitMQ does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from leveret import __version__
from leveret.broker.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.exchanges import ROUTERS
from leveret.broker.product import NAME, RABBITMQ_VERSION
from leveret.broker.session import Session
from leveret.broker.vhost import VirtualHost
from leveret.fronts.http.auth import is_monitor, visible
from leveret.fronts.http.replies import reply, text


class Overview:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def show(self, request: Request, user: User) -> Response:
        broker = self._broker
        content: dict[str, object] = {
            "management_version": RABBITMQ_VERSION,
            "rates_mode": "none",
            "exchange_types": [{"name": name, "enabled": True} for name in sorted(ROUTERS)],
            "product_name": NAME,
            "product_version": __version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "cluster_name": text(broker.name),
        }
        running = [session for session in broker.sessions if session.peer.is_open]
        if is_monitor(user):
            vhosts = list(broker.vhosts.values())
            content["message_stats"] = {"publish": broker.counters.published}
            content["nacked"] = {text(why): count for why, count in broker.counters.nacked.items()}
            content["dead"] = dict(broker.counters.dead)
            content["damaged"] = broker.counters.damaged
        else:
            vhosts = list(visible(broker, user))
            running = [each for each in running if each.user.name == user.name]
        return reply(content | _totals(vhosts, running))


@dataclass(slots=True)
class _Sums:
    queues: int = 0
    consumers: int = 0
    ready: int = 0
    unacked: int = 0
    delayed: int = 0


def _totals(vhosts: Sequence[VirtualHost], sessions: Sequence[Session]) -> dict[str, object]:
    sums = _Sums()
    for vhost in vhosts:
        for queue in vhost.queues.values():
            sums.queues += 1
            sums.consumers += len(queue.consumers)
            sums.ready += queue.ready
            sums.unacked += queue.unacked
            sums.delayed += queue.delayed
    return {
        "queue_totals": {
            "messages": sums.ready + sums.unacked + sums.delayed,
            "messages_ready": sums.ready,
            "messages_unacknowledged": sums.unacked,
            "delayed": sums.delayed,
        },
        "object_totals": {
            "channels": sum(len(session.channels) for session in sessions),
            "connections": len(sessions),
            "consumers": sums.consumers,
            "exchanges": sum(len(each.exchanges) for each in vhosts),
            "queues": sums.queues,
        },
    }
