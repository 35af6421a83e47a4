"""Requests made up from the OpenAPI document, right ones and wrong ones (schemathesis).

Each operation gets names that exist and names that do not. Every answer must have a documented status and
match its schema, nothing may answer 500, and a body that does not match the document must be refused. The
requests are the same in each run; `--full` makes more of them.
"""

from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis import Case
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from leveret.fronts.http.openapi import document

EXAMPLES = 2
FULL_EXAMPLES = 30
WAIT_S = 30
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
KNOWN = {
    **dict.fromkeys(("name", "group", "query", "source", "destination", "username"), "known"),
    "vhost": "%2F",
    "kind": "q",
    "properties_key": "known",
    "offset": "0",
    "component": "operator_policy",
    "limit": "max-connections",
    "node": "leveret",
    "within": "1",
    "unit": "days",
    "port": "1",
    "protocol": "amqp",
}
POLICY = {"pattern": "^x", "definition": {"max-length": 5}}
PREPARED: tuple[tuple[str, str, Any], ...] = (
    ("PUT", "queues/%2F/known", {}),
    ("PUT", "exchanges/%2F/known", {"type": "topic"}),
    ("POST", "bindings/%2F/e/known/q/known", {"routing_key": "known"}),
    ("PUT", "topics/%2F/topic", {"partitions": 1}),
    ("PUT", "groups/%2F/known", {"subject": "topic-0"}),
    ("PUT", "vhosts/known", {}),
    ("PUT", "users/known", {"password_hash": "", "tags": "management"}),
    ("PUT", "permissions/%2F/known", {"configure": "", "write": "", "read": ""}),
    ("PUT", "topic-permissions/%2F/known", {"exchange": "amq.topic", "write": "", "read": ""}),
    ("PUT", "policies/%2F/known", POLICY),
    ("PUT", "operator-policies/%2F/known", POLICY),
    ("PUT", "global-parameters/known", {"value": 1}),
)
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()]
MODES = {"right": GenerationMode.POSITIVE, "wrong": GenerationMode.NEGATIVE}


@pytest.fixture
def ask(api):
    with requests.Session() as session:
        session.auth = ("guest", "guest")

        def ask(case: Case) -> requests.Response:
            return case.call(api.listener.url, session=session, timeout=WAIT_S)

        yield ask


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["GET", "PUT", "POST", "PATCH", "DELETE"])
def test_answers_are_documented_and_wrong_bodies_are_refused(api, ask, first, mode, pytestconfig):
    examples = FULL_EXAMPLES if pytestconfig.getoption("full") else EXAMPLES
    faults = []
    for operation in OPERATIONS:
        if operation.method.upper() != first or (mode == "wrong" and not can_be_wrong(operation)):
            continue
        if first != "GET" or operation is OPERATIONS[0]:
            prepare(api)
        try:
            play(operation, ask, mode=MODES[mode], examples=examples)
        except (AssertionError, FailureGroup) as error:
            faults.append(f"{operation.label}: {error}")
    assert not faults, "\n\n".join(faults)


def prepare(api):
    for method, path, body in PREPARED:
        assert api.ask(method, f"/api/{path}", body=body).status in (200, 201, 204), path


def play(operation, ask, *, mode, examples):
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
    def request(case, is_known):
        if is_known:
            case.path_parameters = {name: KNOWN[name] for name in case.path_parameters}
        response = ask(case)
        assert response.status_code != 500, case.as_curl_command()
        case.validate_response(response, checks=CHECKS)
        if is_wrong(case):
            assert response.status_code >= 400, f"accepted: {case.as_curl_command()}"

    request()


def can_be_wrong(operation):
    """Whether there is something in a request that the document restricts."""
    return bool(operation.path_parameters or operation.query or operation.body)


def is_wrong(case):
    body = case.operation.definition.raw.get("requestBody")
    if body is None or not isinstance(case.body, dict | list | str | int | float | bool):
        return False
    schema = body["content"]["application/json"]["schema"]
    checked = Draft202012Validator({**schema, "components": document()["components"]})
    return not checked.is_valid(case.body)
