"""Reports of admin actions: who, what, from where, with which result; never a secret."""

import json

import pytest

from leveret.fronts.http.admin_actions import HIDDEN, AdminAction, without_secrets

HASH = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"


def test_a_change_is_reported_with_user_address_names_body_and_result(api):
    body = {"configure": "", "write": "^a/b$", "read": ".*"}
    bob = api.add_user("b/b", "administrator", "/")
    assert api.ask("PUT", "/api/permissions/%2F/b%2Fb", bob, body=body).status == 204
    (report,) = api.actions
    assert str(report.pop("address")).startswith("127.0.0.1:")
    assert report == {
        "user": "b/b",
        "method": "PUT",
        "path": "/api/permissions/%2F/b%2Fb",
        "names": {"vhost": "/", "name": "b/b"},
        "body": body,
        "status": 204,
        "result": "done",
    }


def test_changes_without_a_body_are_reported_by_every_kind_of_route(api):
    api.add_queue("q", 3)
    api.ask("DELETE", "/api/queues/%2F/q/contents")
    api.ask("PUT", "/api/topics/%2F/orders?reason=test", body={"partitions": 2})
    assert [(each["method"], each["names"], each["result"]) for each in api.actions] == [
        ("DELETE", {"vhost": "/", "name": "q"}, "done"),
        ("PUT", {"vhost": "/", "name": "orders"}, "done"),
    ]
    assert api.actions[1]["query"] == {"reason": "test"}


def test_a_refused_change_is_reported_with_the_reason(api):
    joe = api.add_user("joe", "management", "/")
    api.ask("DELETE", "/api/users/guest", joe)
    api.ask("DELETE", "/api/users/nobody")
    assert [(each["user"], each["status"], each["result"], each["reason"]) for each in api.actions] == [
        ("joe", 401, "refused", "Not administrator user"),
        ("guest", 404, "refused", "no user 'nobody'"),
    ]


def test_the_answer_to_a_refused_change_is_the_one_without_reports(api):
    answer = api.ask("DELETE", "/api/users/nobody")
    assert (answer.status, answer.json["reason"]) == (404, "no user 'nobody'")
    assert answer.headers["content-length"] == str(len(answer.body))


def test_readers_and_strangers_are_not_reported(api):
    api.get("/api/users")
    api.ask("HEAD", "/api/users")
    api.ask("DELETE", "/api/users/guest", "guest:wrong")
    api.ask("DELETE", "/api/users/guest", None)
    api.ask("POST", "/nowhere")
    assert api.actions == []


def test_passwords_are_in_no_report(api):
    api.ask("PUT", "/api/users/ann", body={"password": "hunter2", "tags": "monitoring"})
    api.ask("PUT", "/api/users/ann", body={"password_hash": HASH, "password": "hunter2", "tags": ""})
    # The refusal names the value.
    answer = api.ask("PUT", "/api/users/ann", body={"password": 271828, "tags": ""})
    assert "271828" in answer.json["reason"]
    assert api.actions[0]["body"] == {"password": HIDDEN, "tags": "monitoring"}
    assert api.actions[2]["reason"] == HIDDEN
    written = json.dumps(api.actions)
    assert not [secret for secret in ("hunter2", HASH, "271828") if secret in written]


def test_an_error_inside_a_handler_is_reported_as_failed(api, monkeypatch):
    monkeypatch.setattr("leveret.broker.access.administration.delete_users", lambda *_: 1 / 0)
    api.add_user("ann")
    assert api.ask("DELETE", "/api/users/ann").status == 500
    assert [(each["status"], each["result"]) for each in api.actions] == [(500, "failed")]


def action(body: bytes) -> AdminAction:
    return AdminAction("PUT", "/api/x", "", {}, "ann", "", body, len(body), 204)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"{", "(1 bytes that are not JSON, or nested too deeply)"),
        (b"[" * 5_000 + b"]" * 5_000, "(10000 bytes that are not JSON, or nested too deeply)"),
        (b'["a"]', ["a"]),
        (b'"' + b"x" * 9_000 + b'"', "(9002 bytes)"),
        (b" " * (1 << 21), "(2097152 bytes)"),
        (
            json.dumps({"users": ["u" * 20] * 999, "vhost": "/"}).encode(),
            {"users": "(999 entries)", "vhost": "…"},
        ),
    ],
)
def test_large_and_odd_bodies_are_cut(body, shown):
    assert action(body).report()["body"] == shown


def test_secrets_are_found_wherever_they_are_nested():
    secrets: list[str] = []
    definitions = {
        "users": [{"name": "ann", "password_hash": HASH, "hashing_algorithm": "sha256"}],
        "parameters": [{"value": {"src-uri": "amqp://bob:geheim@host/%2F", "Auth_Token": ["t1"]}}],
        "credentials": {"key": "s1", "none": None},
        "password": "",
    }
    shown = without_secrets(definitions, secrets)
    assert secrets == [HASH, "t1", "s1"]
    assert shown == {
        "users": [{"name": "ann", "password_hash": HIDDEN, "hashing_algorithm": "sha256"}],
        "parameters": [{"value": {"src-uri": f"amqp://{HIDDEN}@host/%2F", "Auth_Token": HIDDEN}}],
        "credentials": HIDDEN,
        "password": "",
    }
