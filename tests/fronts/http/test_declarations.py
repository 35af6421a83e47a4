"""Declaring over HTTP what AMQP declares; `tests/differential/test_management.py` compares with RabbitMQ."""

from tests.fronts.http.views import crashed_and_started

QUEUE = "/api/queues/%2F/orders"
EXCHANGE = "/api/exchanges/%2F/events"
BINDING = "/api/bindings/%2F/e/events/q/orders"


def declare(api):
    assert api.ask("PUT", QUEUE, body={"durable": True, "arguments": {"x-max-length": 9}}).status == 201
    assert api.ask("PUT", EXCHANGE, body={"type": "topic", "durable": True}).status == 201
    bound = api.ask("POST", BINDING, body={"routing_key": "a.*", "arguments": {"b": 1}})
    assert bound.status == 201
    return bound.headers["location"]


def test_what_was_declared_outlives_a_crash_and_keeps_its_names(api):
    location = declare(api)
    before = [api.get(path).json for path in ("/api/exchanges", "/api/bindings")]
    again = crashed_and_started(api)
    assert [again.get(path).json for path in ("/api/exchanges", "/api/bindings")] == before
    assert again.get(QUEUE).json["arguments"] == {"x-max-length": 9}
    path = f"/api/bindings/%2F/e/events/q/{location}"
    assert again.get(path).json["arguments"] == {"b": 1}
    assert again.ask("DELETE", path).status == 204
    assert again.get(path).status == 404
    again.run(again.listener.stop())


def test_every_binding_can_be_named_whatever_its_key_and_arguments(api):
    declare(api)
    keys = ("", "~", "k", "k~", "a/b c+d%", "grün", "?#", "..", "a.*")
    for key in keys:
        for arguments in ({}, {"n": 1}, {"n": "1"}, {"n": True}, {"n": 1.0}):
            api.ask("POST", BINDING, body={"routing_key": key, "arguments": arguments})
    bindings = api.get(BINDING).json
    assert len(bindings) == len(keys) * 5 + 1
    assert len({binding["properties_key"] for binding in bindings}) == len(bindings)
    for binding in bindings:
        name = binding["properties_key"].replace("%", "%25")
        assert api.get(f"{BINDING}/{name}").json == binding
        assert api.ask("DELETE", f"{BINDING}/{name}").status == 204
    assert api.get(BINDING).json == []


def test_a_refused_declaration_begins_no_turn_and_makes_nothing(api):
    declare(api)
    user = api.add_user("ann", "management", "/", configure="^mine", read="", write="")
    api.get("/api/whoami", user)
    before = api.changes
    assert api.ask("PUT", "/api/queues/%2F/other", user, body={}).status == 401
    assert api.ask("PUT", QUEUE, body={"durable": False}).status == 400
    assert api.ask("PUT", EXCHANGE, body={"type": "fanout", "durable": True}).status == 400
    dead = {"arguments": {"x-dead-letter-exchange": "events"}}
    assert api.ask("PUT", "/api/queues/%2F/mine", user, body=dead).status == 401
    assert api.ask("POST", BINDING, user, body={}).status == 401
    assert api.ask("DELETE", f"{EXCHANGE}?if-unused=true").status == 400
    assert api.changes == before
    assert [queue["name"] for queue in api.get("/api/queues").json] == ["orders"]


def test_an_exclusive_queue_is_neither_made_nor_changed(api, channel):
    channel.queue_declare("mine", exclusive=True)
    assert api.ask("PUT", "/api/queues/%2F/new", body={"exclusive": True}).status == 400
    for method, path, body in (
        ("PUT", "/api/queues/%2F/mine", {}),
        ("DELETE", "/api/queues/%2F/mine", None),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/mine", {"routing_key": "k"}),
        ("POST", "/api/queues/%2F/mine/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ):
        answer = api.ask(method, path, body=body)
        assert (answer.status, answer.json["error"]) == (400, "bad_request"), path
        assert "cannot obtain exclusive access to locked queue 'mine'" in answer.json["reason"]
    (shown,) = api.get("/api/queues").json
    assert (shown["exclusive"], shown["owner_pid_details"]["peer_host"]) == (True, "127.0.0.1")


def test_a_queue_shows_its_consumers_as_rabbitmq_does(api, channel):
    channel.queue_declare("q")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("q", lambda *_: None, consumer_tag="reader", exclusive=True)
    shown = api.get("/api/queues/%2F/q").json
    (consumer,) = shown["consumer_details"]
    details = consumer.pop("channel_details")
    assert shown["exclusive_consumer_tag"] == "reader"
    assert (details["number"], details["user"], details["peer_host"]) == (1, "guest", "127.0.0.1")
    assert consumer == {
        "arguments": {},
        "ack_required": True,
        "active": True,
        "activity_status": "up",
        "consumer_tag": "reader",
        "exclusive": True,
        "prefetch_count": 7,
        "queue": {"name": "q", "vhost": "/"},
    }


def test_readers_and_members_of_groups_are_consumers_of_a_stream(api, channel, orders, join):
    join()
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("orders-0", lambda *_: None, consumer_tag="reader")
    shown = api.get("/api/queues/%2F/orders-0").json
    assert {consumer["consumer_tag"] for consumer in shown["consumer_details"]} > {"reader"}
    assert len(shown["consumer_details"]) == shown["consumers"] == 2


def test_lists_of_queues_can_be_ordered_by_what_they_did(api, channel):
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        channel.queue_declare(name)
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    for column in ("messages", "message_stats.publish", "messages_ready", "memory"):
        found = api.get(f"/api/queues?sort={column}&sort_reverse=true&columns=name&page=1").json["items"]
        assert [queue["name"] for queue in found] == ["b", "c", "a"], column
    for column in ("message_stats.publish_details.rate", "messages_details.rate", "arguments.x", "consumers"):
        found = api.get(f"/api/queues?sort={column}&columns=name").json
        assert [queue["name"] for queue in found] == ["a", "b", "c"], column


def test_a_path_that_names_neither_queue_nor_exchange_as_destination_is_not_found(api):
    assert api.ask("POST", "/api/bindings/%2F/e/amq.direct/x/q", body={}).status == 404
