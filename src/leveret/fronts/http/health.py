"""`GET /health`: whether the broker accepts publishes, and whether it has found damage.

Made for load balancers and supervisors, so it needs no login and shows only the reasons of a failure. A
broker that has found damage is degraded: it accepts messages, so the status is 200, but an operator should
look.
"""

from __future__ import annotations

from starlette.responses import Response

from leveret.broker.broker import Broker
from leveret.broker.views.overview import health
from leveret.fronts.http.json_replies import reply, text

_SHOWN_MAX = 10


def show_health(broker: Broker) -> Response:
    """Return 200 if publishers are not blocked, else 503 with the reasons."""
    view = health(broker, most=_SHOWN_MAX)
    damage = [f"damaged: {text(place)}" for place in view.damage]
    if view.damaged > len(damage):
        damage.append(f"{view.damaged - len(damage)} more damaged places: see the broker's log")
    if view.blocked is not None:
        reasons = [f"publishers are blocked: {text(view.blocked)}", *damage]
        return reply({"status": "failed", "reasons": reasons}, 503)
    if damage:
        return reply({"status": "degraded", "reasons": damage})
    return reply({"status": "ok"})
