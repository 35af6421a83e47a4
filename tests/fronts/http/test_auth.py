"""Who is let in, and into which virtual hosts: the rules of RabbitMQ's management API."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.broker.access import passwords
from leveret.broker.access.failed_logins import DELAY_MAX_US, FREE_FAILURES
from leveret.fronts.http.auth import credentials
from leveret.fronts.http.errors import NotAuthenticated
from tests.processes import WAIT_S

LOGIN_FAILED = {"error": "not_authorized", "reason": "Login failed"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/overview"),
        ("GET", "/api/queues"),
        ("GET", "/api/queues/%2F"),
        ("GET", "/api/queues/%2F/q"),
        ("DELETE", "/api/queues/%2F/q/contents"),
    ],
)
def test_everything_asks_for_a_name_and_a_password(api, method, path):
    api.add_queue("q", 1)
    for user in (None, "guest:wrong", "nobody:guest", "guest:", "guest", ":guest"):
        answer = api.ask(method, path, user)
        assert (answer.status, answer.json) == (401, LOGIN_FAILED), user
        assert answer.headers["www-authenticate"] == 'Basic realm="Leveret"'
    assert api.broker.depth("q") == 1


def test_a_password_may_hold_colons(api):
    assert api.get("/api/overview", api.add_user("ann", "administrator")).status == 200


def test_a_user_without_a_tag_for_it_is_not_let_in(api):
    answer = api.get("/api/overview", api.add_user("joe", "", "/"))
    assert (answer.status, answer.json) == (
        401,
        {"error": "not_authorised", "reason": "Not management user"},
    )
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring"])
def test_a_virtual_host_is_shown_to_those_with_permissions_on_it(api, tag):
    api.add_queue("q", 1)
    bob = api.add_user("bob", tag)
    assert api.get("/api/queues", bob).json == []
    refused = {"error": "not_authorised", "reason": "User not authorised to access virtual host"}
    for path in ("/api/queues/%2F", "/api/queues/%2F/q", "/api/queues/%2F/nope"):
        answer = api.get(path, bob)
        assert (answer.status, answer.json) == (401, refused)
    assert api.ask("DELETE", "/api/queues/%2F/q/contents", bob).json == refused
    assert api.broker.depth("q") == 1
    assert api.get("/api/queues/nope", bob).status == 404


def test_an_administrator_sees_all_virtual_hosts_but_needs_permissions_to_change_them(api):
    api.add_queue("q", 1)
    bob = api.add_user("bob", "administrator")
    assert [queue["name"] for queue in api.get("/api/queues", bob).json] == ["q"]
    assert api.get("/api/queues/%2F/q", bob).status == 200
    refused = {"error": "not_authorised", "reason": "Access refused."}
    assert api.ask("DELETE", "/api/queues/%2F/q/contents", bob).json == refused
    message = {"properties": {}, "routing_key": "q", "payload": "", "payload_encoding": "string"}
    assert api.ask("POST", "/api/exchanges/%2F/amq.default/publish", bob, body=message).json == refused
    assert api.broker.depth("q") == 1


def test_guest_is_let_in_from_loopback_only(api):
    guest = b"Basic Z3Vlc3Q6Z3Vlc3Q="
    for peer in (("127.0.0.1", 1), ("127.8.8.8", 1), ("::1", 1)):
        assert api.run(status_of(api.app, peer, guest)) == 200, peer
    for peer in (("192.0.2.1", 1), ("fe80::1%eth0", 1), ("::ffff:192.0.2.1", 1), None):
        assert api.run(status_of(api.app, peer, guest)) == 401, peer


def test_other_users_come_from_anywhere(api):
    api.add_user("ann", "management")
    assert api.run(status_of(api.app, ("192.0.2.1", 1), b"Basic YW5uOnBhc3M6d29yZA==")) == 200


def test_a_header_can_not_make_a_peer_local_or_foreign(api):
    forwarded = {"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
    assert api.ask("GET", "/api/overview", **forwarded).status == 200


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !!!", "Basic Z3Vlc3Q", "Bearer Z3Vlc3Q6Z3Vlc3Q=", "Basic grün", "Basic Z3Vlc3Q="],
)
def test_a_header_that_is_not_basic_authentication_names_nobody(header):
    with pytest.raises(NotAuthenticated):
        credentials(header)


def test_a_name_that_is_not_utf_8_is_read_as_amqp_reads_it():
    assert credentials("basic /zpw") == ("\udcff", b"p")


class Held:
    """Stands in for a function of `passwords`: calls of it wait until `go_on` is set."""

    def __init__(self, monkeypatch, name):
        self.began, self.go_on = threading.Event(), threading.Event()
        self._function = getattr(passwords, name)
        monkeypatch.setattr(passwords, name, self)

    def __call__(self, *arguments):
        self.began.set()
        self.go_on.wait(WAIT_S)
        return self._function(*arguments)


def test_requests_are_answered_while_a_password_is_hashed(api, monkeypatch):
    assert api.get("/api/whoami").status == 200
    held = Held(monkeypatch, "is_password")
    with ThreadPoolExecutor(1) as others:
        bad = others.submit(api.get, "/api/overview", "guest:wrong")
        try:
            assert held.began.wait(WAIT_S)
            assert api.get("/health", None).status == 200
            assert api.get("/api/overview").status == 200
            assert not bad.done()
        finally:
            held.go_on.set()
        assert (bad.result().status, bad.result().json) == (401, LOGIN_FAILED)


def test_requests_are_answered_while_the_password_of_a_new_user_is_hashed(api, monkeypatch):
    assert api.get("/api/whoami").status == 200
    held = Held(monkeypatch, "hash_password")
    with ThreadPoolExecutor(1) as others:
        body = {"password": "secret", "tags": "management"}
        put = others.submit(api.ask, "PUT", "/api/users/ann", body=body)
        try:
            assert held.began.wait(WAIT_S)
            assert api.get("/api/users/ann").status == 404
        finally:
            held.go_on.set()
        assert put.result().status == 201
    assert api.get("/api/whoami", "ann:secret").status == 200


def test_after_many_failures_a_request_waits_before_its_password_is_looked_at(leveret_clock, api):
    def waiting():
        return api.broker.server.broker.logins._waiting_count

    for number in range(FREE_FAILURES + 1):
        assert api.get("/api/overview", f"nobody:{number}").status == 401
    with ThreadPoolExecutor(1) as others:
        late = others.submit(api.get, "/api/overview", "guest:guest")
        api.broker.wait_until(lambda: waiting() == 1, "the request waits")
        assert api.get("/health", None).status == 200
        assert not late.done()
        leveret_clock.advance(DELAY_MAX_US / 1e6)
        assert late.result().status == 200


def test_a_password_that_can_not_be_hashed_now_is_a_status_of_its_own(api, monkeypatch):
    assert api.get("/api/whoami").status == 200
    logins = api.broker.server.broker.logins
    monkeypatch.setattr(logins, "_hasher", lambda job, done: done(None))
    answer = api.ask("PUT", "/api/users/ann", body={"password": "secret", "tags": ""})
    assert (answer.status, answer.json["error"]) == (503, "unavailable")
    assert api.get("/api/users/ann").status == 404


async def status_of(app, peer, authorization):
    """The application without a network, asked by a peer of any address."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/overview",
        "raw_path": b"/api/overview",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", authorization)],
        "client": peer,
    }
    await app(scope, receive, send)
    return sent[0]["status"]
