"""`/api/parameters` and `/api/global-parameters` answer as RabbitMQ's, and are kept."""

from __future__ import annotations

import pytest

from tests.fronts.http.conftest import Api
from tests.fronts.http.views import crashed_and_started, reason

BOUNDS = "/api/parameters/operator_policy/%2F/bounds"
VALUE = {"pattern": "^temp", "definition": {"max-length": 1}, "priority": 3}
ROW = {
    "component": "operator_policy",
    "vhost": "/",
    "name": "bounds",
    "value": {**VALUE, "apply-to": "all"},
}


def test_an_operator_policy_is_a_parameter(api: Api) -> None:
    assert [api.ask("PUT", BOUNDS, body={"value": VALUE}).status for _ in range(2)] == [201, 204]
    for path in ("", "/operator_policy", "/operator_policy/%2F"):
        assert api.get(f"/api/parameters{path}").json == [ROW], path
    assert api.get(BOUNDS).json == ROW
    assert [row["name"] for row in api.get("/api/operator-policies").json] == ["bounds"]
    assert [api.ask("DELETE", BOUNDS).status for _ in range(2)] == [204, 404]
    assert api.get("/api/operator-policies").json == []


def test_policies_are_shown_alone_and_not_set(api: Api) -> None:
    policy = {"pattern": "^temp", "definition": {"max-length": 1}}
    api.ask("PUT", "/api/policies/%2F/p", body=policy)
    assert api.get("/api/parameters").json == []
    (row,) = api.get("/api/parameters/policy").json
    assert (row["component"], row["name"], row["value"]["definition"]) == ("policy", "p", {"max-length": 1})
    for method in ("PUT", "DELETE"):
        answer = api.ask(method, "/api/parameters/policy/%2F/p", body={"value": VALUE})
        assert (answer.status, reason(answer)) == (400, "policies may not be set using this method")


def test_components_that_do_not_exist_are_empty_and_can_not_be_set(api: Api) -> None:
    body = {"exchange": "amq.topic", "write": "", "read": ""}
    api.ask("PUT", "/api/topic-permissions/%2F/guest", body=body)
    for component in ("federation-upstream", "shovel", "topic-permission", "global-parameter"):
        path = f"/api/parameters/{component}"
        assert api.get(path).json == api.get(f"{path}/%2F").json == []
        assert api.get(f"{path}/%2F/guest").status == 404
        assert api.ask("DELETE", f"{path}/%2F/guest").status == 404
        answer = api.ask("PUT", f"{path}/%2F/guest", body={"value": {}})
        assert answer.status == 400
        assert reason(answer) == f"Validation failed\n\ncomponent {component} not found\n"
    assert api.get("/api/parameters/policy/nowhere").status == 404


REFUSED = [
    ({}, "[{key_missing,value}]"),
    ({"value": 5}, "Validation failed\n\nbounds not a list 5\n"),
    ({"value": None}, "Validation failed\n\nbounds not a list null\n"),
    (
        {"value": {"max-queues": 5}},
        'Validation failed\n\nUnrecognised terms [{<<"max-queues">>,5}] in bounds\n'
        'Key "definition" not found in bounds\nKey "pattern" not found in bounds\n'
        'Key "priority" not found in bounds\n',
    ),
    (
        {"value": {**VALUE, "definition": {"max-length": -1}}},
        "Validation failed\n\n-1 is not a valid maximum length\n",
    ),
]


@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_a_wrong_value_is_refused_in_rabbitmqs_words(api: Api, body: object, sentence: str) -> None:
    answer = api.ask("PUT", BOUNDS, body=body)
    assert (answer.status, reason(answer)) == (400, sentence)
    assert api.get("/api/parameters").json == []


def test_global_parameters_are_any_json(api: Api) -> None:
    path = "/api/global-parameters"
    for name, value in (("a", {"deep": [1, None, {"x": "é"}]}), ("b", None), ("c", "text")):
        assert api.ask("PUT", f"{path}/{name}", body={"value": value}).status == 201
        assert api.get(f"{path}/{name}").json == {"name": name, "value": value}
    assert api.ask("PUT", f"{path}/c", body={"value": 7, "name": "c"}).status == 204
    for wrong, sentence in (
        (b"1e999", "inf is not a number of JSON"),
        (b"[NaN]", "not_json"),
        (b"[" * 66 + b"]" * 66, "the value is nested more than 64 deep"),
    ):
        answer = api.ask("PUT", f"{path}/d", body=b'{"value": ' + wrong + b"}")
        assert (answer.status, reason(answer)) == (400, sentence)
    before = api.get(path).json
    assert before[1:] == [{"name": "b", "value": None}, {"name": "c", "value": 7}]
    answer = api.ask("PUT", f"{path}/d", body={})
    assert (answer.status, reason(answer)) == (400, "[{key_missing,value}]")
    again = crashed_and_started(api)
    assert again.get(path).json == before
    assert [again.ask("DELETE", f"{path}/b").status for _ in range(2)] == [204, 404]
    assert again.get(f"{path}/b").status == 404
    again.run(again.listener.stop())


def test_limits_of_a_virtual_host_are_a_parameter(api: Api) -> None:
    path = "/api/parameters/vhost-limits/%2F"
    assert api.ask("PUT", f"{path}/limits", body={"value": {"max-queues": 5}}).status == 201
    assert api.get("/api/vhost-limits").json == [{"vhost": "/", "value": {"max-queues": 5}}]
    row = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 5}}
    assert api.get("/api/parameters").json == [row]
    for name, value, sentence in (
        ("limits", {"max-queues": "x"}, 'max-queues should be a number, actually was <<"x">>'),
        ("limits", {"foo": 5}, 'Unrecognised terms [{<<"foo">>,5}] in limits'),
        ("limits", 5, "limits not a list 5"),
        ("foo", {"max-queues": 5}, "the name must be 'limits', not 'foo'"),
    ):
        answer = api.ask("PUT", f"{path}/{name}", body={"value": value})
        assert (answer.status, reason(answer)) == (400, f"Validation failed\n\n{sentence}\n")
    assert api.ask("DELETE", f"{path}/limits").status == 204
    assert api.get("/api/vhost-limits").json == []
