"""`GET /health`: whether the broker takes what publishers send, and whether it has found damage.

For load balancers and supervisors, so nobody is asked for a name, and nothing is said but why it does not. A
broker that has found damage is degraded: it takes messages, so the status is 200, and somebody should look.
"""

from __future__ import annotations

from starlette.responses import Response

from leveret.broker.broker import Broker
from leveret.broker.views.overview import health
from leveret.fronts.http.json_replies import reply, text

_SHOWN_MAX = 10


class Health:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def show(self) -> Response:
        """200, or 503 with the reasons."""
        found = health(self._broker, most=_SHOWN_MAX)
        damage = [f"damaged: {text(each)}" for each in found.damage]
        if found.damaged > len(damage):
            damage.append(f"{found.damaged - len(damage)} more damaged places: see the broker's log")
        if found.blocked is not None:
            reasons = [f"publishers are blocked: {text(found.blocked)}", *damage]
            return reply({"status": "failed", "reasons": reasons}, 503)
        if damage:
            return reply({"status": "degraded", "reasons": damage})
        return reply({"status": "ok"})
