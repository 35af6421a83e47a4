"""Connections, channels and consumers over HTTP: what is shown of them, to whom, and how they are closed."""

from urllib.parse import quote

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker


@pytest.fixture
def named(api):
    """A connection with a name of its own, the channel 1, and its name in paths."""
    place = pika.URLParameters(api.broker.url)
    place.client_properties = {"connection_name": "orders"}
    connection = pika.BlockingConnection(place)
    yield connection, connection.channel(), quote(name_of(connection), safe="")
    if connection.is_open:
        connection.close()


def name_of(connection):
    """The name that the API has for a connection."""
    socket = connection._impl._transport._sock
    (host, port), (own_host, own_port) = socket.getpeername(), socket.getsockname()
    return f"{own_host}:{own_port} -> {host}:{port}"


def connect(api, user="guest:guest"):
    name, _, password = user.partition(":")
    credentials = pika.PlainCredentials(name, password)
    place = pika.ConnectionParameters("127.0.0.1", api.broker.port, "/", credentials)
    return pika.BlockingConnection(place)


def test_a_connection_tells_who_is_connected_from_where(api, named):
    connection, _, path = named
    shown = api.get(f"/api/connections/{path}").json
    assert api.get("/api/connections").json == [shown]
    assert shown["name"] == name_of(connection)
    assert shown["user_provided_name"] == shown["client_properties"]["connection_name"] == "orders"
    assert (shown["host"], shown["port"]) == ("127.0.0.1", api.broker.port)
    peer_host, _, peer_port = shown["name"].partition(" -> ")[0].rpartition(":")
    assert (shown["peer_host"], shown["peer_port"]) == (peer_host, int(peer_port))
    expected = {
        "user": "guest",
        "vhost": "/",
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": "PLAIN",
        "state": "running",
        "channels": 1,
        "channel_max": 2047,
        "frame_max": 131_072,
        "timeout": 60,
        "ssl": False,
        "ssl_protocol": None,
        "send_pend": 0,
    }
    assert {name: shown[name] for name in expected} == expected
    assert min(shown["recv_oct"], shown["recv_cnt"], shown["send_oct"], shown["send_cnt"]) > 0


def test_bytes_of_a_connection_have_rates(leveret_clock, api, named):
    connection, channel, path = named
    leveret_clock.advance(5)
    channel.basic_publish("", "nowhere", bytes(1000))
    connection.process_data_events(0)
    channel.queue_declare("q")
    leveret_clock.advance(5)
    shown = api.get(f"/api/connections/{path}?data_rates_age=5&data_rates_incr=5").json
    assert shown["recv_oct_details"]["rate"] > 200
    assert len(shown["recv_oct_details"]["samples"]) == 2


def test_a_channel_tells_what_is_open_on_it(api, named):
    _, channel, path = named
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=7)
    channel.basic_publish("", "q", b"1")
    channel.basic_get("q")
    channel.basic_get("q")
    shown = api.get(f"/api/channels/{path}%20%281%29").json
    assert {name: shown[name] for name in ("confirm", "transactional", "prefetch_count", "number")} == {
        "confirm": True,
        "transactional": False,
        "prefetch_count": 7,
        "number": 1,
    }
    assert shown["messages_unacknowledged"] == 1
    stats = shown["message_stats"]
    assert [stats[name] for name in ("publish", "confirm", "get", "get_empty", "deliver_get")] == [
        1,
        1,
        1,
        1,
        1,
    ]
    (listed,) = api.get("/api/channels").json
    assert api.get(f"/api/connections/{path}/channels").json == [listed]
    assert shown.keys() - listed.keys() == {"consumer_details", "deliveries", "publishes"}


def test_an_idle_channel_tells_since_when(leveret_clock, api, named):
    _, channel, _ = named
    assert api.get("/api/channels").json[0]["idle_since"] == "2023-11-14T22:13:20.000+00:00"
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    channel.queue_declare("q")
    leveret_clock.advance(5)
    assert "idle_since" not in api.get("/api/channels").json[0]
    leveret_clock.advance(60)
    assert api.get("/api/channels").json[0]["idle_since"] == "2023-11-14T22:13:25.000+00:00"


def test_a_consumer_tells_what_it_consumes_and_how(api, named):
    _, channel, path = named
    channel.queue_declare("q", arguments={"x-single-active-consumer": True})
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("q", lambda *_: None, consumer_tag="a", arguments={"x-priority": 3})
    channel.basic_consume("q", lambda *_: None, consumer_tag="b")
    first, second = api.get("/api/consumers").json
    assert first == {
        "consumer_tag": "a",
        "queue": {"name": "q", "vhost": "/"},
        "channel_details": first["channel_details"],
        "ack_required": True,
        "active": True,
        "activity_status": "single_active",
        "exclusive": False,
        "prefetch_count": 5,
        "arguments": {"x-priority": 3},
    }
    assert first["channel_details"]["name"].endswith(" (1)")
    assert (second["active"], second["activity_status"]) == (False, "waiting")
    assert api.get("/api/consumers/%2F").json == [first, second]
    assert api.get(f"/api/channels/{path}%20%281%29").json["consumer_details"] == [first, second]
    assert api.get("/api/consumers/nope").status == 404


def test_the_consumer_of_direct_replies_is_listed(api, named):
    _, channel, _ = named
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    (consumer,) = api.get("/api/consumers").json
    assert (consumer["queue"]["name"], consumer["ack_required"]) == ("amq.rabbitmq.reply-to", False)


def test_lists_have_pages_orders_and_columns(api):
    connections = [connect(api) for _ in range(3)]
    names = sorted(map(name_of, connections))
    for number, connection in enumerate(connections):
        for _ in range(number):
            connection.channel()
    page = api.get("/api/connections?page=2&page_size=2&columns=name").json
    assert (page["items"], page["total_count"]) == ([{"name": names[2]}], 3)
    ordered = api.get("/api/connections?sort=channels&sort_reverse=true&columns=channels").json
    assert ordered == [{"channels": 2}, {"channels": 1}, {"channels": 0}]
    assert len(api.get("/api/channels?page=1&name=%282%29").json["items"]) == 1
    for connection in connections:
        connection.close()


def test_who_may_not_monitor_sees_only_their_own(api, channel):
    ann = api.add_user("ann", "management", "/", configure=".*")
    own = connect(api, ann)
    own_channel = own.channel()
    own_channel.queue_declare("q")
    own_channel.basic_consume("q", lambda *_: None)
    channel.basic_consume("q", lambda *_: None)
    for path in ("connections", "channels", "consumers", "vhosts/%2F/connections", "vhosts/%2F/channels"):
        assert len(api.get(f"/api/{path}", ann).json) == 1, path
        assert len(api.get(f"/api/{path}").json) == 2, path
    theirs = quote(name_of(channel.connection), safe="")
    for path in (f"connections/{theirs}", f"connections/{theirs}/channels", f"channels/{theirs}%20%281%29"):
        refused = api.get(f"/api/{path}", ann)
        assert refused.json == {"error": "not_authorised", "reason": "User not authorised to access object"}
    assert api.ask("DELETE", f"/api/connections/{theirs}", ann).status == 401
    assert api.ask("DELETE", "/api/connections/username/guest", ann).status == 401
    monitor = api.add_user("bob", "monitoring", "/")
    assert api.get(f"/api/connections/{theirs}", monitor).status == 200
    assert api.ask("DELETE", f"/api/connections/{theirs}", monitor).status == 401
    own.close()


def test_a_connection_is_closed_with_the_reason_that_is_given(api, named):
    connection, _, path = named
    closed = api.ask("DELETE", f"/api/connections/{path}", **{"X-Reason": "moved"})
    assert (closed.status, closed.body) == (204, b"")
    with pytest.raises(ConnectionClosedByBroker, match="CONNECTION_FORCED - moved"):
        connection.process_data_events(60)
    assert api.get(f"/api/connections/{path}").status == 404
    assert api.ask("DELETE", f"/api/connections/{path}").status == 404


def test_all_connections_of_a_user_are_closed(api, channel):
    ann = api.add_user("ann", "", "/")
    theirs = [connect(api, ann), connect(api, ann)]
    assert len(api.get("/api/connections/username/ann").json) == 2
    assert api.ask("DELETE", "/api/connections/username/ann").status == 204
    for connection in theirs:
        with pytest.raises(ConnectionClosedByBroker, match="Closed via management plugin"):
            connection.process_data_events(60)
    (left,) = api.get("/api/connections/username/guest").json
    assert left == {
        "name": name_of(channel.connection),
        "user": "guest",
        "vhost": "/",
        "node": api.broker.server.broker.node,
    }
    assert api.ask("DELETE", "/api/connections/username/nobody").status == 204


def test_a_user_may_close_its_own_connection(api):
    ann = api.add_user("ann", "management", "/")
    # Without a name the connection would be collected, and its socket closed.
    connection = connect(api, ann)
    path = quote(name_of(connection), safe="")
    assert api.ask("DELETE", f"/api/connections/{path}", ann).status == 204


@pytest.mark.parametrize(
    "path", ["connections/nope", "channels/nope", "channels/nope%20%281%29", "channels/%20%2899999%29"]
)
def test_what_does_not_exist_is_not_found(api, path):
    found = api.get(f"/api/{path}")
    assert (found.status, found.json) == (404, {"error": "Object Not Found", "reason": "Not Found"})
