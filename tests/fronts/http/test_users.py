"""Users and what they may do: made, changed and removed over HTTP, in RabbitMQ's words, and at once."""

import base64
import hashlib

import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.fronts.http.views import crashed_and_started

ANN = "ann:secret"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def ann(api):
    """A user who may do everything in `/`, and nothing over HTTP."""
    assert api.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": ""}).status == 201
    assert api.ask("PUT", "/api/permissions/%2F/ann", body=ALL).status == 201
    return api


def connect(api, name="ann", password="secret"):
    place = pika.ConnectionParameters(
        "127.0.0.1", api.broker.port, credentials=pika.PlainCredentials(name, password)
    )
    return pika.BlockingConnection(place)


def wait_for_the_end(connection):
    while True:
        connection.process_data_events(time_limit=1)


def test_a_user_is_made_and_may_do_what_it_was_permitted(api):
    body = {"password": "secret", "tags": "monitoring, management"}
    assert api.ask("PUT", "/api/users/ann", body=body).status == 201
    shown = {"name": "ann", "tags": ["management", "monitoring"]}
    assert api.get("/api/whoami", ANN).json == shown
    assert api.get("/api/users/ann").json.items() >= shown.items()
    tags = {each["name"]: each["tags"] for each in api.get("/api/users").json}
    assert tags == {"ann": ["management", "monitoring"], "guest": ["administrator"]}
    with pytest.raises(ProbableAccessDeniedError):
        connect(api)
    rights = {"configure": "^mine", "write": "", "read": ".*"}
    assert api.ask("PUT", "/api/permissions/%2F/ann", body=rights).status == 201
    permitted = {"user": "ann", "vhost": "/", **rights}
    assert api.get("/api/permissions/%2F/ann").json == permitted
    assert permitted in api.get("/api/permissions").json
    assert permitted in api.get("/api/permissions/%2F").json
    channel = connect(api).channel()
    channel.queue_declare("mine")
    with pytest.raises(ChannelClosedByBroker, match="access to queue 'other' in vhost '/' refused"):
        channel.queue_declare("other")


def test_what_was_made_is_there_after_a_restart(ann):
    ann.ask("PUT", "/api/users/bob", body={"password": "b", "tags": ["administrator"]})
    ann.ask("PUT", "/api/users/eve", body={"password": "e", "tags": []})
    ann.ask("PUT", "/api/permissions/%2F/eve", body=ALL)
    ann.ask("PUT", "/api/permissions/%2F/bob", body=ALL)
    ann.ask("DELETE", "/api/permissions/%2F/bob")
    ann.ask("DELETE", "/api/users/eve")
    before = ann.get("/api/users").json, ann.get("/api/permissions").json
    again = crashed_and_started(ann)
    assert (again.get("/api/users").json, again.get("/api/permissions").json) == before
    assert {each["name"] for each in before[0]} == {"ann", "bob", "guest"}
    assert {each["user"] for each in before[1]} == {"ann", "guest"}
    connect(again).close()
    assert again.get("/api/whoami", "bob:b").status == 200
    again.run(again.listener.stop())


def test_a_new_password_counts_and_the_old_one_does_not(ann):
    assert ann.ask("PUT", "/api/users/ann", body={"password": "new", "tags": "management"}).status == 204
    with pytest.raises(ProbableAuthenticationError):
        connect(ann)
    connect(ann, password="new").close()
    assert ann.get("/api/whoami", ANN).status == 401
    assert ann.get("/api/whoami", "ann:new").status == 200


def test_without_a_password_the_old_one_stays(ann):
    assert ann.ask("PUT", "/api/users/ann", body={"tags": ["management"]}).status == 204
    assert ann.get("/api/whoami", ANN).json == {"name": "ann", "tags": ["management"]}


def test_a_deleted_user_is_disconnected_and_its_messages_are_others(ann):
    connection, others = connect(ann), connect(ann, "guest", "guest")
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    assert next(channel.consume("q"))[2] == b"1"
    assert ann.ask("DELETE", "/api/users/ann").status == 204
    with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - user 'ann' is deleted"):
        wait_for_the_end(connection)
    assert others.channel().basic_get("q")[2] == b"1"
    with pytest.raises(ProbableAuthenticationError):
        connect(ann)
    assert ann.get("/api/users/ann").status == ann.ask("DELETE", "/api/users/ann").status == 404
    assert ann.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": ""}).status == 201
    assert ann.get("/api/permissions/%2F/ann").status == 404, "a new one of the same name has no rights"


def test_rights_that_are_taken_away_are_gone_at_once(ann):
    channel = connect(ann).channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    assert ann.ask("PUT", "/api/permissions/%2F/ann", body={**ALL, "write": "^orders$"}).status == 204
    with pytest.raises(
        ChannelClosedByBroker, match=r"access to exchange 'amq\.default' in vhost '/' refused"
    ):
        channel.basic_publish("", "q", b"x")
    assert ann.broker.depth("q") == 3


def test_without_any_rights_nobody_enters(ann):
    channel = connect(ann).channel()
    assert ann.ask("DELETE", "/api/permissions/%2F/ann").status == 204
    with pytest.raises(ChannelClosedByBroker, match="refused for user 'ann'"):
        channel.queue_declare("q")
    with pytest.raises(ProbableAccessDeniedError):
        connect(ann)
    assert ann.ask("DELETE", "/api/permissions/%2F/ann").status == 404


CHANGES = [
    ("GET", "/api/users", None),
    ("GET", "/api/users/guest", None),
    ("PUT", "/api/users/eve", {"password": "x", "tags": "administrator"}),
    ("DELETE", "/api/users/guest", None),
    ("GET", "/api/permissions", None),
    ("GET", "/api/permissions/%2F", None),
    ("GET", "/api/permissions/%2F/guest", None),
    ("PUT", "/api/permissions/%2F/joe", ALL),
    ("DELETE", "/api/permissions/%2F/guest", None),
]


@pytest.mark.parametrize("tags", ["management", "policymaker", "monitoring"])
def test_all_of_it_is_for_administrators(api, tags):
    joe = api.add_user("joe", tags, "/")
    before = api.get("/api/users").json, api.get("/api/permissions").json
    for method, path, body in CHANGES:
        answer = api.ask(method, path, joe, body=body)
        assert (answer.status, answer.json["reason"]) == (401, "Not administrator user"), (method, path)
    assert (api.get("/api/users").json, api.get("/api/permissions").json) == before
    assert api.get("/api/whoami", joe).json == {"name": "joe", "tags": [tags]}


def test_there_is_always_an_administrator(api):
    said = "'guest' is the only administrator: make another one first"
    api.ask("PUT", "/api/users/card", body={"tags": "administrator", "password_hash": ""})
    for method, path, body in (
        ("DELETE", "guest", None),
        ("PUT", "guest", {"tags": "monitoring"}),
        ("PUT", "guest", {"tags": "administrator", "password_hash": ""}),
        ("POST", "bulk-delete", {"users": ["guest", "card"]}),
    ):
        refused = api.ask(method, f"/api/users/{path}", body=body)
        assert (refused.status, refused.json["reason"]) == (400, said)
    api.ask("PUT", "/api/users/root", body={"password": "r", "tags": "administrator"})
    assert api.ask("DELETE", "/api/users/guest", "root:r").status == 204
    assert [each["name"] for each in api.get("/api/users", "root:r").json] == ["card", "root"]


REFUSED = [
    ("/api/users/new", {"password": "x"}, 400, "tags_not_present"),
    ("/api/users/new", {"password": "", "tags": ""}, 400, "at least one character"),
    ("/api/users/new", {"password": 7, "tags": ""}, 400, "password is 7; it must be a string."),
    ("/api/users/new", {"password": "x", "tags": 7}, 400, "tags must be a list of strings"),
    ("/api/users/new", {"password": "x", "tags": ["a b"]}, 400, "'a b' is not a valid tag"),
    ("/api/users/new", {"password": "x", "tag": "a"}, 400, "Field 'tag' is unknown"),
    ("/api/users/new", {"password_hash": "x", "tags": "a"}, 400, "not_base64: password_hash 'x'"),
    ("/api/users/new", {"password_hash": "", "password": "x", "tags": ""}, 400, "both_password_and_"),
    (
        "/api/users/new",
        {"password_hash": "", "tags": "", "hashing_algorithm": "x"},
        400,
        "hashing_algorithm 'x' is unknown",
    ),
    (
        "/api/users/new",
        {
            "password_hash": "$argon2id$v=19$m=9999999,t=1,p=1$bGV2ZXJldC1ndWVzdC0wMA$8JSGC5y2k",
            "tags": "",
            "hashing_algorithm": "leveret_password_hashing_argon2id",
        },
        400,
        "password_hash is not a hash of leveret_password_hashing_argon2id",
    ),
    ("/api/users/new", {"password": "x", "tags": "", "limits": {"max-x": 1}}, 400, "Unrecognised terms"),
    ("/api/users/new", {"password": "x", "tags": "", "limits": 5}, 400, "limits must be an object"),
    ("/api/permissions/%2F/nobody", ALL, 404, "no user 'nobody'"),
    ("/api/permissions/nowhere/guest", ALL, 404, "Not Found"),
    ("/api/permissions/%2F/guest", {"configure": "", "read": ""}, 400, "write is missing"),
    (
        "/api/permissions/%2F/guest",
        {**ALL, "read": "("},
        400,
        "read: '(' is not a regular expression of RE2: missing )",
    ),
    ("/api/permissions/%2F/guest", {**ALL, "write": "^(?!amq)"}, 400, "RE2 has no look-around"),
    ("/api/permissions/%2F/guest", {**ALL, "red": ""}, 400, "Field 'red' is unknown"),
    ("/api/permissions/%2F/guest", {**ALL, "read": "\ud800"}, 400, "not_json"),
    ("/api/users/new", {"password": "x", "tags": ["\ud800"]}, 400, "not_json"),
]


def test_what_can_not_be_is_one_sentence_and_changes_nothing(api):
    before = api.get("/api/users").json, api.get("/api/permissions").json
    for path, body, status, reason in REFUSED:
        answer = api.ask("PUT", path, body=body)
        assert answer.status == status, path
        assert reason in answer.json["reason"]
    assert (api.get("/api/users").json, api.get("/api/permissions").json) == before
    assert api.get("/api/overview").status == 200


def rabbitmq_hash(algorithm, password="pw"):
    hashed = hashlib.new(algorithm, b"salt" + password.encode()).digest()
    return base64.b64encode(b"salt" + hashed).decode()


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "md5"])
def test_a_hash_of_rabbitmq_is_taken_used_and_given_back_as_it_was(api, algorithm):
    given = {
        "password_hash": rabbitmq_hash(algorithm),
        "hashing_algorithm": f"rabbit_password_hashing_{algorithm}",
        "tags": ["management"],
        "name": "ann",
        "limits": {"max-channels": 3},
    }
    assert api.ask("PUT", "/api/users/ann", body=given).status == 201
    assert api.get("/api/whoami", "ann:pw").status == 200
    for wrong in ("ann:PW", "ann:"):
        assert api.get("/api/whoami", wrong).status == 401
    assert api.get("/api/users/ann").json == given, "a login does not replace the hash"
    shown = api.get("/api/users/ann").json
    assert api.ask("PUT", "/api/users/bob", body={**shown, "name": "bob"}).status == 201
    assert api.get("/api/whoami", "bob:pw").status == 200


def test_a_hash_without_an_algorithm_is_of_sha256(api):
    api.ask("PUT", "/api/users/ann", body={"password_hash": rabbitmq_hash("sha256"), "tags": "management"})
    assert api.get("/api/whoami", "ann:pw").status == 200
    assert api.get("/api/users/ann").json["hashing_algorithm"] == "rabbit_password_hashing_sha256"


def test_a_hash_of_leveret_is_given_to_another_user(api):
    api.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": "management"})
    shown = api.get("/api/users/ann").json
    assert shown["hashing_algorithm"] == "leveret_password_hashing_argon2id"
    assert api.ask("PUT", "/api/users/bob", body=shown).status == 201
    assert api.get("/api/whoami", "bob:secret").status == 200


@pytest.mark.parametrize("body", [{}, {"password_hash": ""}])
def test_without_a_password_nobody_logs_in_with_one(api, body):
    assert api.ask("PUT", "/api/users/ann", body={**body, "tags": "management"}).status == 201
    for password in ("", "ann", "x"):
        assert api.get("/api/whoami", f"ann:{password}").status == 401
    shown = api.get("/api/users/ann").json
    assert (shown["password_hash"], shown["hashing_algorithm"]) == ("", "rabbit_password_hashing_sha256")


def test_users_are_deleted_together_or_not_at_all(ann):
    ann.ask("PUT", "/api/users/bob", body={"password": "b", "tags": ""})
    refused = ann.ask("POST", "/api/users/bulk-delete", body={"users": ["ann", "nobody"]})
    assert (refused.status, refused.json["reason"]) == (404, "no user 'nobody'")
    for body, sentence in (
        ({}, "[{key_missing,users}]"),
        ({"users": "bob"}, "users must be a list of strings."),
        ({"users": ["ann", "guest"]}, "'guest' is the only administrator: make another one first"),
    ):
        refused = ann.ask("POST", "/api/users/bulk-delete", body=body)
        assert (refused.status, refused.json["reason"]) == (400, sentence)
    assert len(ann.get("/api/users").json) == 3
    assert ann.ask("POST", "/api/users/bulk-delete", body={"users": ["ann", "bob", "ann"]}).status == 204
    assert [each["name"] for each in ann.get("/api/users").json] == ["guest"]


def test_users_without_permissions_and_permissions_of_a_user(ann):
    ann.ask("PUT", "/api/users/bob", body={"password": "b", "tags": ""})
    assert [each["name"] for each in ann.get("/api/users/without-permissions").json] == ["bob"]
    assert ann.get("/api/users/ann/permissions").json == [{"user": "ann", "vhost": "/", **ALL}]
    assert ann.get("/api/users/bob/permissions").json == []
    assert ann.get("/api/users/nobody/permissions").status == 404


def test_any_bytes_are_a_name_and_a_password(api):
    body = {"password": "\u00fc:\u2603", "tags": "management"}
    assert api.ask("PUT", "/api/users/%FF%2F", body=body).status == 201
    assert {each["name"] for each in api.get("/api/users").json} == {"guest", "Not UTF-8, base64 is: /y8="}
    api.ask("PUT", "/api/users/bj%C3%B6rn", body=body)
    assert api.get("/api/whoami", "bj\u00f6rn:\u00fc:\u2603").json["name"] == "bj\u00f6rn"
