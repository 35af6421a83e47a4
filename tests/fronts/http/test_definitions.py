"""Definitions over HTTP: exported and imported in RabbitMQ's form, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.operations import vhosts
from leveret.broker.operations.definitions import Plan
from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api

pytestmark = pytest.mark.real

PATH = "/api/definitions"


def queue(name: str, **arguments: Any) -> dict[str, Any]:
    named = {argument.replace("_", "-"): value for argument, value in arguments.items()}
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": named}


def exchange(name: str, type_: str = "topic", **more: Any) -> dict[str, Any]:
    plain = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    return {"name": name, "vhost": "/", "type": type_, **plain, **more}


def binding(source: str, destination: str, key: str = "", kind: str = "queue", **more: Any) -> dict[str, Any]:
    ends = {"source": source, "vhost": "/", "destination": destination, "destination_type": kind}
    return {**ends, "routing_key": key, "arguments": {}, **more}


DOCUMENT = {
    "users": [{"name": "ann", "password": "secret", "tags": "monitoring,policymaker"}],
    "permissions": [{"user": "ann", "vhost": "/", "configure": "", "write": "^a", "read": ".*"}],
    "policies": [
        {
            "vhost": "/",
            "name": "short",
            "pattern": "^o",
            "definition": {"max-length": 9},
            "apply-to": "queues",
        }
    ],
    "queues": [queue("orders", x_queue_type="quorum"), queue("events", x_queue_type="stream")],
    "exchanges": [exchange("shop"), exchange("audit", "fanout", auto_delete=True, internal=True)],
    "bindings": [
        binding("shop", "orders", "order.#", arguments={"deep": {"list": [1, "a", True, 1.5]}}),
        binding("shop", "audit", "#", "exchange"),
        binding("amq.topic", "events", "e"),
    ],
}


def load(api: Api, document: object, path: str = PATH) -> Any:
    answer = api.ask("POST", path, body=document)
    assert answer.status in (200, 204), answer.body
    return answer.json["left_out"] if answer.status == 200 else []


def refusal(api: Api, document: object, path: str = PATH) -> str:
    answer = api.ask("POST", path, body=document)
    assert answer.status == 400, (answer.status, answer.body)
    return str(answer.json["reason"])


def named(items: list[dict[str, Any]], name: str, key: str = "name") -> dict[str, Any]:
    (item,) = [item for item in items if item[key] == name]
    return item


@pytest.fixture
def other_api() -> Iterator[Api]:
    """The API of a second, empty broker."""
    with Broker() as broker:
        api = Api(broker)
        api.run(api.listener.start())
        yield api
        api.run(api.listener.stop())


def test_what_a_document_holds_is_made_and_exported_again(api: Api) -> None:
    assert load(api, DOCUMENT) == []
    shown = api.get(PATH).json
    for section in ("queues", "exchanges", "bindings"):
        for item in DOCUMENT[section]:
            assert item in shown[section]
        assert len(shown[section]) == len(DOCUMENT[section])
    assert named(shown["policies"], "short")["definition"] == {"max-length": 9}
    assert named(shown["users"], "ann")["tags"] == ["monitoring", "policymaker"]
    assert DOCUMENT["permissions"][0] in shown["permissions"]
    assert api.get("/api/queues/%2F/orders").json["policy"] == "short"


def test_an_imported_user_can_log_in(api: Api) -> None:
    load(api, DOCUMENT)
    assert api.ask("GET", "/api/whoami", "ann:secret").status == 200


def test_an_export_can_be_imported_twice_and_changes_nothing(api: Api) -> None:
    load(api, DOCUMENT)
    shown = api.get(PATH).json
    assert load(api, shown) == []
    assert api.get(PATH).json == shown


@pytest.mark.parametrize(
    ("section", "items", "reason"),
    [
        ("queues", 5, "queues is 5; it must be a list"),
        ("queues", [5], "queues[0] is 5; it must be a JSON object"),
        ("queues", [{"vhost": "/"}], "queues[0]: name is missing"),
        ("queues", [{**queue("q"), "durable": "yes"}], "queues[0]: durable must be true or false"),
        ("queues", [{**queue("q"), "vhost": "nope"}], "queues[0]: no virtual host 'nope'"),
        ("queues", [{**queue("q"), "arguments": [1]}], "queues[0]: arguments must be a JSON object"),
        ("queues", [queue("amq.q")], "queues[0]: queue name 'amq.q' is reserved"),
        (
            "queues",
            [queue("q", x_max_length="x")],
            "queues[0]: invalid arg 'x-max-length' for queue 'q' in vhost '/': "
            '"expected integer, got longstr"',
        ),
        ("exchanges", [exchange("e", "nosuch")], "exchanges[0]: unknown exchange type 'nosuch'"),
        ("bindings", [binding("nope", "new")], "bindings[0]: no exchange 'nope' in vhost '/'"),
        ("bindings", [binding("amq.topic", "nope")], "bindings[0]: no queue 'nope' in vhost '/'"),
        (
            "bindings",
            [binding("amq.topic", "new", kind="thing")],
            "bindings[0]: destination_type is 'thing'; it must be queue or exchange",
        ),
        (
            "policies",
            [{"vhost": "/", "name": "p", "pattern": "a", "definition": {"max-foo": 1}}],
            'Validation failed\n\n[{<<"max-foo">>,1}] are not recognised policy settings\n (//p)',
        ),
        ("users", [{"name": "u", "tags": 5}], "users[0]: tags must be a list of texts"),
        (
            "permissions",
            [{"user": "nope", "vhost": "/", "configure": "", "write": "", "read": ""}],
            "permissions[0]: no user 'nope'",
        ),
        (
            "parameters",
            [{"component": "foo", "vhost": "/", "name": "x", "value": {}}],
            "Validation failed\n\ncomponent foo not found\n (//foo/x)",
        ),
    ],
)
def test_a_document_with_a_mistake_is_refused_as_a_whole(
    api: Api, section: str, items: object, reason: str
) -> None:
    document = {"queues": [queue("new")], section: items}
    if section == "queues" and isinstance(items, list):
        document = {"queues": [*items, queue("new")]}
    before = api.get(PATH).json
    assert refusal(api, document) == reason
    assert api.get(PATH).json == before


def test_what_exists_with_other_arguments_stays_and_is_listed(api: Api) -> None:
    load(api, {"queues": [queue("q", x_max_length=5)], "exchanges": [exchange("e")]})
    left_out = load(api, {"queues": [queue("q", x_max_length=6)], "exchanges": [exchange("e", "fanout")]})
    assert len(left_out) == 2
    assert "inequivalent arg 'type' for exchange 'e'" in left_out[0]
    assert "inequivalent arg 'x-max-length' for queue 'q'" in left_out[1]
    assert named(api.get(PATH).json["queues"], "q")["arguments"] == {"x-max-length": 5}


def test_what_only_plugins_of_rabbitmq_have_is_left_out_and_listed(api: Api) -> None:
    upstream = {"component": "federation-upstream", "vhost": "/", "name": "far", "value": {"uri": "amqp://"}}
    left_out = load(
        api,
        {
            "exchanges": [exchange("late", "x-delayed-message")],
            "queues": [queue("q")],
            "bindings": [binding("late", "q")],
            "parameters": [upstream],
            "policies": [
                {"vhost": "/", "name": "p", "pattern": "", "definition": {"federation-upstream-set": "all"}}
            ],
            "nonsense": [],
        },
    )
    assert left_out == [
        "nonsense: definitions have no such section",
        "parameter 'far' in vhost '/': there is no federation-upstream",
        "policy 'p' in vhost '/': there is no federation (federation-upstream-set)",
        "exchange 'late' in vhost '/' has the type 'x-delayed-message' of a plugin",
        "the binding of 'late' to 'q' in vhost '/': one of them is left out",
    ]
    assert [item["name"] for item in api.get(PATH).json["queues"]] == ["q"]


def test_limits_that_were_cleared_are_an_empty_list_in_rabbitmq(api: Api) -> None:
    cleared = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": []}
    assert load(api, {"parameters": [cleared]}) == []
    assert api.get("/api/vhost-limits").json == []


def test_a_dry_run_changes_nothing(api: Api) -> None:
    before = api.get(PATH).json
    answer = api.ask("POST", f"{PATH}?dry_run=true", body=DOCUMENT).json
    assert answer == {"count": 10, "left_out": []}
    assert api.get(PATH).json == before


def test_what_rabbitmq_lacks_is_kept_beside_and_listed(api: Api) -> None:
    own = {"vhost": "/", "name": "own", "pattern": "", "definition": {"consumer-timeout": 5, "max-length": 7}}
    load(api, {**DOCUMENT, "policies": [own], "queues": [queue("slow", x_retry_delay_ms=5)], "bindings": []})
    assert api.ask("PUT", "/api/topics/%2F/t", body={"partitions": 1}).status == 201
    group = {"subject": "t", "max_span": 500}
    assert api.ask("PUT", "/api/groups/%2F/billing", body=group).status == 201
    shown = api.get(PATH).json
    assert named(shown["policies"], "own")["definition"] == {"max-length": 7}
    assert named(shown["users"], "ann")["password_hash"] == ""
    ours = shown["leveret"]
    assert ours["policies"][0]["value"]["definition"] == own["definition"]
    assert ours["groups"][0]["settings"]["max_span"] == 500
    assert ours["without_equivalent"] == [
        "user 'ann' can't log in to RabbitMQ before a new password is set there: RabbitMQ has no hashes of "
        "leveret_password_hashing_argon2id",
        "policy 'own' has keys that RabbitMQ does not know: consumer-timeout",
        "queue 'slow' in vhost '/' has arguments that RabbitMQ ignores: x-retry-delay-ms",
        "exchange 't' in vhost '/' needs RabbitMQ's plugin rabbitmq_consistent_hash_exchange",
        "group 'billing' on 't' in vhost '/': RabbitMQ has no consumer groups",
    ]


def test_a_whole_export_makes_an_empty_broker_the_same(api: Api, other_api: Api) -> None:
    own = {"vhost": "/", "name": "own", "pattern": "", "definition": {"consumer-timeout": 5}}
    load(api, {**DOCUMENT, "policies": [*DOCUMENT["policies"], own]})
    api.ask("PUT", "/api/topics/%2F/t", body={"partitions": 2})
    api.ask("PUT", "/api/groups/%2F/billing", body={"subject": "t", "delays": ["1s", "5s"]})
    shown = api.get(PATH).json
    assert load(other_api, shown) == []
    assert other_api.get(PATH).json == shown
    assert other_api.ask("GET", "/api/whoami", "ann:secret").status == 200


def test_one_virtual_host_is_exported_without_its_name(api: Api) -> None:
    load(api, DOCUMENT)
    shown = api.get(f"{PATH}/%2F").json
    assert set(shown) == {
        "rabbit_version",
        "parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
        "leveret",
    }
    assert all("vhost" not in item for item in (*shown["queues"], *shown["bindings"]))
    assert load(api, {**shown, "users": [{"name": "eve"}]}, f"{PATH}/%2F") == [
        "users: the import of one virtual host has none"
    ]


def test_what_somebody_else_makes_impossible_meanwhile_is_left_out_and_listed(api: Api) -> None:
    document = {
        "vhosts": [{"name": f"v{number}"} for number in range(20)],
        "permissions": [{"user": "guest", "vhost": "v0", "configure": "", "write": "", "read": ""}],
        "policies": [{"vhost": "v0", "name": "p", "pattern": "", "definition": {"max-length": 1}}],
        "queues": [{**queue("q"), "vhost": "v0"}, queue("q")],
    }
    inner = api.broker.server.broker

    def run() -> list[str]:
        plan = Plan(inner)
        api.broker.server.turns.begin()
        assert list(plan.read(document)) == []
        changes = plan.apply()
        next(changes)
        vhosts.delete(inner, "v0", begin=lambda: None)
        assert list(changes) == []
        return plan.left_out

    places = ("permissions[0]", "policies[0]", "queues[0]")
    assert api.broker.call(run) == [f"{place}: no virtual host 'v0'" for place in places]
    assert [item["name"] for item in api.get(PATH).json["queues"]] == ["q"]


def test_a_long_document_is_checked_and_made_in_pieces(api: Api) -> None:
    def count() -> tuple[int, int]:
        plan = Plan(api.broker.server.broker)
        api.broker.server.turns.begin()
        checks = sum(1 for _ in plan.read({"queues": [queue(f"q{number}") for number in range(250)]}))
        return checks, sum(1 for _ in plan.apply())

    checks, changes = api.broker.call(count)
    assert (checks, changes) == (2, 12)
