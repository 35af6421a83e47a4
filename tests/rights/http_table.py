"""What every route of the HTTP API needs. All but `/health` need a login, and all but that a tag.

Before a request there are the queue `{queue}`, the exchange `{exchange}` to which the queue is bound with the
key `k`, the topic `{new}t` of one partition, the owner's query
`{query}` over the queue and the owner's group `{group}` on the stream `plain-s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

ADMINISTRATOR: Final = "be tag administrator"
POLICYMAKER: Final = "define tag policymaker"
ENTER: Final = "enter vhost /"


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
        """Whether RabbitMQ has no such route."""
        ours = ("health", "topics", "groups", "queries")
        return any(word in self.route for word in ours) or self.route == "/api/permissions/{vhost}"

    def __str__(self) -> str:
        return f"{self.method} {self.route} {self.fills}".strip()

    def path(self, names: dict[str, str], vhost: str = "/") -> str:
        filled = self.route.replace("{vhost}", quote(vhost, safe="")).replace("{query}", names["query"])
        filled = filled.replace("{source}", names["exchange"]).replace("{kind}", "q")
        filled = filled.replace("{destination}", names["queue"]).replace("{properties_key}", "k")
        for name in ("{name}", "{group}"):
            filled = filled.replace(name, self.fills.format(**names))
        return filled + self.more


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
_PERMISSION: Final = "/api/permissions/{vhost}/{name}"
_POLICY: Final = {"pattern": "^nothing$", "definition": {"max-length": 1}}
_RIGHTS: Final = {"configure": "", "write": "", "read": ""}
_MAKE_TOPIC: Final = (
    ENTER,
    "configure exchange {new}",
    "read exchange {new}",
    "configure queue {new}-0",
    "write queue {new}-0",
)

ROWS: Final = (
    Row("GET", "/health", is_open=True),
    Row("GET", "/api/overview"),
    Row("GET", "/api/whoami"),
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
        (ENTER, "write exchange {exchange}"),
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
"""There is a user called `{query}` without permissions, and a policy and an operator policy of this name."""
