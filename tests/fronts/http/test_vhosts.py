"""Virtual hosts and limits over HTTP: fields, statuses and texts are RabbitMQ's.

What a deletion takes along is tested in `tests/semantics/test_deleted_virtual_hosts.py`; what limits refuse
is compared with RabbitMQ by `tests/differential/scenarios/settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api
from tests.semantics.client import Client, ClosedByBroker

pytestmark = pytest.mark.real

PLAIN = {"description": "", "tags": []}


def field(api: Api, name: str, path: str = "/api/vhosts/v") -> Any:
    return api.get(path).json[name]


def test_a_virtual_host_is_made_shown_changed_and_deleted(api: Api) -> None:
    assert api.ask("PUT", "/api/vhosts/v", body={"description": "d", "tags": "a, b"}).status == 201
    shown = api.get("/api/vhosts/v").json
    assert shown == {
        "name": "v",
        "description": "d",
        "tags": ["a", "b"],
        "default_queue_type": "undefined",
        "metadata": {"description": "d", "tags": ["a", "b"]},
        "tracing": False,
        "cluster_state": {api.broker.server.broker.node: "running"},
        "messages": 0,
        "messages_ready": 0,
        "messages_unacknowledged": 0,
        "delayed": 0,
    }
    default, listed = api.get("/api/vhosts").json
    assert (default["name"], default["description"], listed) == ("/", "Default virtual host", shown)
    body = {"tracing": True, "default_queue_type": "quorum"}
    assert api.ask("PUT", "/api/vhosts/v", body=body).status == 204
    assert field(api, "metadata") == {**PLAIN, "default_queue_type": "quorum"}
    assert api.ask("PUT", "/api/vhosts/v").status == 204
    assert (field(api, "tracing"), field(api, "default_queue_type")) == (True, "quorum")
    assert api.ask("DELETE", "/api/vhosts/v").status == 204
    assert api.get("/api/vhosts/v").json == {"error": "Object Not Found", "reason": "Not Found"}
    assert api.ask("DELETE", "/api/vhosts/v").status == 404


def test_its_creator_may_do_everything_in_it_and_others_nothing(api: Api) -> None:
    ann = api.add_user("ann", "administrator")
    assert api.ask("PUT", "/api/vhosts/v", ann).status == 201
    assert api.ask("PUT", "/api/vhosts/v").status == 204, "a change gives no permissions"
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.get("/api/vhosts/v/permissions").json == [{"user": "ann", "vhost": "v", **rights}]
    Client(api.broker.port, user="ann", password="pass:word", vhost="v").channel().declare("q")
    with pytest.raises(ClosedByBroker, match="access to vhost 'v' refused for user 'guest'"):
        Client(api.broker.port, vhost="v")
    assert field(api, "messages") == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"tracing": "yes"}, ["not_boolean", "yes"]),
        ({"default_queue_type": "fast"}, "'fast' is not a type of queue: default_queue_type is one of "),
        ({"description": 5}, "description is 5; it must be a string."),
        ({"tags": 7}, "tags must be a list of strings"),
        ({"description": "\ud800"}, "not_json"),
        ({"colour": "red"}, "Field 'colour' is unknown"),
    ],
)
def test_a_wrong_virtual_host_is_refused_and_not_made(api: Api, body: dict[str, Any], reason: Any) -> None:
    answer = api.ask("PUT", "/api/vhosts/v", body=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason == answer.json["reason"] or reason in answer.json["reason"]
    assert [row["name"] for row in api.get("/api/vhosts").json] == ["/"]


def test_a_virtual_host_is_always_running(api: Api) -> None:
    assert api.ask("POST", f"/api/vhosts/%2F/start/{api.broker.server.broker.node}").status == 204
    for path, why in (
        ("%2F/start/x", "x failed with nodedown"),
        (f"v/start/{api.broker.server.broker.node}", "{no_such_vhost,<<"),
    ):
        answer = api.ask("POST", f"/api/vhosts/{path}")
        assert (answer.status, why in answer.json["reason"]) == (400, True)


def test_limits_are_set_added_shown_and_cleared(api: Api) -> None:
    for path, owner, other in (
        ("/api/vhost-limits/%2F", {"vhost": "/"}, "max-queues"),
        ("/api/user-limits/guest", {"user": "guest"}, "max-channels"),
    ):
        assert api.get(path).json == []
        assert api.ask("PUT", f"{path}/max-connections", body={"value": 70_000}).status == 204
        assert api.ask("PUT", f"{path}/{other}", body={"value": -1}).status == 204
        assert api.get(path).json == [{**owner, "value": {"max-connections": 70_000, other: -1}}]
        assert api.get(path.rpartition("/")[0]).json == api.get(path).json
        for limit in ("max-connections", other, other, "max-foo"):
            assert api.ask("DELETE", f"{path}/{limit}").status == 204
        assert api.get(path.rpartition("/")[0]).json == []


def test_what_is_no_limit_is_refused_and_changes_nothing(api: Api) -> None:
    for path, begins, ends in (
        ("/api/vhost-limits/%2F", "Validation failed\n\n", "\n"),
        ("/api/user-limits/guest", "", ""),
    ):
        terms = "limits" if begins else "user-limits"
        for limit, body, reason in (
            ("max-foo", {"value": 3}, f'{begins}Unrecognised terms [{{<<"max-foo">>,3}}] in {terms}{ends}'),
            (
                "max-connections",
                {"value": "x"},
                f'{begins}max-connections should be a number, actually was <<"x">>{ends}',
            ),
            (
                "max-connections",
                {"value": None},
                f"{begins}max-connections should be a number, actually was null{ends}",
            ),
            ("max-connections", {}, "[{key_missing,value}]"),
        ):
            answer = api.ask("PUT", f"{path}/{limit}", body=body)
            assert (answer.status, answer.json) == (400, {"error": "bad_request", "reason": reason})
    assert api.get("/api/vhost-limits").json == api.get("/api/user-limits").json == []
    answer = api.ask("PUT", "/api/user-limits/nope/max-channels", body={"value": 1})
    assert (answer.status, answer.json["reason"]) == (400, ["no_such_user", "nope"])
    answer = api.ask("PUT", "/api/vhost-limits/nope/max-queues", body={"value": 1})
    assert (answer.status, answer.json) == (404, {"error": "not_found", "reason": "vhost_not_found"})
    for path in ("/api/vhost-limits/nope", "/api/user-limits/nope"):
        assert api.get(path).status == api.ask("DELETE", f"{path}/max-connections").status == 404


def test_limits_of_other_virtual_hosts_are_for_monitors(api: Api) -> None:
    assert api.ask("PUT", "/api/vhosts/v").status == 201
    assert api.ask("PUT", "/api/vhost-limits/v/max-queues", body={"value": 1}).status == 204
    user, monitor = api.add_user("user", "management", "/"), api.add_user("mo", "monitoring")
    assert (api.get("/api/vhost-limits", user).json, api.get("/api/vhost-limits/v", user).status) == ([], 401)
    for path in ("/api/vhost-limits", "/api/vhost-limits/v"):
        assert api.get(path, monitor).json == [{"vhost": "v", "value": {"max-queues": 1}}]
    assert [row["name"] for row in api.get("/api/vhosts", user).json] == ["/"]
    assert [row["name"] for row in api.get("/api/vhosts", monitor).json] == ["/", "v"]


def test_a_topic_beyond_the_limit_of_queues_is_not_begun(api: Api) -> None:
    assert api.ask("PUT", "/api/vhost-limits/%2F/max-queues", body={"value": 2}).status == 204
    answer = api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 3})
    reason = "cannot declare queue 'orders-2': queue limit in vhost '/' (2) is reached"
    assert (answer.status, answer.json["reason"]) == (400, reason)
    host = api.broker.server.broker.vhosts["/"]
    assert (host.queues, "orders" in host.exchanges) == ({}, False)
    assert api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 2}).status == 201
    assert api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 3}).status == 400
    assert api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 2}).status == 200


def test_connections_that_are_closing_do_not_count(api: Api) -> None:
    assert api.ask("PUT", "/api/user-limits/guest/max-connections", body={"value": 1}).status == 204
    for end in ("close", "vanish") * 3:
        client = Client(api.broker.port)
        client.channel()
        with pytest.raises(ClosedByBroker, match=r"user connection limit \(1\) is reached"):
            Client(api.broker.port)
        getattr(client, end)()
        api.broker.wait_until(lambda: not api.broker.server.broker.sessions, "the client is gone")


def test_limits_and_descriptions_survive_a_restart_and_end_with_their_owner() -> None:
    with Broker() as broker:
        with served(broker) as api:
            assert api.ask("PUT", "/api/users/ann", body={"password": "x", "tags": ""}).status == 201
            assert api.ask("PUT", "/api/vhosts/v", body={"description": "d"}).status == 201
            for path in ("vhost-limits/v", "user-limits/ann"):
                limit = f"/api/{path}/max-connections"
                assert api.ask("PUT", limit, body={"value": 0}).status == 204
        broker.restart()
        with served(broker) as api:
            assert field(api, "description") == "d"
            assert api.get("/api/vhost-limits").json == [{"vhost": "v", "value": {"max-connections": 0}}]
            assert api.get("/api/user-limits").json == [{"user": "ann", "value": {"max-connections": 0}}]
            for path in ("vhosts/v", "users/ann"):
                assert api.ask("DELETE", f"/api/{path}").status == 204
            assert api.get("/api/vhost-limits").json == api.get("/api/user-limits").json == []


@contextmanager
def served(broker: Broker) -> Iterator[Api]:
    api = Api(broker)
    api.run(api.listener.start())
    yield api
    api.run(api.listener.stop())


def test_what_can_not_be_written_is_refused_and_undone(api: Api) -> None:
    definitions = api.broker.definitions
    api.broker.call(definitions.fill)
    for path, body in (("vhosts/v", {}), ("vhost-limits/%2F/max-queues", {"value": 0})):
        answer = api.ask("PUT", f"/api/{path}", body=body)
        assert (answer.status, answer.json["error"]) == (503, "unavailable")
    assert api.get("/api/vhosts/v").status == 404
    assert api.get("/api/vhost-limits").json == []
    api.broker.call(definitions.heal)
