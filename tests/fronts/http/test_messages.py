"""Publishing and getting over HTTP; `tests/differential/test_management.py` compares both with RabbitMQ."""

from base64 import b64encode

import pytest

from leveret.broker.operations import messages as operations
from leveret.broker.operations.messages import RequestChannel
from leveret.fronts.http import messages
from tests.fronts.http.views import crashed_and_started

PUBLISH = "/api/exchanges/%2F/amq.default/publish"
GET = "/api/queues/%2F/q/get"
MESSAGE = {"properties": {}, "routing_key": "q", "payload": "hello", "payload_encoding": "string"}
GOT = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}


def publish(api, **changes):
    return api.ask("POST", PUBLISH, body={**MESSAGE, **changes})


def get(api, **changes):
    return api.ask("POST", GET, body={**GOT, **changes}).json


@pytest.fixture(autouse=True)
def nobody_stays(api):
    """After every request its session is gone, and nothing is in flight to it."""
    yield
    core = api.broker.server.broker
    assert [session.name for session in core.sessions if session.name == "HTTP request"] == []
    assert all(queue.unacked == 0 for queue in core.vhosts["/"].queues.values())


def test_a_publish_is_answered_when_the_message_is_on_disk(api):
    api.ask("PUT", "/api/queues/%2F/q", body={"durable": True})
    for number in range(3):
        assert publish(api, payload=f"{number}", properties={"delivery_mode": 2}).json == {"routed": True}
    again = crashed_and_started(api)
    assert [message["payload"] for message in get(again, count=5)] == ["0", "1", "2"]
    again.run(again.listener.stop())


def test_a_message_comes_back_as_it_was_published(api):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    properties = {
        "content_type": "text/plain",
        "headers": {"number": 7, "text": "grün", "list": [1.5, True, {"deep": "x"}]},
        "delivery_mode": 2,
        "priority": 3,
        "timestamp": 1_700_000_000,
        "message_id": "m",
    }
    publish(api, payload="grün", properties=properties)
    (found,) = get(api)
    assert found == {
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 0,
        "properties": properties,
        "payload": "grün",
        "payload_encoding": "string",
    }


def test_bodies_that_are_not_utf_8_are_in_base64(api):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    encoded = b64encode(b"\xff\x00").decode()
    publish(api, payload=encoded, payload_encoding="base64")
    (found,) = get(api)
    assert (found["payload"], found["payload_encoding"], found["properties"]) == (encoded, "base64", [])


def test_each_ack_mode_does_what_its_name_says(api):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    for payload in "abc":
        publish(api, payload=payload)
    modes = ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false", "reject_requeue_false")
    found = [[message["payload"] for message in get(api, ackmode=mode, count=2)] for mode in modes]
    assert found == [["a", "b"], ["a", "b"], ["a", "b"], ["c"]]
    assert api.broker.depth("q") == 0


def test_a_message_rejected_over_http_is_dead_lettered(api):
    api.ask("PUT", "/api/queues/%2F/dead", body={})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.ask("PUT", "/api/queues/%2F/q", body={"arguments": arguments})
    publish(api)
    get(api, ackmode="reject_requeue_false")
    api.broker.wait_until_depth("dead", 1)


def test_a_message_that_a_full_queue_refuses_is_rejected(api):
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    api.ask("PUT", "/api/queues/%2F/q", body={"arguments": arguments})
    assert publish(api).json == {"routed": True}
    answer = publish(api)
    assert (answer.status, answer.json) == (400, {"error": "bad_request", "reason": "rejected"})
    assert api.broker.depth("q") == 1


def test_nothing_is_published_while_publishers_are_blocked(api):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    core = api.broker.server.broker
    api.broker.call(lambda: core.set_alarm("memory", on=True, source="test"))
    answer = publish(api)
    api.broker.call(lambda: core.set_alarm("memory", on=False, source="test"))
    assert (answer.status, answer.json["error"]) == (503, "unavailable")
    assert "low on memory" in answer.json["reason"]
    assert api.broker.depth("q") == 0


def test_a_get_returns_no_more_than_fits_into_memory(api, monkeypatch):
    monkeypatch.setattr(messages, "_GET_BYTES_MAX", 100)
    api.ask("PUT", "/api/queues/%2F/q", body={})
    for _ in range(5):
        publish(api, payload="x" * 30)
    assert len(get(api, count=-1, ackmode="ack_requeue_false")) == 2
    assert api.broker.depth("q") == 3


@pytest.mark.parametrize("count", [31, 32, 33, 100])
def test_a_long_get_lets_others_have_a_turn(api, count):
    api.add_queue("q", 100)
    assert len(get(api, count=count, ackmode="ack_requeue_false", truncate=0)) == count
    assert api.broker.depth("q") == 100 - count


def test_a_request_ends_at_once_when_its_session_is_closed(api):
    api.add_queue("q", 1)
    core, found = api.broker.server.broker, []

    def request():
        with RequestChannel(core, api.guest, "/", begin=lambda: None) as channel:
            operations.get(channel, "q", no_ack=False, done=found.append)
            channel.expect_confirm(found.append)
            channel.expect_answer(lambda: found.append("answered"))
            (session,) = core.sessions
            session.peer.force_close("the user was deleted")

    api.broker.call(request)
    message, *others = found
    assert (message.key, message.body) == ("q", b"x")
    assert others == [(False, True), "answered"]
    assert api.broker.depth("q") == 1


def test_a_large_message_is_taken_and_a_larger_one_is_not(api):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    assert publish(api, payload="x" * (3 << 20)).json == {"routed": True}
    assert publish(api, payload="x" * messages.PUBLISH_BYTES_MAX).status == 413
    assert api.ask("POST", PUBLISH, "guest:wrong", body=b"x" * 100_000).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        b'{"a": 1e400}',
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"' + b"k" * 256 + b'": 1}',
        b'{"a": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
        b'{"a": -9223372036854775809}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_values_that_no_field_table_holds_are_refused(api, headers):
    api.ask("PUT", "/api/queues/%2F/q", body={})
    body = b'{"properties": {"headers": %b}, "routing_key": "q", "payload": "", "payload_encoding": "string"}'
    answer = api.ask("POST", PUBLISH, body=body % headers)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    declared = api.ask("PUT", "/api/queues/%2F/new", body=b'{"arguments": %b}' % headers)
    assert declared.status == 400
    assert [queue["name"] for queue in api.get("/api/queues").json] == ["q"]
    assert api.broker.depth("q") == 0
