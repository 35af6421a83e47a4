"""`/api/health/checks/…`: RabbitMQ's health checks, each 200, or 503 with the reason.

    alarms, local-alarms                        memory or disk is short
    certificate-expiration/{within}/{unit}      a certificate ends within so many days, weeks, months or years
    port-listener/{port}                        nothing listens on the port
    protocol-listener/{protocol}                nothing speaks the protocol
    virtual-hosts                               never: virtual hosts can't be down by themselves
    node-is-mirror-sync-critical, node-is-quorum-critical     never: there is one node

`/api/healthchecks/node[/{name}]` is RabbitMQ's older check of a node: 200 also for a node with alarms.
`/health` is our own check, which needs no login (`health`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.views.nodes import node_view
from leveret.fronts.http.endpoints import Endpoints, Handler
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import reply, text
from leveret.fronts.http.node_facts import NodeFacts
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest

_RESOURCES: Final = {"disk": "disk space", "memory": "memory"}
"""RabbitMQ's names of what is short."""
_DAY_S: Final = 86_400
_UNITS_S: Final = {"days": _DAY_S, "weeks": 7 * _DAY_S, "months": 30 * _DAY_S, "years": 365 * _DAY_S}
_OTHER_NAMES: Final = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp10", "amqp1.0", "amqp1-0"), "amqp"),
    "amqps": "amqp/ssl",
    "management": "http",
    "mqtts": "mqtt/ssl",
    "stomps": "stomp/ssl",
    "web-mqtt": "http/web-mqtt",
    "web-stomp": "http/web-stomp",
    **dict.fromkeys(("cli", "distribution"), "clustering"),
}
"""RabbitMQ's names of protocols, by other names for them."""


class HealthChecks:
    def __init__(self, broker: Broker, *, node: Callable[[], NodeFacts]) -> None:
        self._broker = broker
        self._node = node

    def routes(self, make: Endpoints) -> list[Route]:
        handlers: dict[str, Handler] = {
            "alarms": self.check_alarms,
            "local-alarms": self.check_local_alarms,
            "certificate-expiration/{within}/{unit}": self.check_certificates,
            "port-listener/{port}": self.check_port,
            "protocol-listener/{protocol}": self.check_protocol,
            "virtual-hosts": self.check_vhosts,
            "node-is-mirror-sync-critical": self.check_other_nodes,
            "node-is-quorum-critical": self.check_other_nodes,
        }
        return [
            *(Route(f"/api/health/checks/{name}", make.reading(each)) for name, each in handlers.items()),
            Route("/api/healthchecks/node", make.reading(self.check_node)),
            Route("/api/healthchecks/node/{name}", make.reading(self.check_named_node)),
        ]

    def check_alarms(self, request: Request, user: User) -> Response:
        return self._alarms("There are alarms in effect in the cluster")

    def check_local_alarms(self, request: Request, user: User) -> Response:
        return self._alarms("There are alarms in effect on the node")

    def _alarms(self, reason: str) -> Response:
        alarms, node = node_view(self._broker).alarms, text(self._broker.node)
        resources = [resource for name, resource in _RESOURCES.items() if name in alarms]
        if not resources:
            return _fine()
        return _failed(reason, alarms=[{"node": node, "resource": resource} for resource in resources])

    def check_certificates(self, request: Request, user: User) -> Response:
        unit_s = _UNITS_S.get(segment(request, "unit"))
        if unit_s is None:
            units = ", ".join(_UNITS_S)
            raise BadRequest(f"Time unit not recognised. Supported units: {units}.")
        try:
            within = int(segment(request, "within"))
        except ValueError:
            raise BadRequest("Invalid expiration value.") from None
        node, until_s = self._node(), time.time() + within * unit_s
        expired = [
            {
                "node": text(self._broker.node),
                "protocol": listener.protocol,
                "interface": listener.address,
                "port": listener.port,
                "certfile": text(certificate.path),
                "certfile_expires_on": _times(certificate.ends_s),
                "cacertfile": text(certificate.authority_path),
                "cacertfile_expires_on": _times(certificate.authority_ends_s),
            }
            for certificate in node.certificates
            if certificate.first_end_s < until_s
            for listener in node.listeners
            if listener.is_encrypted
        ]
        return _failed("Certificates expiring", expired=expired) if expired else _fine()

    def check_port(self, request: Request, user: User) -> Response:
        try:
            port = int(segment(request, "port"))
        except ValueError:
            raise BadRequest("Invalid port") from None
        ports = [listener.port for listener in self._node().listeners]
        if port in ports:
            return _fine(port=port)
        return _failed("No active listener", missing=port, ports=ports)

    def check_protocol(self, request: Request, user: User) -> Response:
        asked = segment(request, "protocol").lower()
        protocol = _OTHER_NAMES.get(asked, asked)
        protocols = list(dict.fromkeys(listener.protocol for listener in self._node().listeners))
        if protocol in protocols:
            return _fine(protocol=protocol)
        return _failed("No active listener", missing=text(protocol), protocols=protocols)

    def check_vhosts(self, request: Request, user: User) -> Response:
        return _fine()

    def check_named_node(self, request: Request, user: User) -> Response:
        if segment(request, "name") != self._broker.node:
            raise NotFound
        return self.check_node(request, user)

    def check_node(self, request: Request, user: User) -> Response:
        alarms = ",".join(node_view(self._broker).alarms)
        if not alarms:
            return _fine()
        return reply({"status": "failed", "reason": f"resource alarm(s) in effect:[{alarms}]"})

    def check_other_nodes(self, request: Request, user: User) -> Response:
        return _fine(reason="single node cluster")


def _fine(**more: object) -> Response:
    return reply({"status": "ok", **more})


def _failed(reason: str, **more: object) -> Response:
    return reply({"status": "failed", "reason": reason, **more}, 503)


def _times(time_s: float | None) -> list[str]:
    """Return a time as RabbitMQ writes it: in a list, because a file may hold several certificates.

    >>> _times(1_800_000_000)
    ['2027-01-15 8:00:00']
    """
    if time_s is None:
        return []
    time_ = datetime.fromtimestamp(time_s, UTC)
    return [f"{time_:%Y-%m-%d} {time_.hour}:{time_:%M:%S}"]
