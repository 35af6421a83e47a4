"""What every route of the HTTP API needs. All but `/health` need a login, and all but that a tag.

Before a request there are the queue `{queue}`, the exchange `{exchange}` to which the queue is bound with the
key `k`, the topic `{new}t` of one partition, the owner's query `{query}` over the queue and the owner's group
`{group}` on the stream `plain-s`. `{connection}` is the name of a connection of the owner with one channel,
which may be closed, `{port}` a port of the broker, and `{node}` the node's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

ADMINISTRATOR: Final = "be tag administrator"
POLICYMAKER: Final = "define tag policymaker"
MONITOR: Final = "watch tag monitoring"
ENTER: Final = "see vhost /"
"""Over HTTP, administrators need no permissions to see a virtual host."""
WATCH: Final = "watch vhost /"
"""Nor do monitors, for a few facts."""


@dataclass(frozen=True, slots=True)
class Row:
    method: str
    route: str
    """The path as the application has it, with `{…}` for names."""
    needs: tuple[str, ...] = ()
    body: Any = None
    more: str = ""
    """The rest of the URL."""
    fills: str = ""
    """What stands for the last name of the path; `{group}` and the like are names of this attempt."""
    is_open: bool = False
    """Whether no login is needed."""
    refused: int = 401
    """The status without a permission for a queue or an exchange."""

    @property
    def is_ours(self) -> bool:
        """Whether RabbitMQ has no such route, or answers it with an internal error."""
        ours = (
            "/metrics",
            "/topics",
            "/groups",
            "/queries",
            "connections/username",
            "}/map",
            "}/messages",
            "/stuck",
            "/login",
            "openapi",
        )
        return any(word in self.route for word in ours) or self.route in (
            "/health",
            "/api/permissions/{vhost}",
        )

    def __str__(self) -> str:
        return f"{self.method} {self.route} {self.fills}".strip()

    def path(self, names: dict[str, str], vhost: str = "/") -> str:
        own = {"source": names["exchange"], "destination": names["queue"], "username": names["query"]}
        parts = {**_PARTS, **own, **names}
        filled = self.route.replace("{vhost}", quote(vhost, safe=""))
        for name in ("{name}", "{group}"):
            filled = filled.replace(name, quote(self.fills.format(**parts), safe="%"))
        return filled.format(**parts) + self.more


_PARTS: Final = {
    "kind": "q",
    "properties_key": "k",
    "within": "1",
    "unit": "days",
    "protocol": "amqp",
    "port": "1",
    "node": "-",
    "connection": "-",
    "component": "operator_policy",
    "limit": "max-connections",
    "offset": "0",
}
"""What stands for other parts of paths."""

_READ: Final = (ENTER, "read queue {queue}")
_GROUP: Final = (ENTER, "read queue plain-s", "operate group {group}")
_QUEUE: Final = "/api/queues/{vhost}/{name}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{name}"
_BINDINGS: Final = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
_BIND: Final = (ENTER, "write queue {queue}", "read exchange {exchange}")
_GET: Final = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
_MESSAGE: Final = {"routing_key": "k", "properties": {}, "payload": "x", "payload_encoding": "string"}
_TOPIC: Final = "/api/topics/{vhost}/{name}"
_GROUP_PATH: Final = "/api/groups/{vhost}/{group}"
_ALIVE: Final = (
    ENTER,
    "configure queue aliveness-test",
    "write exchange ",
    "read queue aliveness-test",
)
_CONNECTION: Final = "/api/connections/{name}"
_WATCH_OWNER: Final = "watch connection owner"
_PERMISSION: Final = "/api/permissions/{vhost}/{name}"
_VHOST: Final = "/api/vhosts/{name}"
_NO_LIMIT: Final = {"value": -1}
_POLICY: Final = {"pattern": "^nothing$", "definition": {"max-length": 1}}
_RIGHTS: Final = {"configure": "", "write": "", "read": ""}
_TOPIC_PERMISSION: Final = "/api/topic-permissions/{vhost}/{name}"
_TOPIC_RIGHTS: Final = {"exchange": "amq.topic", "write": "", "read": ""}
_PARAMETER_VALUE: Final = {"value": {**_POLICY, "priority": 0}}
PREPARED: Final = (
    ("policies", "/{vhost}/{query}", _POLICY),
    ("operator-policies", "/{vhost}/{query}", _POLICY),
    ("parameters", "/operator_policy/{vhost}/{query}", _PARAMETER_VALUE),
    ("topic-permissions", "/{vhost}/{query}", _TOPIC_RIGHTS),
    ("global-parameters", "/{query}", {"value": 1}),
)
"""What is put before a request: the resource whose routes need it, the rest of the path, and the body."""
_MAKE_TOPIC: Final = (
    ENTER,
    "configure exchange {new}",
    "read exchange {new}",
    "configure queue {new}-0",
    "write queue {new}-0",
)

ROWS: Final = (
    Row("GET", "/health", is_open=True),
    Row("GET", "/metrics", (MONITOR,)),
    Row("GET", "/metrics/per-object", (MONITOR,)),
    Row("GET", "/metrics/detailed", (MONITOR,)),
    Row("GET", "/api/overview"),
    Row("GET", "/api/openapi.json"),
    Row("GET", "/api/whoami"),
    Row("POST", "/api/login"),
    Row("DELETE", "/api/login"),
    # the node
    Row("GET", "/api/nodes", (MONITOR,)),
    Row("GET", "/api/nodes/{name}", (MONITOR,), fills="{node}"),
    Row("GET", "/api/nodes/{name}/memory", (MONITOR,), fills="{node}"),
    Row("GET", "/api/nodes/{name}/memory/relative", (MONITOR,), fills="{node}"),
    Row("GET", "/api/cluster-name"),
    Row("PUT", "/api/cluster-name", (ADMINISTRATOR,), {"name": "leveret"}),
    Row("GET", "/api/extensions"),
    Row("GET", "/api/feature-flags", (ADMINISTRATOR,)),
    Row("POST", "/api/rebalance/queues", (ADMINISTRATOR,), {}),
    *(
        Row(method, f"/api/auth/attempts/{{name}}{rest}", (MONITOR,), fills="{node}")
        for rest in ("", "/source")
        for method in ("GET", "DELETE")
    ),
    Row("GET", "/api/aliveness-test/{vhost}", _ALIVE),
    Row("GET", "/api/health/checks/alarms"),
    Row("GET", "/api/health/checks/local-alarms"),
    Row("GET", "/api/health/checks/certificate-expiration/{within}/{unit}"),
    Row("GET", "/api/health/checks/port-listener/{port}"),
    Row("GET", "/api/health/checks/protocol-listener/{protocol}"),
    Row("GET", "/api/health/checks/virtual-hosts"),
    Row("GET", "/api/health/checks/node-is-mirror-sync-critical"),
    Row("GET", "/api/health/checks/node-is-quorum-critical"),
    Row("GET", "/api/healthchecks/node"),
    Row("GET", "/api/healthchecks/node/{name}", fills="{node}"),
    # connections
    Row("GET", "/api/connections"),
    Row("GET", "/api/vhosts/{vhost}/connections", (ENTER,)),
    Row("GET", _CONNECTION, (_WATCH_OWNER,), fills="{connection}"),
    Row("DELETE", _CONNECTION, ("close connection owner",), fills="{connection}"),
    Row("GET", f"{_CONNECTION}/channels", (_WATCH_OWNER,), fills="{connection}"),
    Row("GET", "/api/connections/username/{username}", (MONITOR,)),
    Row("DELETE", "/api/connections/username/{username}", (ADMINISTRATOR,)),
    Row("GET", "/api/channels"),
    Row("GET", "/api/vhosts/{vhost}/channels", (ENTER,)),
    Row("GET", "/api/channels/{name}", (_WATCH_OWNER,), fills="{connection} (1)"),
    Row("GET", "/api/consumers"),
    Row("GET", "/api/consumers/{vhost}"),
    # queues
    Row("GET", "/api/queues"),
    Row("GET", "/api/queues/{vhost}", (ENTER,)),
    Row("GET", _QUEUE, (ENTER,), fills="{queue}"),
    Row("PUT", _QUEUE, (ENTER, "configure queue {new}"), {}, fills="{new}"),
    Row("DELETE", _QUEUE, (ENTER, "configure queue {queue}"), fills="{queue}"),
    Row("GET", f"{_QUEUE}/bindings", (ENTER,), fills="{queue}"),
    Row("DELETE", f"{_QUEUE}/contents", _READ, fills="{queue}"),
    Row("POST", f"{_QUEUE}/get", _READ, _GET, fills="{queue}"),
    Row("POST", f"{_QUEUE}/actions", (ADMINISTRATOR,), {"action": "sync"}, fills="{queue}"),
    Row("DELETE", f"{_QUEUE}/queries/{{query}}", (*_READ, "operate query {query}"), fills="{queue}"),
    Row("GET", f"{_QUEUE}/map", (ENTER,), fills="{queue}"),
    Row("GET", f"{_QUEUE}/messages", _READ, fills="{queue}"),
    Row("GET", f"{_QUEUE}/messages/timeline", _READ, fills="{queue}", more="?message_id=m"),
    Row("GET", f"{_QUEUE}/messages/{{offset}}/timeline", _READ, fills="{queue}"),
    Row("GET", "/api/stuck"),
    # exchanges
    Row("GET", "/api/exchanges"),
    Row("GET", "/api/exchanges/{vhost}", (ENTER,)),
    Row("GET", _EXCHANGE, (ENTER,), fills="{exchange}"),
    Row("PUT", _EXCHANGE, (ENTER, "configure exchange {new}"), {"type": "direct"}, fills="{new}"),
    Row("DELETE", _EXCHANGE, (ENTER, "configure exchange {exchange}"), fills="{exchange}"),
    Row("GET", f"{_EXCHANGE}/bindings/source", (ENTER,), fills="{exchange}"),
    Row("GET", f"{_EXCHANGE}/bindings/destination", (ENTER,), fills="{exchange}"),
    Row(
        "POST",
        f"{_EXCHANGE}/publish",
        ("enter vhost /", "write exchange {exchange}"),
        _MESSAGE,
        fills="{exchange}",
        refused=400,
    ),
    # bindings
    Row("GET", "/api/bindings"),
    Row("GET", "/api/bindings/{vhost}", (ENTER,)),
    Row("GET", _BINDINGS, (ENTER,)),
    Row("POST", _BINDINGS, _BIND, {"routing_key": "other"}),
    Row("GET", f"{_BINDINGS}/{{properties_key}}", (ENTER,)),
    Row("DELETE", f"{_BINDINGS}/{{properties_key}}", _BIND),
    # topics
    Row("GET", "/api/topics"),
    Row("GET", "/api/topics/{vhost}", (ENTER,)),
    Row("GET", _TOPIC, (ENTER,), fills="{new}t"),
    Row("PUT", _TOPIC, _MAKE_TOPIC, {"partitions": 1}, fills="{new}"),
    Row("DELETE", _TOPIC, (ENTER, "configure exchange {new}t", "configure queue {new}t-0"), fills="{new}t"),
    # groups
    Row("GET", "/api/groups"),
    Row("GET", "/api/groups/{vhost}", (ENTER,)),
    Row("GET", _GROUP_PATH, (ENTER,), fills="{group}"),
    Row("PUT", _GROUP_PATH, (ENTER, "read queue plain-s"), {"subject": "plain-s"}, fills="{group}b"),
    Row(
        "PUT",
        _GROUP_PATH,
        (ENTER, "read queue plain-s", "join group {group}", "operate group {group}"),
        {"subject": "plain-s", "max_span": 9},
        fills="{group}",
    ),
    Row("PATCH", _GROUP_PATH, _GROUP, {"max_span": 5}, fills="{group}"),
    Row("DELETE", _GROUP_PATH, _GROUP, fills="{group}"),
    Row("POST", f"{_GROUP_PATH}/seek", _GROUP, {"to": "last"}, fills="{group}"),
    Row("POST", f"{_GROUP_PATH}/skip", _GROUP, {"offset": 0, "reason": "why"}, fills="{group}"),
    Row("POST", f"{_GROUP_PATH}/pause", _GROUP, {}, fills="{group}"),
    Row("POST", f"{_GROUP_PATH}/resume", _GROUP, {}, fills="{group}"),
    Row("POST", f"{_GROUP_PATH}/redrive", (*_GROUP, "read queue %DLQ%{group}"), {}, fills="{group}"),
    # users
    Row("GET", "/api/users", (ADMINISTRATOR,)),
    Row("GET", "/api/users/{name}", (ADMINISTRATOR,), fills="other"),
    Row("PUT", "/api/users/{name}", (ADMINISTRATOR,), {"password": "x", "tags": ""}, fills="{new}"),
    Row("DELETE", "/api/users/{name}", (ADMINISTRATOR,), fills="{query}"),
    Row("GET", "/api/permissions", (ADMINISTRATOR,)),
    Row("GET", "/api/permissions/{vhost}", (ADMINISTRATOR,)),
    Row("GET", _PERMISSION, (ADMINISTRATOR,), fills="other"),
    Row("PUT", _PERMISSION, (ADMINISTRATOR,), _RIGHTS, fills="{query}"),
    Row("DELETE", _PERMISSION, (ADMINISTRATOR,), fills="{query}"),
    # definitions
    Row("GET", "/api/definitions", (ADMINISTRATOR,)),
    Row("POST", "/api/definitions", (ADMINISTRATOR,), {}),
    Row("GET", "/api/definitions/{vhost}", (ADMINISTRATOR,)),
    Row("POST", "/api/definitions/{vhost}", (ADMINISTRATOR,), {}),
    Row("GET", "/api/users/without-permissions", (ADMINISTRATOR,)),
    Row("POST", "/api/users/bulk-delete", (ADMINISTRATOR,), {"users": []}),
    Row("GET", "/api/users/{name}/permissions", (ADMINISTRATOR,), fills="other"),
    # topic permissions
    Row("GET", "/api/topic-permissions", (ADMINISTRATOR,)),
    Row("GET", "/api/vhosts/{vhost}/topic-permissions", (ADMINISTRATOR,)),
    Row("GET", "/api/users/{name}/topic-permissions", (ADMINISTRATOR,), fills="{query}"),
    Row("GET", _TOPIC_PERMISSION, (ADMINISTRATOR,), fills="{query}"),
    Row("PUT", _TOPIC_PERMISSION, (ADMINISTRATOR,), _TOPIC_RIGHTS, fills="{query}"),
    Row("DELETE", _TOPIC_PERMISSION, (ADMINISTRATOR,), fills="{query}"),
    # parameters
    Row("GET", "/api/parameters", (POLICYMAKER,)),
    Row("GET", "/api/parameters/{component}", (POLICYMAKER,)),
    Row("GET", "/api/parameters/{component}/{vhost}", (POLICYMAKER, ENTER)),
    Row("GET", "/api/parameters/{component}/{vhost}/{name}", (POLICYMAKER, ENTER), fills="{query}"),
    Row(
        "PUT",
        "/api/parameters/{component}/{vhost}/{name}",
        (POLICYMAKER, ENTER),
        _PARAMETER_VALUE,
        fills="{new}",
    ),
    Row("DELETE", "/api/parameters/{component}/{vhost}/{name}", (POLICYMAKER, ENTER), fills="{query}"),
    Row("GET", "/api/global-parameters", (POLICYMAKER,)),
    Row("GET", "/api/global-parameters/{name}", (POLICYMAKER,), fills="{query}"),
    Row("PUT", "/api/global-parameters/{name}", (POLICYMAKER,), {"value": 1}, fills="{new}"),
    Row("DELETE", "/api/global-parameters/{name}", (POLICYMAKER,), fills="{query}"),
    # virtual hosts and limits
    Row("GET", "/api/vhosts"),
    Row("GET", _VHOST, (ADMINISTRATOR,), fills="{query}"),
    Row("PUT", _VHOST, (ADMINISTRATOR,), {}, fills="{new}"),
    Row("DELETE", _VHOST, (ADMINISTRATOR,), fills="{query}"),
    Row("POST", f"{_VHOST}/start/{{node}}", (ADMINISTRATOR,), {}, fills="{query}"),
    Row("GET", "/api/vhosts/{vhost}/permissions", (ADMINISTRATOR,)),
    Row("GET", "/api/vhost-limits"),
    Row("GET", "/api/vhost-limits/{vhost}", (WATCH,)),
    Row("PUT", "/api/vhost-limits/{vhost}/{limit}", (ADMINISTRATOR,), _NO_LIMIT),
    Row("DELETE", "/api/vhost-limits/{vhost}/{limit}", (ADMINISTRATOR,)),
    Row("GET", "/api/user-limits"),
    Row("GET", "/api/user-limits/{name}", fills="other"),
    Row("PUT", "/api/user-limits/{name}/{limit}", (ADMINISTRATOR,), _NO_LIMIT, fills="other"),
    Row("DELETE", "/api/user-limits/{name}/{limit}", (ADMINISTRATOR,), fills="other"),
    # policies
    *(
        row
        for path, change in (("policies", POLICYMAKER), ("operator-policies", ADMINISTRATOR))
        for row in (
            Row("GET", f"/api/{path}"),
            Row("GET", f"/api/{path}/{{vhost}}", (ENTER,)),
            Row("GET", f"/api/{path}/{{vhost}}/{{name}}", (change, ENTER), fills="{query}"),
            Row("PUT", f"/api/{path}/{{vhost}}/{{name}}", (change, ENTER), _POLICY, fills="{new}"),
            Row("DELETE", f"/api/{path}/{{vhost}}/{{name}}", (change, ENTER), fills="{query}"),
        )
    ),
)
"""There is a user called `{query}` without permissions, who has topic permissions, and a virtual host,
policies and a global parameter of this name."""
