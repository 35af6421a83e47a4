"""The totals of the whole broker, and what of them a user may see."""

from leveret import __version__


def test_it_says_what_it_is_and_with_which_rabbitmq_it_agrees(api):
    overview = api.get("/api/overview").json
    assert overview["product_name"] == "Leveret"
    assert overview["product_version"] == __version__
    assert overview["rabbitmq_version"] == "3.10.8"
    assert overview["rates_mode"] == "basic"
    assert overview["exchange_types"][1]["name"] == "fanout"
    assert overview["node"] == api.broker.server.broker.node
    assert ("amqp", api.broker.port) in [(each["protocol"], each["port"]) for each in overview["listeners"]]
    assert overview["contexts"][0]["port"] == str(api.listener.port)


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
    totals = overview["queue_totals"]
    assert {name: value for name, value in totals.items() if not name.endswith("_details")} == {
        "messages": 4,
        "messages_ready": 2,
        "messages_unacknowledged": 1,
        "delayed": 1,
    }
    assert overview["message_stats"]["publish"] == 4
    assert overview["message_stats"]["get"] == 2


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
    assert manager["message_stats"] == {}
    assert not {"node", "listeners", "contexts"} & manager.keys()
    monitor = api.get("/api/overview", api.add_user("bob", "monitoring")).json
    assert monitor["queue_totals"]["messages"] == 4
    assert monitor["object_totals"]["connections"] == 1


def test_everybody_sees_the_rates_of_their_virtual_hosts(leveret_clock, api, channel):
    channel.queue_declare("q")
    for _ in range(10):
        channel.basic_publish("", "q", b"1")
    leveret_clock.advance(5)
    for user in ("guest:guest", api.add_user("ann", "management", "/")):
        overview = api.get("/api/overview", user).json
        assert overview["message_stats"]["publish_details"] == {"rate": 2.0}
        assert overview["queue_totals"]["messages_details"] == {"rate": 2.0}
    churn = api.get("/api/overview").json["churn_rates"]
    assert (churn["queue_created"], churn["channel_created"]) == (1, 1)


def test_samples_are_shown_on_request(leveret_clock, api, channel):
    channel.queue_declare("q")
    for _ in range(3):
        channel.basic_publish("", "q", b"1")
        leveret_clock.advance(5)
    asked = "lengths_age=10&lengths_incr=5&msg_rates_age=10&msg_rates_incr=10"
    overview = api.get(f"/api/overview?{asked}").json
    lengths = overview["queue_totals"]["messages_ready_details"]
    assert [each["sample"] for each in lengths["samples"]] == [3, 2, 1]
    assert (lengths["avg_rate"], lengths["avg"]) == (0.2, 2.0)
    assert lengths["samples"][0]["timestamp"] == leveret_clock() // 5_000_000 * 5000
    assert len(overview["message_stats"]["publish_details"]["samples"]) == 2


def test_with_many_queues_and_channels_the_totals_of_the_last_sweep_are_shown(
    leveret_clock, api, channel, monkeypatch
):
    monkeypatch.setattr("leveret.broker.views.overview.EXACT_MAX", 0)
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    user = api.add_user("ann", "management", "/")
    assert api.get("/api/overview").json["queue_totals"]["messages"] == 0
    leveret_clock.advance(5)
    channel.basic_publish("", "q", b"2")
    for who in ("guest:guest", user):
        overview = api.get("/api/overview", who).json
        assert (overview["queue_totals"]["messages"], overview["message_stats"]["publish"]) == (1, 1)


def test_columns_choose_whole_objects(api):
    (totals,) = api.get("/api/overview?columns=object_totals.queues").json.values()
    assert (totals["queues"], totals["exchanges"]) == (0, 7)
    assert api.get("/api/overview?columns=nope").json == []
