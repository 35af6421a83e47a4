"""Tokens over HTTP, and requests that pages of other sites make browsers send."""

import pytest

from leveret.fronts.http.api_limits import ApiLimits
from tests.fronts.http.test_auth import LOGIN_FAILED, status_of

REFUSED = {"error": "not_authorized", "reason": "The token is unknown or has ended. Log in again."}


def token_of(api, user="guest:guest"):
    return api.ask("POST", "/api/login", user).json["token"]


def with_token(api, method, path, token, **more):
    return api.ask(method, path, None, Authorization=f"Bearer {token}", **more)


def test_a_login_returns_a_token_that_replaces_the_password(api):
    answer = api.ask("POST", "/api/login", api.add_user("ann", "monitoring,other"))
    token = answer.json.pop("token")
    assert answer.json | {"token": ""} == {
        "token": "",
        "expires_in": 3600,
        "user": "ann",
        "tags": ["monitoring", "other"],
    }
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers
    assert with_token(api, "GET", "/api/whoami", token).json["name"] == "ann"


def test_a_token_changes_what_its_user_may_change(api):
    assert with_token(api, "PUT", "/api/vhosts/new", token_of(api)).status == 201
    refused = with_token(api, "PUT", "/api/vhosts/newer", token_of(api, api.add_user("bob", "management")))
    assert refused.json == {"error": "not_authorised", "reason": "Not administrator user"}


def test_a_token_ends_at_a_logout(api):
    token, other = token_of(api), token_of(api)
    assert with_token(api, "DELETE", "/api/login", token).status == 204
    answer = with_token(api, "GET", "/api/whoami", token)
    assert (answer.status, answer.json) == (401, REFUSED)
    assert answer.headers["www-authenticate"] == 'Bearer realm="Leveret", error="invalid_token"'
    assert with_token(api, "GET", "/api/whoami", other).status == 200


def test_a_password_ends_all_tokens_of_its_user(api):
    tokens = [token_of(api) for _ in range(3)]
    assert api.ask("DELETE", "/api/login").status == 204
    assert {with_token(api, "GET", "/api/whoami", token).status for token in tokens} == {401}


def test_a_token_ends_after_its_time(leveret_clock, api):
    token = token_of(api)
    leveret_clock.advance(ApiLimits().token_life_s + 1)
    assert with_token(api, "GET", "/api/whoami", token).json == REFUSED


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/users/ann", {"password": "new", "tags": "administrator"}),
        ("PUT", "/api/users/ann", {"tags": ""}),
        ("DELETE", "/api/users/ann", None),
    ],
)
def test_a_token_ends_with_its_user_password_or_tags(api, method, path, body):
    token = token_of(api, api.add_user("ann", "administrator"))
    assert api.ask(method, path, body=body).status == 204
    assert with_token(api, "GET", "/api/whoami", token).json == REFUSED


def test_a_token_gets_no_other_token(api):
    answer = with_token(api, "POST", "/api/login", token_of(api))
    assert (answer.status, answer.json["error"]) == (401, "not_authorised")


def test_a_user_without_a_tag_gets_no_token(api):
    assert api.ask("POST", "/api/login", api.add_user("joe", "", "/")).json["reason"] == "Not management user"
    assert api.ask("POST", "/api/login", "guest:wrong").json == LOGIN_FAILED


@pytest.mark.parametrize("word", ["", "x", "grün", "Z3Vlc3Q6Z3Vlc3Q=", "a" * 4000])
def test_a_word_that_is_no_token_lets_nobody_in(api, word):
    header = f"Bearer {word}".encode().decode("latin-1")
    assert api.ask("GET", "/api/overview", None, Authorization=header).json == REFUSED


def test_a_token_of_guest_is_for_loopback_only(api):
    header = f"Bearer {token_of(api)}".encode()
    assert api.run(status_of(api.app, ("127.0.0.1", 1), header)) == 200
    assert api.run(status_of(api.app, ("192.0.2.1", 1), header)) == 401


def test_no_report_and_no_user_holds_a_token(api):
    token = token_of(api)
    with_token(api, "PUT", "/api/vhosts/new", token)
    with_token(api, "DELETE", "/api/login", token)
    assert [action["path"] for action in api.actions] == ["/api/login", "/api/vhosts/new", "/api/login"]
    assert token not in repr(api.actions)
    assert token not in repr(vars(api.broker.server.broker.logins.tokens))


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://example.com"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://[::1"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_changes_nothing(api, headers):
    api.add_queue("q", 1)
    message = {"properties": {}, "routing_key": "q", "payload": "", "payload_encoding": "string"}
    for method, path, body in (
        ("DELETE", "/api/queues/%2F/q/contents", None),
        ("POST", "/api/exchanges/%2F/amq.default/publish", message),
        ("PUT", "/api/vhosts/new", None),
        ("POST", "/api/login", None),
        ("POST", "/api/definitions", {}),
        ("GET", "/api/aliveness-test/%2F", None),
    ):
        answer = api.ask(method, path, body=body, **{"Content-Type": "text/plain"}, **headers)
        assert (answer.status, answer.json["error"]) == (403, "forbidden"), path
    assert api.broker.depth("q") == 1
    assert len(api.get("/api/vhosts").json) == 1
    assert len(api.get("/api/queues").json) == 1


def test_a_page_of_another_site_reads_no_answer(api):
    for method in ("GET", "OPTIONS"):
        answer = api.ask(method, "/api/overview", Origin="https://example.com")
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_of_the_broker_and_programs_change_things(api):
    own = f"127.0.0.1:{api.listener.port}"
    for number, headers in enumerate(
        (
            {},
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{own}"},
            {"Origin": f"https://{own}"},
        )
    ):
        assert api.ask("PUT", f"/api/vhosts/v{number}", **headers).status == 201, headers
