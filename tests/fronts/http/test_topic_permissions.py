"""Topic permissions over HTTP, in RabbitMQ's words, and what they do to clients, also when undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leveret.broker.access import administration, topic_permissions
from leveret.broker.access.passwords import hash_password
from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api
from tests.fronts.http.views import reason
from tests.semantics.client import Channel, Client, ClosedByBroker

ANN = "/api/topic-permissions/%2F/ann"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def ann(api: Api) -> Iterator[Channel]:
    """A channel of a user who may do everything in `/`."""
    assert api.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": ""}).status == 201
    assert api.ask("PUT", "/api/permissions/%2F/ann", body=ALL).status == 201
    client = Client(api.broker.port, user="ann", password="secret")
    yield client.channel().confirm_select()
    client.vanish()


def put(api: Api, exchange: str = "amq.topic", write: str = ".*", read: str = ".*") -> int:
    return api.ask("PUT", ANN, body={"exchange": exchange, "write": write, "read": read}).status


def refusal(do: Callable[[], Any]) -> str:
    with pytest.raises(ClosedByBroker) as refused:
        do()
    assert refused.value.code == 403
    return refused.value.text


def test_topic_permissions_are_put_shown_and_deleted(api: Api, ann: Channel) -> None:
    assert api.get("/api/topic-permissions").json == []
    assert api.get(ANN).status == 404
    assert [put(api, "b", "^w", "^r"), put(api, "a"), put(api, "b", "", "x")] == [201, 204, 204]
    rows = [
        {"user": "ann", "vhost": "/", "exchange": "a", "write": ".*", "read": ".*"},
        {"user": "ann", "vhost": "/", "exchange": "b", "write": "", "read": "x"},
    ]
    of_user, in_vhost = "/api/users/ann/topic-permissions", "/api/vhosts/%2F/topic-permissions"
    for path in ("/api/topic-permissions", ANN, in_vhost, of_user):
        assert api.get(path).json == rows, path
    assert api.get("/api/users/guest/topic-permissions").json == []
    for path in ("/api/users/nobody/topic-permissions", "/api/vhosts/nowhere/topic-permissions"):
        assert api.get(path).status == 404
    assert [api.ask("DELETE", ANN).status for _ in range(2)] == [204, 404]
    assert api.get("/api/topic-permissions").json == []


def test_a_change_holds_at_once_for_a_key_that_was_published_with_before(api: Api, ann: Channel) -> None:
    ann.publish_confirmed("a.b", "1", exchange="amq.topic")
    assert put(api, write="^a$") == 201
    text = refusal(lambda: ann.publish_confirmed("a.b", "2", exchange="amq.topic"))
    assert text == (
        "ACCESS_REFUSED - access to topic 'a.b' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    )
    api.ask("DELETE", ANN)
    ann.client.channel().confirm_select().publish_confirmed("a.b", "3", exchange="amq.topic")


def test_permissions_of_others_and_of_other_types_of_exchanges_do_not_count(api: Api, ann: Channel) -> None:
    for exchange in ("", "amq.direct", "amq.topic"):
        put(api, exchange, "^none$", "^none$")
    ann.publish_confirmed("key", "1", exchange="amq.direct")
    ann.publish_confirmed("key", "2")
    guest = Client(api.broker.port).channel().confirm_select()
    guest.publish_confirmed("key", "3", exchange="amq.topic")
    guest.client.vanish()


def test_topic_permissions_go_with_the_user_and_stay_without_other_permissions(
    api: Api, ann: Channel
) -> None:
    put(api)
    api.ask("DELETE", "/api/permissions/%2F/ann")
    assert api.get(ANN).status == 200
    api.ask("DELETE", "/api/users/ann")
    assert api.get(ANN).status == 404
    api.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": ""})
    assert api.get(ANN).status == 404, "a new user of this name has none"


def test_topic_permissions_that_can_not_be_written_are_undone(api: Api, ann: Channel) -> None:
    put(api, write="^old$")
    definitions = api.broker.definitions
    definitions.fill()  # type: ignore[union-attr]
    try:
        assert put(api, write="^new$") == 503
    finally:
        definitions.heal()  # type: ignore[union-attr]
    assert [row["write"] for row in api.get(ANN).json] == ["^old$"]
    ann.publish_confirmed("old", "1", exchange="amq.topic")
    assert "topic 'new'" in refusal(lambda: ann.publish_confirmed("new", "2", exchange="amq.topic"))


def test_topic_permissions_survive_a_restart() -> None:
    with Broker() as broker:
        inside = broker.server.broker

        def change() -> None:
            broker.server.turns.begin()
            hashed = hash_password(b"secret", b"salt")
            administration.put_user(inside, "ann", password_hash=hashed, tags=[])
            topic_permissions.permit_topic(inside, "/", "ann", "amq.topic", write="^w", read="^r")

        broker.call(change)
        broker.restart()
        user = broker.server.broker.accounts.users["ann"]
        assert user.topic_permissions == {"/": {"amq.topic": {"write": "^w", "read": "^r"}}}


REFUSED = [
    ({}, "[{key_missing,exchange},{key_missing,write},{key_missing,read}]"),
    ({"exchange": "t"}, "[{key_missing,write},{key_missing,read}]"),
    ({"exchange": 5, "write": "", "read": ""}, "exchange is 5; it must be a string."),
    ({"exchange": None, "write": "", "read": ""}, "exchange is null; it must be a string."),
    ({"exchange": "t", "write": "", "read": "("}, "read: '(' is not a regular expression of RE2"),
    ({"exchange": "\ud800", "write": "", "read": ""}, "not_json"),
    ({"exchange": "t", "write": "", "read": "", "red": ""}, "Field 'red' is unknown"),
]


def test_wrong_topic_permissions_are_refused_with_one_sentence(api: Api, ann: Channel) -> None:
    for body, sentence in REFUSED:
        answer = api.ask("PUT", ANN, body=body)
        assert answer.status == 400
        assert sentence in reason(answer)
    for path in ("%2F/nobody", "nowhere/ann"):
        body = {"exchange": "t", "write": "", "read": ""}
        answer = api.ask("PUT", f"/api/topic-permissions/{path}", body=body)
        assert (answer.status, reason(answer)) == (400, "vhost_or_user_not_found")
    assert api.get("/api/topic-permissions").json == []
