"""What a client is told when something is wrong, and what it is not."""

import logging
import socket

import pytest

from leveret.amqp.errors import InternalError
from leveret.broker.errors import BrokerError, PreconditionFailed
from leveret.fronts.http.errors import STATUSES, problem_of
from leveret.storage.errors import StorageFull, StorePoisoned
from tests.processes import WAIT_S, wait_until


def test_a_path_that_is_not_there_is_not_found(api):
    for path in ("/", "/nope", "/api", "/api/nope", "/api/overview/more"):
        answer = api.get(path)
        assert (answer.status, answer.json) == (404, {"error": "Object Not Found", "reason": "Not Found"})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/overview", {"GET", "HEAD"}),
        ("DELETE", "/health", {"GET", "HEAD"}),
        ("GET", "/api/queues/%2F/q/contents", {"DELETE"}),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused(api, method, path, allowed):
    answer = api.ask(method, path)
    assert (answer.status, answer.json["error"]) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_head_has_the_headers_of_get_and_no_body(api):
    answer = api.ask("HEAD", "/api/overview")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 100


def test_a_slash_at_the_end_makes_no_difference(api):
    assert api.get("/api/overview/").json == api.get("/api/overview").json


def test_a_mistake_of_ours_is_logged_and_not_shown(api, monkeypatch, caplog):
    def broken(self, **_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("leveret.broker.queues.queue.Queue.purge", broken)
    api.add_queue("q")
    with caplog.at_level(logging.ERROR):
        answer = api.ask("DELETE", "/api/queues/%2F/q/contents")
        assert api.get("/api/queues/%2F/q").status == 200
        api.run(api.listener.stop())  # it is logged after the answer
    assert (answer.status, answer.json["error"]) == (500, "internal_error")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert caplog.text.count("Traceback") == 1
    assert "secret detail" in caplog.text


def test_a_full_disk_is_told_with_its_hint(api, monkeypatch, caplog):
    def full(self, **_):
        raise StorageFull("wal", OSError(28, "No space left on device"))

    monkeypatch.setattr("leveret.broker.queues.queue.Queue.purge", full)
    api.add_queue("q")
    answer = api.ask("DELETE", "/api/queues/%2F/q/contents")
    assert (answer.status, answer.json["error"]) == (503, "unavailable")
    assert "No space left on device" in answer.json["reason"]
    assert "Free some space" in answer.json["reason"]
    assert caplog.text == ""


def test_every_error_of_the_broker_has_a_status():
    assert set(STATUSES) == set(BrokerError.__subclasses__())


def test_the_sentence_of_an_error_is_told():
    problem = problem_of(PreconditionFailed("queue 'q' in vhost '/' in use"))
    assert (problem.status_code, problem.word) == (400, "bad_request")
    assert problem.detail == "queue 'q' in vhost '/' in use"


def test_a_store_that_can_promise_nothing_is_unavailable():
    assert problem_of(StorePoisoned("wal", OSError(5, "Input/output error"))).status_code == 503


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), OSError(5, "x"), AttributeError("x", name="NOT_FOUND"), InternalError("x")],
)
def test_other_errors_are_not_translated(error):
    assert problem_of(error) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"GET /api/queues HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /api/queues/%zz/%00%ff HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n",
        b"GET http://x/api/overview HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["noise", "amqp", "negative length", "long path", "bad escapes", "absolute path", "asterisk"],
)
def test_bad_requests_are_refused_without_a_word_in_the_log(api, caplog, data):
    with socket.create_connection(("127.0.0.1", api.listener.port), timeout=WAIT_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert api.get("/health").status == 200
    assert caplog.text == ""


def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_nothing_in_the_log(api, caplog):
    with socket.create_connection(("127.0.0.1", api.listener.port), timeout=WAIT_S) as connection:
        head = b"PUT /api/users/ann HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
    wait_until(lambda: not api.listener.connections, "the broker has seen the end")
    assert api.get("/health").status == 200
    assert caplog.text == ""
