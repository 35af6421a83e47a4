"""`GET /health`: whether the broker takes what publishers send.

For load balancers and supervisors, so nobody is asked for a name, and nothing is said but why it does not.
"""

from __future__ import annotations

from starlette.responses import Response

from leveret.broker.broker import Broker
from leveret.management.replies import reply, text


class Health:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def show(self) -> Response:
        """200, or 503 with the reasons."""
        blocked = self._broker.blocked
        if blocked is None:
            return reply({"status": "ok"})
        return reply({"status": "failed", "reasons": [f"publishers are blocked: {text(blocked)}"]}, 503)
