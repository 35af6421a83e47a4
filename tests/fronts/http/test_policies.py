"""Policies over HTTP: as RabbitMQ has them, in force at once, kept over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.operations import policies
from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api
from tests.semantics.client import Client

pytestmark = pytest.mark.real

TEMP = {"pattern": "^temp", "definition": {"max-length": 2}, "priority": 1, "apply-to": "queues"}


def put(api: Api, name: str, definition: dict[str, Any], *, kind: str = "policies", **more: Any) -> int:
    body = {"pattern": "^temp", "definition": definition, **more}
    return api.ask("PUT", f"/api/{kind}/%2F/{name}", body=body).status


def queue(api: Api, name: str) -> dict[str, Any]:
    row = api.ask("GET", f"/api/queues/%2F/{name}").json
    return {field: row[field] for field in ("policy", "operator_policy", "effective_policy_definition")}


@pytest.fixture
def client(api: Api) -> Client:
    return Client(api.broker.port)


def test_a_policy_is_made_shown_replaced_and_deleted(api: Api) -> None:
    assert api.ask("PUT", "/api/policies/%2F/limits", body=TEMP).status == 201
    shown = {"vhost": "/", "name": "limits", **TEMP}
    assert api.ask("GET", "/api/policies/%2F/limits").json == shown
    assert api.ask("GET", "/api/policies").json == [shown]
    assert api.ask("GET", "/api/policies/%2F").json == [shown]
    assert put(api, "limits", {"max-length": 5}) == 204
    assert api.ask("GET", "/api/policies/%2F/limits").json["apply-to"] == "all"
    assert api.ask("GET", "/api/operator-policies").json == []
    assert api.ask("DELETE", "/api/policies/%2F/limits").status == 204
    missing = api.ask("DELETE", "/api/policies/%2F/limits")
    assert (missing.status, missing.json) == (
        404,
        {"error": "Object Not Found", "reason": "no policy 'limits' in vhost '/'"},
    )


@pytest.mark.parametrize("body", [{"pattern": "("}, {}, {**TEMP, "definition": {"max-length": -1}}])
def test_a_wrong_policy_is_refused_and_changes_nothing(api: Api, body: dict[str, Any]) -> None:
    answer = api.ask("PUT", "/api/policies/%2F/limits", body=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert api.ask("PUT", "/api/policies/elsewhere/limits", body=TEMP).status == 404
    assert api.ask("GET", "/api/policies").json == []


def test_a_policy_is_in_force_at_once_for_what_exists_and_for_what_comes(api: Api, client: Client) -> None:
    channel = client.channel().confirm_select()
    channel.declare("temp-old")
    for body in "1234":
        channel.publish_confirmed("temp-old", body)
    assert put(api, "limits", {"max-length": 2}) == 201
    assert channel.get_all("temp-old") == ["3", "4"], "the policy trims what is there"
    channel.declare("temp-new", arguments={"x-max-length": 9})
    for body in "1234":
        channel.publish_confirmed("temp-new", body)
    assert channel.get_all("temp-new") == ["3", "4"], "the smaller of policy and argument holds"
    assert queue(api, "temp-new") == {
        "policy": "limits",
        "operator_policy": None,
        "effective_policy_definition": {"max-length": 2},
    }
    assert api.ask("DELETE", "/api/policies/%2F/limits").status == 204
    for body in "1234":
        channel.publish_confirmed("temp-old", body)
    assert channel.get_all("temp-old") == ["1", "2", "3", "4"]


def test_an_operator_policy_bounds_what_policies_and_arguments_set(api: Api, client: Client) -> None:
    channel = client.channel().confirm_select()
    channel.declare("temp", arguments={"x-overflow": "reject-publish"})
    assert put(api, "mine", {"max-length": 5, "overflow": "drop-head"}) == 201
    assert put(api, "bounds", {"max-length": 1}, kind="operator-policies") == 201
    assert queue(api, "temp") == {
        "policy": "mine",
        "operator_policy": "bounds",
        "effective_policy_definition": {"max-length": 1, "overflow": "drop-head"},
    }
    channel.publish_confirmed("temp", "1")
    channel.publish("temp", "2")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}, "the argument for overflow takes precedence"


def test_dead_letters_alternates_and_deadlines_follow_a_policy(api: Api, client: Client) -> None:
    channel = client.channel().confirm_select()
    channel.declare("temp")
    channel.declare("dead")
    channel.exchange("temp-x", "direct")
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "message-ttl": 0}
    assert put(api, "death", definition, **{"apply-to": "queues"}) == 201
    channel.publish_confirmed("temp", "late")
    api.broker.wait_until_depth("dead", 1)
    assert channel.get_all("dead") == ["late"]
    assert put(api, "elsewhere", {"alternate-exchange": "amq.fanout"}, **{"apply-to": "exchanges"}) == 201
    channel.bind("dead", "amq.fanout", "")
    channel.publish_confirmed("nowhere", "unroutable", exchange="temp-x")
    assert channel.get_all("dead") == ["unroutable"]


def test_policies_survive_a_restart() -> None:
    with Broker() as broker:
        Client(broker.port).channel().declare("temp")
        for operator, limit in ((False, 2), (True, 1)):
            document = {"pattern": "^temp", "definition": {"max-length": limit}}
            inside, begin = broker.server.broker, broker.server.turns.begin
            broker.call(
                lambda: policies.put_policy(inside, "/", "limits", document, operator=operator, begin=begin)  # noqa: B023
            )
        broker.restart()
        vhost = broker.server.broker.vhosts["/"]
        assert [list(names) for names in vhost.policies.by_name.values()] == [["limits"], ["limits"]]
        assert vhost.queues["temp"].settings.max_length == 1


def test_a_policy_that_can_not_be_written_is_undone(api: Api, client: Client) -> None:
    client.channel().declare("temp")
    definitions = api.broker.definitions
    definitions.fill()  # type: ignore[union-attr]
    try:
        assert put(api, "limits", {"max-length": 2}) == 503
    finally:
        definitions.heal()  # type: ignore[union-attr]
    vhost = api.broker.server.broker.vhosts["/"]
    assert not vhost.policies
    assert vhost.queues["temp"].settings.max_length is None
