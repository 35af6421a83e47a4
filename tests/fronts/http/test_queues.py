"""Looking at queues and purging them over HTTP, as RabbitMQ's clients do it."""

import json
from decimal import Decimal

import pika
import pytest
from starlette.requests import Request

from leveret.amqp.tables import Timestamp
from leveret.fronts.http import queues
from leveret.fronts.http.queues import Queues

NOT_FOUND = {"error": "Object Not Found", "reason": "Not Found"}


def test_a_queue_shows_what_it_is_and_what_it_holds(api, channel):
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 5})
    channel.basic_publish("", "q", b"1")
    channel.basic_publish("", "q", b"22", pika.BasicProperties(timestamp=1_700_000_000))
    channel.basic_publish("", "q", b"333", pika.BasicProperties(delivery_mode=2))
    channel.basic_get("q")
    shown = api.get("/api/queues/%2F/q").json
    memory = shown.pop("memory")
    stats = {name: count for name, count in shown.pop("message_stats").items() if "details" not in name}
    assert shown == {
        "name": "q",
        "vhost": "/",
        "type": "classic",
        "state": "running",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "arguments": {"x-max-length": 5},
        "node": api.broker.server.broker.node,
        "consumers": 0,
        "messages": 3,
        "messages_details": {"rate": 0.0},
        "messages_ready": 2,
        "messages_ready_details": {"rate": 0.0},
        "messages_unacknowledged": 1,
        "messages_unacknowledged_details": {"rate": 0.0},
        "messages_persistent": 1,
        "message_bytes": 6,
        "message_bytes_ready": 5,
        "message_bytes_unacknowledged": 1,
        "message_bytes_persistent": 3,
        "head_message_timestamp": 1_700_000_000,
        "delayed": 0,
        "returned": 0,
        "low": 0,
        "span": 1,
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        "consumer_details": [],
        "incoming": [],
        "deliveries": [],
        "queries": [],
    }
    assert memory > 0
    assert stats == {
        "publish": 3,
        "ack": 0,
        "deliver": 0,
        "deliver_get": 1,
        "deliver_no_ack": 0,
        "get": 1,
        "get_empty": 0,
        "get_no_ack": 0,
        "redeliver": 0,
    }


def test_a_queue_shows_the_queries_that_hold_messages_of_it(api, channel):
    channel.queue_declare("q", durable=True)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body)
    api.broker.wait_until_depth("q", 3)

    def lease() -> None:
        leases = api.broker.server.broker.vhosts["/"].queues["q"].queries()
        query = leases.open("nightly", user=api.guest, timeout_us=0)
        leases.settle(query, leases.next(query, 0, max_messages=1))
        leases.next(query, 1)

    api.broker.call(lease)
    (query,) = api.get("/api/queues/%2F/q").json["queries"]
    assert query.pop("seen") > 0
    assert query == {"name": "nightly", "owner": "guest", "run": 1, "settled": 1, "leases": 1, "messages": 2}
    leases = api.broker.server.broker.vhosts["/"].queues["q"].queries()
    api.broker.call(lambda: leases.settle(leases.queries["nightly"], 2))
    assert api.get("/api/queues/%2F/q").json["queries"][0]["settled"] == 2


def test_a_query_is_ended_and_what_it_holds_goes_back(api, channel):
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"1")
    api.broker.wait_until_depth("q", 1)

    def lease() -> None:
        leases = api.broker.server.broker.vhosts["/"].queues["q"].queries()
        leases.next(leases.open("nightly", user=api.guest, timeout_us=0), 0)

    api.broker.call(lease)
    assert api.broker.depth("q") == 0
    assert api.ask("DELETE", "/api/queues/%2F/q/queries/nightly").status == 204
    assert api.broker.depth("q") == 1
    assert api.get("/api/queues/%2F/q").json["queries"] == []
    assert api.ask("DELETE", "/api/queues/%2F/q/queries/nightly").json == NOT_FOUND


def test_a_queue_shows_consumers_and_messages_that_came_back(api, channel):
    channel.queue_declare("q", exclusive=True, auto_delete=True)
    channel.basic_publish("", "q", b"1")
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    api.broker.wait_until_depth("q", 1)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("q", lambda *_: None)
    shown = api.get("/api/queues/%2F/q").json
    assert (shown["exclusive"], shown["auto_delete"], shown["consumers"]) == (True, True, 1)
    assert shown["returned"] == 1


def test_what_is_delayed_counts_among_the_messages(api, channel):
    channel.queue_declare("q", arguments={"x-retry-delay-ms": 3_600_000})
    channel.basic_publish("", "q", b"1")
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    api.broker.wait_until_unacked("q", 0)
    shown = api.get("/api/queues/%2F/q").json
    assert (shown["messages"], shown["messages_ready"], shown["delayed"]) == (1, 0, 1)


def test_lists_are_sorted_and_can_be_had_for_one_virtual_host(api):
    api.add_vhost("a/b c")
    guest = api.broker.server.broker.accounts.users["guest"]
    api.broker.call(lambda: guest.permissions.update({"a/b c": guest.permissions["/"]}))
    for name, vhost in (("z", "/"), ("b", "/"), ("y", "a/b c")):
        api.add_queue(name, vhost=vhost)
    names = [(queue["vhost"], queue["name"]) for queue in api.get("/api/queues").json]
    assert names == [("/", "b"), ("/", "z"), ("a/b c", "y")]
    assert [queue["name"] for queue in api.get("/api/queues/%2F").json] == ["b", "z"]
    assert [queue["name"] for queue in api.get("/api/queues/a%2Fb%20c/").json] == ["y"]


def test_a_row_of_the_list_says_what_is_said_of_one_queue(api, channel):
    api.add_queue("held")
    api.add_queue("plain")
    channel.basic_qos(prefetch_count=2)
    for number in range(6):
        channel.basic_publish("", "plain", b"%d" % number)
    method, _, _ = channel.basic_get("plain")
    channel.basic_nack(method.delivery_tag)
    channel.basic_get("plain")
    api.broker.wait_until_unacked("plain", 1)
    vhost = api.broker.server.broker.vhosts["/"]
    api.broker.call(lambda: vhost.queues["held"].queries())
    listed = {queue["name"]: queue for queue in api.get("/api/queues").json}
    assert listed["plain"]["messages"] == 6
    for name in ("held", "plain"):
        shown = api.get(f"/api/queues/%2F/{name}").json
        assert listed[name] == {column: shown[column] for column in listed[name]}
        more = {"consumer_details", "incoming", "deliveries", "head_message_timestamp", "messages_persistent"}
        assert {column for column in shown.keys() - listed[name].keys() if "bytes" not in column} == more


def test_a_long_list_comes_in_pieces_and_leaves_out_what_goes_meanwhile(api, monkeypatch):
    monkeypatch.setattr(queues, "PLAIN_ROWS", 64)
    for number in range(200):
        api.add_queue(f"q{number:03}")
    vhost = api.broker.server.broker.vhosts["/"]
    last = vhost.queues["q199"]

    async def read_and_delete():
        request = Request({"type": "http", "query_string": b"", "headers": []})
        response = await Queues(vhost.broker, changed=lambda: None).show_all(request, guest)
        pieces = []
        async for piece in response.body_iterator:
            if not pieces:
                vhost.delete_queue(last)
            pieces.append(piece)
        return pieces

    guest = vhost.broker.accounts.users["guest"]
    pieces = api.run(read_and_delete())
    assert len(pieces) > 2
    expected = [f"q{number:03}" for number in range(199)]
    assert [queue["name"] for queue in json.loads("".join(pieces))] == expected
    assert [queue["name"] for queue in api.get("/api/queues").json] == expected


def test_a_broker_without_queues_lists_none(api):
    assert api.get("/api/queues").json == []
    assert api.get("/api/queues/%2F").json == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b", "a%2Fb"),
        ("grün", "gr%C3%BCn"),
        ("100%", "100%25"),
        ("a b+c", "a%20b+c"),
        ("..", ".."),
        ("?", "%3f"),
    ],
)
def test_a_name_may_hold_any_character(api, name, path):
    api.add_queue(name, 2)
    assert api.get(f"/api/queues/%2F/{path}").json["name"] == name
    assert api.ask("DELETE", f"/api/queues/%2F/{path}/contents").status == 204
    assert api.broker.depth(name) == 0


def test_a_name_that_is_not_utf_8_is_shown_as_rabbitmq_does_and_can_be_asked_for(api):
    api.add_queue("\udcff", 1)
    (listed,) = api.get("/api/queues").json
    assert listed["name"] == "Not UTF-8, base64 is: /w=="
    assert api.get("/api/queues/%2F/%FF").json["name"] == listed["name"]
    assert api.ask("DELETE", "/api/queues/%2F/%FF/contents").status == 204
    assert api.broker.depth("\udcff") == 0


def test_arguments_of_every_type_are_shown(api):
    arguments = {
        "true": True,
        "large": 2**63 - 1,
        "float": -0.5,
        "decimal": Decimal("12.25"),
        "text": "grün",
        "not UTF-8": "\udcff",
        "bytes": b"raw",
        "other bytes": bytearray(b"\xff"),
        "time": Timestamp(1_700_000_000),
        "nothing": None,
        "list": [1, "two", [None], {"deep": [True]}],
        "\udcff": {},
    }
    api.add_queue("q", arguments=arguments)
    assert api.get("/api/queues/%2F/q").json["arguments"] == {
        "true": True,
        "large": 2**63 - 1,
        "float": -0.5,
        "decimal": 12.25,
        "text": "grün",
        "not UTF-8": "Not UTF-8, base64 is: /w==",
        "bytes": "raw",
        "other bytes": "Not UTF-8, base64 is: /w==",
        "time": 1_700_000_000,
        "nothing": None,
        "list": [1, "two", [None], {"deep": [True]}],
        "Not UTF-8, base64 is: /w==": {},
    }


def test_an_argument_nested_as_deep_as_a_frame_is_long_is_cut_and_not_fatal(api):
    nested = innermost = {}
    for _ in range(18_000):
        innermost["x"] = innermost = {}
    api.add_queue("q", arguments={"deep": nested})
    assert b"nested more than 64 deep" in api.get("/api/queues").body
    while nested:  # piece by piece: freeing it in one go would recurse
        nested = nested.pop("x")


def test_what_does_not_exist_is_not_found(api):
    for path in ("nope", "nope/q", "%2F/nope", "%2F/a/b", "/q", "%zz/q"):
        answer = api.get(f"/api/queues/{path}")
        assert (answer.status, answer.json) == (404, NOT_FOUND), path


# purging


def test_purging_drops_what_is_ready_and_delayed_but_not_what_is_with_consumers(api, channel):
    channel.queue_declare("q", arguments={"x-retry-delay-ms": 3_600_000})
    for body in (b"1", b"2", b"3", b"4"):
        channel.basic_publish("", "q", body)
    returned, _, _ = channel.basic_get("q")
    kept, _, _ = channel.basic_get("q")
    channel.basic_nack(returned.delivery_tag)
    api.broker.wait_until_unacked("q", 1)
    answer = api.ask("DELETE", "/api/queues/%2F/q/contents")
    assert (answer.status, answer.body) == (204, b"")
    shown = api.get("/api/queues/%2F/q").json
    assert (shown["messages"], shown["messages_unacknowledged"]) == (1, 1)
    channel.basic_ack(kept.delivery_tag)
    api.broker.wait_until_unacked("q", 0)
    assert api.get("/api/queues/%2F/q").json["messages"] == 0


def test_purging_begins_a_turn_and_looking_does_not(api):
    api.add_queue("q", 3)
    api.get("/api/whoami")
    before = api.changes
    api.get("/api/queues/%2F/q")
    api.get("/api/overview")
    assert api.changes == before
    api.ask("DELETE", "/api/queues/%2F/q/contents")
    assert api.changes == before + 1


def test_a_purge_outlives_a_restart(api, channel):
    channel.queue_declare("q", durable=True)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", "q", body)
    assert api.ask("DELETE", "/api/queues/%2F/q/contents").status == 204
    api.run(api.listener.stop())
    api.broker.restart()
    assert api.broker.depth("q") == 0


def test_purging_what_does_not_exist_is_not_found(api):
    api.get("/api/whoami")
    before = api.changes
    answer = api.ask("DELETE", "/api/queues/%2F/nope/contents")
    assert (answer.status, answer.json) == (404, NOT_FOUND)
    assert api.changes == before


def test_an_exclusive_queue_is_purged_by_its_owner_alone(api, channel):
    channel.queue_declare("q", exclusive=True)
    channel.basic_publish("", "q", b"1")
    answer = api.ask("DELETE", "/api/queues/%2F/q/contents")
    assert answer.status == 400
    assert answer.json["error"] == "bad_request"
    assert answer.json["reason"].startswith(
        "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on"
    )
    assert api.broker.depth("q") == 1


def test_purging_needs_the_right_to_read(api):
    api.add_queue("q", 1)
    api.add_queue("a", 1)
    user = api.add_user("ann", "management", "/", read="^a")
    answer = api.ask("DELETE", "/api/queues/%2F/q/contents", user)
    assert (answer.status, answer.json) == (401, {"error": "not_authorised", "reason": "Access refused."})
    assert api.ask("DELETE", "/api/queues/%2F/a/contents", user).status == 204
    assert (api.broker.depth("q"), api.broker.depth("a")) == (1, 0)
