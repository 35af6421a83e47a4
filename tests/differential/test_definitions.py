"""Definitions go from RabbitMQ to Leveret and back: equal, but for what is listed."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from leveret.testing.broker import Broker
from tests.differential.management import Management
from tests.fronts.http.conftest import Api
from tests.rabbitmq.node import RabbitMQ
from tests.semantics.client import Client

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

Document = dict[str, Any]
SECTIONS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)


def hashed(password: bytes, algorithm: str) -> str:
    return b64encode(b"salt" + hashlib.new(algorithm, b"salt" + password).digest()).decode()


def everything(mark: str) -> Document:
    """All kinds of definitions, in virtual hosts and of users whose names begin with the mark."""
    one, other, ann, bob = f"{mark}-one", f"{mark}-other", f"{mark}-ann", f"{mark}-bob"

    def queue(name: str, vhost: str = one, **arguments: Any) -> Document:
        table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": table}

    def exchange(name: str, type_: str, **more: Any) -> Document:
        plain = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
        return {"name": name, "vhost": one, "type": type_, **plain, **more}

    def binding(source: str, destination: str, key: str, kind: str = "queue", **arguments: Any) -> Document:
        ends = {"source": source, "vhost": one, "destination": destination, "destination_type": kind}
        return {
            **ends,
            "routing_key": key,
            "arguments": {k.replace("_", "-"): v for k, v in arguments.items()},
        }

    def policy(name: str, definition: Document, **more: Any) -> Document:
        plain = {"pattern": "^o", "apply-to": "queues", "priority": 0}
        return {"vhost": one, "name": name, **plain, "definition": definition, **more}

    bounds = {"pattern": "", "definition": {"max-length": 99}, "priority": 1, "apply-to": "queues"}
    return {
        "users": [
            {
                "name": ann,
                "password_hash": hashed(b"secret", "sha256"),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["management", "own-tag"],
                "limits": {"max-channels": 7},
            },
            {
                "name": bob,
                "password_hash": hashed(b"other", "sha512"),
                "hashing_algorithm": "rabbit_password_hashing_sha512",
                "tags": [],
                "limits": {},
            },
        ],
        "vhosts": [{"name": one}, {"name": other}],
        "permissions": [
            {"user": ann, "vhost": one, "configure": "^a", "write": ".*", "read": ""},
            {"user": bob, "vhost": other, "configure": "", "write": "", "read": "^$"},
        ],
        "topic_permissions": [
            {"user": ann, "vhost": one, "exchange": "amq.topic", "write": "^{username}", "read": ".*"}
        ],
        "parameters": [
            {"component": "vhost-limits", "vhost": one, "name": "limits", "value": {"max-queues": 50}},
            {"component": "operator_policy", "vhost": one, "name": "bounds", "value": bounds},
        ],
        "global_parameters": [{"name": f"{mark}-note", "value": {"list": [1, "a", None, True]}}],
        "policies": [
            policy("limits", {"max-length": 5, "overflow": "reject-publish"}),
            policy("mirrored", {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}),
            policy("alternate", {"alternate-exchange": "topics"}, **{"apply-to": "exchanges", "priority": 3}),
        ],
        "queues": [
            queue(
                "orders", queue_type="classic", max_length=5, message_ttl=1000, dead_letter_exchange="late"
            ),
            queue("quorum", queue_type="quorum", delivery_limit=3),
            queue("stream", queue_type="stream", max_age="7D"),
            queue("priorities", max_priority=9, single_active_consumer=True),
            queue("orders", other, foreign={"list": [1, 2.5, "a", True, {"deep": -1}]}),
            queue("ünïcödé 日本"),
        ],
        "exchanges": [
            exchange("late", "direct", arguments={"alternate-exchange": "topics"}),
            exchange("topics", "topic", auto_delete=True),
            exchange("all", "fanout", internal=True, durable=False),
            exchange("by headers", "headers"),
            exchange("hash", "x-consistent-hash"),
            exchange("recent", "x-recent-history"),
        ],
        "bindings": [
            binding("topics", "orders", "order.#"),
            binding("topics", "all", "*.error", "exchange"),
            binding("amq.direct", "quorum", ""),
            binding("by headers", "stream", "", x_match="any", size=3, price=1.5, tags=["a", {"b": False}]),
            binding("hash", "priorities", "2"),
            binding("recent", "orders", ""),
        ],
    }


def canonical(item: Document) -> str:
    return json.dumps(item, sort_keys=True)


def forget(management: Management, document: Document) -> None:
    for section, resource in (
        ("vhosts", "vhosts"),
        ("users", "users"),
        ("global_parameters", "global-parameters"),
    ):
        for item in document[section]:
            management.ask("DELETE", f"/api/{resource}/{quote(item['name'], safe='')}")


def sent(management: Management, method: str, path: str, body: object = None) -> Any:
    """The answer to a request that RabbitMQ takes."""
    answer = management.ask(method, path, body)
    assert answer.status < 400, answer
    return answer.content


def marked(document: Document, mark: str) -> Document:
    """What has the mark, in an order of its own; of a virtual host only the name."""

    def is_marked(item: Document) -> bool:
        return str(item.get("vhost", item.get("name"))).startswith(mark) and item.get("user") != "guest"

    sections = {name: [item for item in document[name] if is_marked(item)] for name in SECTIONS}
    sections["vhosts"] = [{"name": item["name"]} for item in sections["vhosts"]]
    return {name: sorted(items, key=canonical) for name, items in sections.items()}


def carried(document: Document) -> Document:
    """What Leveret has an equivalent of: all but the exchange of a plugin, and its binding."""
    return {
        **document,
        "exchanges": [item for item in document["exchanges"] if item["name"] != "recent"],
        "bindings": [item for item in document["bindings"] if item["source"] != "recent"],
    }


def left_out(mark: str) -> list[str]:
    vhost = f"in vhost '{mark}-one'"
    return [
        f"exchange 'recent' {vhost} has the type 'x-recent-history' of a plugin",
        f"the binding of 'recent' to 'orders' {vhost}: one of them is left out",
    ]


@pytest.fixture
def management(rabbitmq: RabbitMQ) -> Management:
    return Management(rabbitmq.http_port, rabbitmq.port, rabbitmq.vhost)


@pytest.fixture
def api() -> Iterator[Api]:
    with Broker() as broker:
        api = Api(broker)
        api.run(api.listener.start())
        yield api
        api.run(api.listener.stop())


@pytest.fixture
def mark(worker_id: str, management: Management) -> Iterator[str]:
    """A mark of this worker; nothing in RabbitMQ has it before or afterwards."""
    mark = f"definitions-{worker_id}"
    forget(management, everything(mark))
    yield mark
    forget(management, everything(mark))


def test_all_definitions_of_rabbitmq_come_here_and_go_back(
    management: Management, mark: str, api: Api
) -> None:
    document = everything(mark)
    sent(management, "POST", "/api/definitions", document)
    theirs = sent(management, "GET", "/api/definitions")
    assert marked(theirs, mark) == marked(document, mark)

    answer = api.ask("POST", "/api/definitions", body=marked(theirs, mark))
    assert (answer.status, answer.json) == (200, {"left_out": left_out(mark)})
    ours = api.get("/api/definitions").json
    assert marked(ours, mark) == marked(carried(document), mark)
    listed = [sentence for sentence in ours["leveret"]["without_equivalent"] if mark in sentence]
    assert listed == [
        f"exchange 'hash' in vhost '{mark}-one' needs RabbitMQ's plugin rabbitmq_consistent_hash_exchange"
    ]

    forget(management, document)
    sent(management, "POST", "/api/definitions", ours)
    assert marked(sent(management, "GET", "/api/definitions"), mark) == marked(carried(document), mark)


def test_a_password_of_rabbitmq_is_right_here(management: Management, mark: str, api: Api) -> None:
    sent(management, "POST", "/api/definitions", everything(mark))
    theirs = marked(sent(management, "GET", "/api/definitions"), mark)
    assert api.ask("POST", "/api/definitions", body=theirs).status == 200
    client = Client(api.broker.port, vhost=f"{mark}-one", user=f"{mark}-ann", password="secret")
    client.channel()
    assert api.ask("GET", "/api/whoami", f"{mark}-bob:other").json["reason"] == "Not management user"


def test_one_virtual_host_comes_here_and_goes_back(management: Management, mark: str, api: Api) -> None:
    document = everything(mark)
    path = f"/api/definitions/{mark}-one"
    sent(management, "POST", "/api/definitions", document)
    theirs = sent(management, "GET", path)
    assert api.ask("PUT", f"/api/vhosts/{mark}-one", body={}).status == 201
    assert api.ask("POST", path, body=theirs).json == {"left_out": left_out(mark)}
    ours = api.get(path).json

    def sorted_sections(document: Document) -> Document:
        names = ("parameters", "policies", "queues", "exchanges", "bindings")
        return {name: sorted(document[name], key=canonical) for name in names}

    assert sorted_sections(ours) == sorted_sections(carried(theirs))
    sent(management, "DELETE", f"/api/vhosts/{mark}-one")
    sent(management, "PUT", f"/api/vhosts/{mark}-one", {})
    sent(management, "POST", path, ours)
    assert sorted_sections(sent(management, "GET", path)) == sorted_sections(carried(theirs))
