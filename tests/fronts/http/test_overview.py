"""The totals of the whole broker, and what of them a user may see."""

from leveret import __version__


def test_it_says_what_it_is_and_with_which_rabbitmq_it_agrees(api):
    overview = api.get("/api/overview").json
    assert overview["product_name"] == "Leveret"
    assert overview["product_version"] == __version__
    assert overview["rabbitmq_version"] == "3.10.8"
    assert overview["rates_mode"] == "none"
    assert {"name": "topic", "enabled": True} in overview["exchange_types"]


def test_totals_count_messages_in_every_state(api, channel):
    retried = {"x-retry-delay-ms": 3_600_000}
    channel.queue_declare("q", arguments=retried)
    for body in (b"1", b"2", b"3", b"4"):
        channel.basic_publish("", "q", body)
    returned, _, _ = channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_nack(returned.delivery_tag)
    api.broker.wait_until_unacked("q", 1)
    overview = api.get("/api/overview").json
    assert overview["queue_totals"] == {
        "messages": 4,
        "messages_ready": 2,
        "messages_unacknowledged": 1,
        "delayed": 1,
    }
    assert overview["message_stats"] == {"publish": 4}


def test_totals_count_connections_channels_queues_and_consumers(api, channel):
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None)
    channel.connection.channel()
    assert api.get("/api/overview").json["object_totals"] == {
        "channels": 2,
        "connections": 1,
        "consumers": 1,
        "exchanges": 7,
        "queues": 1,
    }


def test_deaths_and_refusals_are_told_by_reason(api, channel):
    channel.queue_declare("q", arguments={"x-max-length": 1})
    channel.basic_publish("", "q", b"1")
    channel.basic_publish("", "q", b"2")
    overview = api.get("/api/overview").json
    assert overview["dead"] == {"maxlen": 1}
    assert overview["nacked"] == {}


def test_who_may_not_monitor_sees_only_what_is_theirs(api, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    api.add_vhost("other")
    api.add_queue("mine", 3, vhost="other")
    manager = api.get("/api/overview", api.add_user("ann", "management", "other")).json
    assert manager["queue_totals"]["messages"] == 3
    assert manager["object_totals"]["queues"] == 1
    assert manager["object_totals"]["connections"] == 0
    assert "message_stats" not in manager
    monitor = api.get("/api/overview", api.add_user("bob", "monitoring")).json
    assert monitor["queue_totals"]["messages"] == 4
    assert monitor["object_totals"]["connections"] == 1
