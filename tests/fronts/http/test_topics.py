"""Topics over HTTP: made, grown, looked at and deleted."""

import pytest

from tests.fronts.http.conftest import Api

ORDERS = "/api/topics/%2F/orders"


def reason(answer):
    return answer.json["reason"]


def test_a_topic_is_made_and_shows_its_partitions(api):
    made = api.ask("PUT", ORDERS, body={"partitions": 2, "max_age": "7D", "max_bytes": 1_000_000})
    empty = {"first": 0, "end": 0, "messages": 0, "bytes": 0, "readers": 0}
    assert (made.status, made.json) == (
        201,
        {
            "vhost": "/",
            "name": "orders",
            "partitions": [{"stream": "orders-0", **empty}, {"stream": "orders-1", **empty}],
            "messages": 0,
            "bytes": 0,
            "groups": [],
            "max_age": "7D",
            "max_bytes": 1_000_000,
        },
    )
    assert api.get(ORDERS).json == made.json
    stream = api.get("/api/queues/%2F/orders-1").json
    expected = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1_000_000}
    assert (stream["type"], stream["durable"], stream["arguments"]) == ("stream", True, expected)


def test_what_is_published_to_it_is_in_one_of_its_partitions(api, channel):
    api.ask("PUT", ORDERS, body={"partitions": 4})
    for number in range(40):
        channel.basic_publish("orders", f"customer {number}", b"x", mandatory=True)
    channel.basic_publish("", "orders-3", b"y", mandatory=True)
    shown = api.get(ORDERS).json
    assert shown["messages"] == 41
    assert sum(each["messages"] for each in shown["partitions"]) == 41
    assert all(each["messages"] == each["end"] > 0 for each in shown["partitions"])


def test_a_list_has_a_line_for_each(api, channel):
    assert api.get("/api/topics").json == []
    api.ask("PUT", "/api/topics/%2F/b", body={"partitions": 3})
    api.ask("PUT", "/api/topics/%2F/a")
    channel.exchange_declare("no-topic", "x-consistent-hash")
    listed = api.get("/api/topics").json
    assert [(each["name"], each["partitions"]) for each in listed] == [("a", 1), ("b", 3)]
    assert api.get("/api/topics/%2F").json == listed


def test_an_exchange_with_streams_bound_to_it_is_one_whoever_made_it(api, channel):
    channel.exchange_declare("mine", "x-consistent-hash", durable=True)
    channel.queue_declare("left", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind("left", "mine", "1")
    shown = api.get("/api/topics/%2F/mine").json
    assert [each["stream"] for each in shown["partitions"]] == ["left"]


def test_it_can_grow_and_new_partitions_keep_messages_as_long_as_the_others(api):
    api.ask("PUT", ORDERS, body={"partitions": 1, "max_age": "7D"})
    grown = api.ask("PUT", ORDERS, body={"partitions": 3})
    assert (grown.status, len(grown.json["partitions"])) == (200, 3)
    assert api.get("/api/queues/%2F/orders-2").json["arguments"]["x-max-age"] == "7D"
    again = api.ask("PUT", ORDERS, body={"max_age": "7D"})
    assert (again.status, again.json) == (200, grown.json)


NO_TOPICS = [
    ({"partitions": 1}, "topic 'orders' in vhost '/' has 2 partitions: they can't become fewer"),
    ({"partitions": 0}, "a topic has 1 to 1024 partitions, not 0"),
    ({"partitions": 5000}, "a topic has 1 to 1024 partitions, not 5000"),
    ({"partitions": "8"}, 'partitions is "8"; it must be a whole number.'),
    ({"partitions": True}, "partitions is true; it must be a whole number."),
    (
        {"partitions": 3, "max_age": "1D"},
        "inequivalent arg 'x-max-age' for queue 'orders-0' in vhost '/': received '1D' but current is '7D'",
    ),
    ({"max_age": 7}, "max_age is 7; it must be a string."),
    ({"shards": 7}, "Field 'shards' is unknown; known fields: partitions, max_age, max_bytes."),
    ([], "not_json"),
    (b"{", "not_json"),
    (b"[" * 30_000, "not_json"),
]


def test_what_makes_no_sense_is_refused_and_changes_nothing(api):
    api.ask("PUT", ORDERS, body={"partitions": 2, "max_age": "7D"})
    before = api.get(ORDERS).json
    for body, sentence in NO_TOPICS:
        answer = api.ask("PUT", ORDERS, body=body)
        assert (answer.status, answer.json) == (400, {"error": "bad_request", "reason": sentence})
        assert api.get(ORDERS).json == before


def test_a_body_has_its_limit(api):
    answer = api.ask("PUT", ORDERS, body=b" " * 100_000)
    assert (answer.status, answer.json["error"]) == (413, "content_too_large")
    assert api.get("/api/topics").json == []


NO_NAMES = [
    ("amq.orders", 401, "exchange name 'amq.orders' contains reserved prefix 'amq.*'"),
    ("x" * 251, 400, "A topic's name has at most 250 bytes, not 251."),
    ("taken", 400, "queue 'taken' in vhost '/' exists: a topic can't have its name"),
    ("fan", 400, "exchange 'fan' in vhost '/' is of type 'fanout', not 'x-consistent-hash'"),
    ("half", 400, "queue 'half-1' in vhost '/' is no stream"),
]


def test_a_name_that_it_can_not_have_is_refused(api, channel):
    channel.queue_declare("taken")
    channel.queue_declare("half-1")
    channel.exchange_declare("fan", "fanout")
    for name, status, sentence in NO_NAMES:
        answer = api.ask("PUT", f"/api/topics/%2F/{name}", body={"partitions": 2})
        assert (answer.status, reason(answer)) == (status, sentence)
        assert {each["name"] for each in api.get("/api/queues").json} == {"taken", "half-1"}


def test_bad_retention_is_refused_with_the_words_of_a_declaration(api):
    answer = api.ask("PUT", ORDERS, body={"max_age": "soon"})
    assert answer.status == 400
    assert reason(answer) == "invalid arg 'x-max-age' for queue 'orders-0' in vhost '/': invalid_max_age"
    assert api.ask("PUT", ORDERS, body={"max_bytes": -1}).status == 400
    assert api.get("/api/topics").json == []


def test_it_is_deleted_with_all_that_is_in_it(api, channel):
    api.ask("PUT", ORDERS, body={"partitions": 2})
    channel.basic_publish("orders", "k", b"x")
    answer = api.ask("DELETE", ORDERS)
    assert (answer.status, answer.body) == (204, b"")
    assert api.get("/api/queues").json == []
    gone = api.get(ORDERS)
    assert (gone.status, reason(gone)) == (404, "no topic 'orders' in vhost '/'")
    assert api.ask("DELETE", ORDERS).status == 404
    assert api.ask("DELETE", "/api/topics/%2F/amq.topic").status == 404


def test_one_that_is_read_stays(api):
    api.ask("PUT", ORDERS, body={"partitions": 2})
    api.ask("PUT", "/api/groups/%2F/billing", body={"subject": "orders"})
    answer = api.ask("DELETE", ORDERS)
    assert (answer.status, reason(answer)) == (
        400,
        "'orders' in vhost '/' is read by group 'billing': delete it first",
    )
    assert api.get(ORDERS).json["groups"] == [{"name": "billing", "mode": "concurrent", "lag": 0}]
    assert api.ask("DELETE", "/api/groups/%2F/billing").status == 204
    assert api.ask("DELETE", ORDERS).status == 204


def test_what_was_answered_outlives_a_crash(api):
    api.ask("PUT", ORDERS, body={"partitions": 2, "max_age": "7D"})
    api.ask("PUT", "/api/topics/%2F/other", body={"partitions": 2})
    api.ask("DELETE", "/api/topics/%2F/other")
    api.run(api.listener.stop())
    api.broker.crash()
    api.broker.start()
    again = Api(api.broker)
    again.run(again.listener.start())
    listed = again.get("/api/topics").json
    assert [(each["name"], each["partitions"], each["max_age"]) for each in listed] == [("orders", 2, "7D")]
    assert {each["name"] for each in again.get("/api/queues").json} == {"orders-0", "orders-1"}
    again.run(again.listener.stop())


def test_it_needs_the_rights_that_its_declarations_need(api):
    ann = api.add_user("ann", "management", "/", configure="^(orders|logs)", write="^orders-")
    assert api.ask("PUT", ORDERS, ann, body={"partitions": 2}).status == 201
    refused = {
        "/api/topics/%2F/logs": "access to queue 'logs-0' in vhost '/' refused for user 'ann'",
        "/api/topics/%2F/shop": "access to exchange 'shop' in vhost '/' refused for user 'ann'",
    }
    for path, sentence in refused.items():
        answer = api.ask("PUT", path, ann, body={"partitions": 1})
        assert (answer.status, reason(answer)) == (401, sentence)
    bob = api.add_user("bob", "management", "/")
    assert api.get(ORDERS, bob).status == 200
    assert api.ask("DELETE", ORDERS, bob).status == 401
    nobody = api.add_user("joe", "management")
    assert api.ask("PUT", ORDERS, nobody).status == 401
    assert api.get("/api/topics", nobody).json == []
    assert api.ask("DELETE", ORDERS, ann).status == 204


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/topics"), ("PUT", ORDERS), ("DELETE", ORDERS)])
def test_everything_asks_for_a_name_and_a_password(api, method, path):
    api.ask("PUT", ORDERS)
    answer = api.ask(method, path, "guest:wrong", body={})
    assert (answer.status, answer.json["error"]) == (401, "not_authorized")
    assert api.get(ORDERS).status == 200


def test_a_method_that_there_is_not_is_answered_with_those_that_there_are(api):
    answer = api.ask("POST", ORDERS)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}
    api.ask("PUT", ORDERS)
    assert (api.ask("HEAD", ORDERS).status, api.ask("HEAD", ORDERS).body) == (200, b"")


# streams, as queues


def test_a_stream_shows_what_can_be_read_and_who_reads_it(api, channel):
    api.ask("PUT", "/api/topics/%2F/s", body={"partitions": 1})
    shown = api.get("/api/queues/%2F/s-0").json
    assert (shown["first_offset"], shown["last_offset"], shown["groups"]) == (None, None, [])
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "s-0", body)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("s-0", lambda *_: None)
    channel.basic_consume("s", lambda *_: None, arguments={"x-group": "g"})
    shown = api.get("/api/queues/%2F/s-0").json
    assert (shown["type"], shown["messages"], shown["consumers"]) == ("stream", 3, 2)
    assert (shown["first_offset"], shown["last_offset"], shown["groups"]) == (0, 2, ["g"])


def test_a_stream_can_not_be_purged(api, channel):
    api.ask("PUT", "/api/topics/%2F/s", body={"partitions": 1})
    channel.basic_publish("", "s-0", b"x")
    answer = api.ask("DELETE", "/api/queues/%2F/s-0/contents")
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason(answer) == "queue.purge not supported by stream queues queue 's-0' in vhost '/'"
    assert api.get("/api/queues/%2F/s-0").json["messages"] == 1
