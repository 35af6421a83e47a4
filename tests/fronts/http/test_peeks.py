"""Looking at messages by offset over HTTP, without touching them."""

import json

import pika
import pytest

from leveret.broker.queries.row_routing import RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.views import peeked
from leveret.broker.views.peeked import Filters
from leveret.storage.records import Record
from tests.fronts.http.views import reason

MESSAGES = "/api/queues/%2F/q/messages"
HEADER = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00"


@pytest.fixture
def queue(api, channel):
    """Six messages with headers and JSON bodies; the first is settled, the second in flight."""
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "#")
    for number in range(6):
        headers = {"region": "eu" if number % 2 else "us", "number": number}
        body = json.dumps({"customer": {"id": number}, "items": ["a", number]}).encode()
        properties = pika.BasicProperties(headers=headers, message_id=f"m-{number}")
        channel.basic_publish("amq.topic", f"order.{number}", body, properties)
    channel.basic_get("q", auto_ack=True)
    channel.basic_get("q")
    return api.broker.server.broker.vhosts["/"].plain_queues["q"]


def offsets(api, query=""):
    return [message["offset"] for message in api.get(f"{MESSAGES}?{query}").json["messages"]]


def test_a_message_is_shown_with_its_state_and_stays_as_it_was(api, queue):
    before = api.broker.call(lambda: queue.cursor.progress.encode())
    shown = api.get(f"{MESSAGES}?count=2").json
    assert (shown["scanned"], shown["next"]) == (2, 3)
    first, second = shown["messages"]
    assert (first["state"], second["state"]) == ("in_flight", "ready")
    assert first.pop("stored_ms") > 0
    assert first == {
        "offset": 1,
        "state": "in_flight",
        "returns": 0,
        "redelivered": False,
        "exchange": "amq.topic",
        "routing_key": "order.1",
        "properties": {"headers": {"region": "eu", "number": 1}, "message_id": "m-1"},
        "payload_bytes": 42,
        "payload": '{"customer": {"id": 1}, "items": ["a", 1]}',
        "payload_encoding": "string",
    }
    assert api.broker.call(lambda: queue.cursor.progress.encode()) == before


def test_messages_are_shown_from_an_offset_on(api, queue):
    assert offsets(api, "from=4") == [4, 5]
    assert offsets(api, "from=6") == offsets(api, "from=9999999999") == offsets(api, "count=0") == []
    assert api.get(f"{MESSAGES}?from=4").json["next"] is None


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("key=order.3", [3]),
        ("key=order", []),
        ("key=%5Eorder.%5B34%5D&use_regex=true", [3, 4]),
        ("header.region=eu", [1, 3, 5]),
        ("header.number=4", [4]),
        ("header.region=eu&header.number=3", [3]),
        ("header.missing=null", []),
        ("json.customer.id=2", [2]),
        ("json.items.1=5&header.region=eu", [5]),
        ("json.items.0=a&use_regex=true&key=5$", [5]),
        ("json.customer.id.x=2", []),
        ("message_id=m-4", [4]),
        ("state=in_flight", [1]),
        ("state=ready,in_flight", [1, 2, 3, 4, 5]),
    ],
)
def test_filters_choose_messages(api, queue, query, found):
    assert offsets(api, query) == found


def test_settled_messages_are_shown_if_they_are_asked_for_and_still_there(api, queue):
    assert offsets(api, "from=0") == [1, 2, 3, 4, 5]
    assert offsets(api, "from=0&state=settled") == [0]


def test_a_stream_is_shown_with_the_states_of_a_group(api, orders, join):
    member = join(prefetch=2)
    member.take(2)
    path = "/api/queues/%2F/orders-0/messages?count=3"
    assert [each["state"] for each in api.get(path).json["messages"]] == ["ready"] * 3
    found = api.get(f"{path}&group=billing").json["messages"]
    assert [each["state"] for each in found] == ["in_flight", "in_flight", "ready"]


def test_rows_of_a_batch_that_is_not_committed_are_not_shown(api, channel):
    channel.queue_declare("q")
    options = RowOptions(api.guest, mandatory=True, unroutable=None, timeout_us=60_000_000)

    def stage():
        rows = [(b"", b"q", HEADER, b"x")] * 3
        api.broker.server.broker.vhosts["/"].batches().write(StageName("lake", 4, "task"), rows, options)

    api.broker.call(stage)
    assert api.get(f"{MESSAGES}?state=hidden").json == {"messages": [], "scanned": 3, "next": None}


def test_bodies_are_cut_and_encoded_as_asked(api, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"\xff\x00<b>")
    (found,) = api.get(f"{MESSAGES}?truncate=2").json["messages"]
    assert (found["payload"], found["payload_encoding"], found["payload_bytes"]) == ("/wA=", "base64", 5)
    (found,) = api.get(f"{MESSAGES}?truncate=0&encoding=base64").json["messages"]
    assert (found["payload"], found["payload_encoding"]) == ("", "base64")


def test_one_request_reads_and_answers_a_limited_amount(api, queue, monkeypatch):
    monkeypatch.setattr(peeked, "SCANNED_MAX", 3)
    assert api.get(f"{MESSAGES}?key=order.5").json == {"messages": [], "scanned": 3, "next": 4}
    monkeypatch.setattr(peeked, "BYTES_MAX", 50)
    shown = api.get(MESSAGES).json
    assert ([each["offset"] for each in shown["messages"]], shown["next"]) == ([1], 2)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("key=%28&use_regex=true", "not a regular expression"),
        ("headers.region=eu", "headers.region is not a parameter"),
        ("state=lost", "'lost' is not a state"),
        ("encoding=hex", "Unsupported encoding"),
        ("from=-1", "whole number"),
        ("&".join(f"header.{number}=x" for number in range(17)), "17 filters are too many"),
    ],
)
def test_what_makes_no_sense_is_refused(api, queue, query, why):
    answer = api.get(f"{MESSAGES}?{query}")
    assert (answer.status, why in reason(answer)) == (400, True)


def test_bodies_need_the_read_permission_even_of_administrators(api, queue):
    reader = api.add_user("reader", "management", "/", read="q")
    assert api.get(MESSAGES, reader).status == 200
    for name, tag, read in (("other", "management", "x"), ("root", "administrator", None)):
        user = api.add_user(name, tag) if read is None else api.add_user(name, tag, "/", read=read)
        answer = api.get(MESSAGES, user)
        assert (answer.status, "refused for user" in reason(answer)) == (401, True)


def test_an_exclusive_queue_is_for_its_connection_alone(api, channel):
    channel.queue_declare("q", exclusive=True)
    answer = api.get(MESSAGES)
    assert (answer.status, "exclusive access" in reason(answer)) == (400, True)


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b"", b'"text"', b"[1]", b"1e999"])
def test_bodies_of_any_kind_have_no_field(body):
    matches = Filters(fields={"a.b": "1"}).compiled()
    assert not matches(Record(0, 0, b"", b"", HEADER, body, 0, 0))
