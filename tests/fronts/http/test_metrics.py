"""What Prometheus is told: names and values, sums that never go down, and names of any bytes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.broker.views import metrics as views
from leveret.fronts.http import metric_tables
from leveret.fronts.http.metric_reading import KINDS, read
from leveret.fronts.http.metrics import create_metrics_app
from leveret.server.http import HttpListener
from tests.fronts.http.conftest import Api
from tests.fronts.http.dashboard import IDENTITY, PANELS
from tests.fronts.http.metric_pages import parse, scrape

PAGES = ("/metrics", "/metrics/per-object")
FAMILY_NAMES = (
    *metric_tables.FAMILIES,
    *metric_tables.OF_EXCHANGES,
    *metric_tables.OF_NODE,
    "auth_attempt_metrics",
    "vhost_status",
    "connection_churn_metrics",
)
EVERY_FAMILY = "/metrics/detailed?" + "&".join(f"family={name}" for name in FAMILY_NAMES)
ODD = ['say "hi"', "back\\slash", "two\nlines", "\udcff\udcfe", "<b>ä €</b>", "100%s", "tab\there"]


@pytest.fixture
def used(api: Api, channel: Any) -> Any:
    """A channel that has published 5 messages to `q`: one is acked, one in flight."""
    channel.queue_declare("q", durable=True)
    for number in range(5):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    first, _, _ = channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_ack(first.delivery_tag)
    api.broker.wait_until_unacked("q", 1)
    return channel


# RabbitMQ's dashboard


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_of_rabbitmqs_dashboard_has_values(api, panel):
    page = scrape(api)
    assert set(PANELS[panel]) <= page.names


def test_the_dashboard_finds_node_and_cluster(api):
    ((labels, value),) = scrape(api).all("rabbitmq_identity_info").items()
    assert {name for name, _ in labels} >= IDENTITY
    assert value == 1


# values


def test_sums_are_those_of_the_broker(api, used):
    page = scrape(api)
    expected = {
        "rabbitmq_connections": 1,
        "rabbitmq_channels": 1,
        "rabbitmq_queues": 1,
        "rabbitmq_queue_messages_ready": 3,
        "rabbitmq_queue_messages_unacked": 1,
        "rabbitmq_queue_messages": 4,
        "rabbitmq_queue_messages_published_total": 5,
        "rabbitmq_channel_messages_published_total": 5,
        "rabbitmq_channel_messages_confirmed_total": 5,
        "rabbitmq_channel_get_ack_total": 2,
        "rabbitmq_channel_messages_acked_total": 1,
        "rabbitmq_channel_messages_unacked": 1,
        "rabbitmq_global_messages_received_total": 5,
        "rabbitmq_global_messages_received_confirm_total": 5,
        "rabbitmq_global_messages_routed_total": 5,
        "rabbitmq_global_publishers": 1,
        "rabbitmq_queues_created_total": 1,
        "rabbitmq_process_max_fds": api.node.facts().fd_total,
        "leveret_confirm_latency_seconds_count": 5,
    }
    assert {name: page[name] for name in expected} == expected
    assert page.of("rabbitmq_auth_attempts_succeeded_total", protocol="amqp091") == 1
    by_type = page.all("rabbitmq_global_messages_delivered_get_manual_ack_total")
    assert {dict(labels)["queue_type"]: value for labels, value in by_type.items()} == {
        "rabbit_classic_queue": 2,
        "rabbit_quorum_queue": 0,
        "rabbit_stream_queue": 0,
    }


def test_unroutable_publishes_and_empty_gets_are_counted(api, used):
    used.basic_publish("", "nowhere", b"")
    with pytest.raises(pika.exceptions.UnroutableError):
        used.basic_publish("", "nowhere", b"", mandatory=True)
    used.queue_declare("empty")
    used.basic_get("empty")
    page = scrape(api)
    assert page["rabbitmq_channel_messages_unroutable_dropped_total"] == 1
    assert page["rabbitmq_global_messages_unroutable_returned_total"] == 1
    assert page["rabbitmq_channel_get_empty_total"] == 1
    assert scrape(api, EVERY_FAMILY).of("rabbitmq_detailed_queue_get_empty_total", queue="empty") == 1


def test_single_objects_have_their_own_values(api, used):
    used.queue_declare("idle")
    page = scrape(api, "/metrics/per-object")
    assert page.of("rabbitmq_queue_messages_ready", vhost="/", queue="q") == 3
    assert page.of("rabbitmq_queue_messages_ready", vhost="/", queue="idle") == 0
    assert page.of("rabbitmq_queue_messages_published_total", queue_vhost="/", queue="q") == 5
    ((labels, value),) = page.all("rabbitmq_channel_messages_published_total").items()
    assert value == 5
    assert dict(labels)["channel"].endswith(" (1)")
    assert page.of("leveret_exchange_messages_routed_total", vhost="/", exchange="") == 5


def test_holes_span_and_their_maxima_are_shown(api, channel):
    for name, acked in (("one", (2,)), ("two", (2, 4))):
        channel.queue_declare(name)
        tags = []
        for _ in range(5):
            channel.basic_publish("", name, b"")
            tags.append(channel.basic_get(name)[0].delivery_tag)
        for number in acked:
            channel.basic_ack(tags[number - 1])
        api.broker.wait_until_unacked(name, 5 - len(acked))
    page, single = scrape(api), scrape(api, "/metrics/per-object")
    assert [single.of("leveret_queue_holes", queue=name) for name in ("one", "two")] == [1, 2]
    assert [single.of("leveret_queue_span", queue=name) for name in ("one", "two")] == [5, 5]
    assert (page["leveret_queue_holes"], page["leveret_queue_holes_max"]) == (3, 2)
    assert (page["leveret_queue_span"], page["leveret_queue_span_max"]) == (10, 5)


def test_a_redelivery_loop_begins_with_the_fourth_return(api, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"poison")
    for looping in (0, 0, 0, 1):
        channel.basic_nack(channel.basic_get("q")[0].delivery_tag)
        api.broker.wait_until_depth("q", 1)
        assert scrape(api)["leveret_queue_messages_looping"] == looping
    assert scrape(api)["leveret_queue_messages_requeued_total"] == 4
    assert scrape(api)["leveret_queue_messages_returned"] == 1


def test_a_missed_deadline_and_its_lateness_are_counted(api, leveret_clock, channel):
    channel.queue_declare("q", arguments={"x-consumer-timeout": 60_000, "x-consumer-timeout-action": "retry"})
    for _ in range(3):
        channel.basic_publish("", "q", b"")
        channel.basic_get("q")
    leveret_clock.advance(61)
    page = scrape(api)
    assert page["leveret_delivery_deadline_misses_total"] == 3
    assert page["leveret_timer_lateness_seconds_count"] > 0
    assert page.of("leveret_timer_lateness_seconds_bucket", le="+Inf") > 0


def test_nacks_and_deaths_are_told_by_reason(api, channel):
    channel.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_declare("short", arguments={"x-max-length": 1})
    for queue in ("full", "short"):
        channel.basic_publish("", queue, b"")
    channel.basic_publish("", "short", b"")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "full", b"")
    page = scrape(api)
    reason = "a queue is full (reject-publish)"
    assert page.of("leveret_publishes_nacked_total", reason=reason) == 1
    assert page.of("leveret_messages_dead_total", reason="maxlen") == 1


def test_groups_are_summed_and_shown_one_by_one(api, orders, join):
    member = join(prefetch=4)
    member.take(4)
    page, single = scrape(api), scrape(api, "/metrics/per-object")
    assert (page["leveret_groups"], page["leveret_group_lag"], page["leveret_group_lag_max"]) == (1, 10, 10)
    named = {"vhost": "/", "subject": "orders", "group": "billing"}
    assert single.of("leveret_group_messages_in_flight", **named) == 4
    assert single.of("leveret_group_members", **named) == 1


def test_a_spark_query_is_shown_with_its_leases_and_its_last_batch(api, leveret_clock, used):
    core = api.broker.server.broker

    def lease() -> None:
        api.broker.server.turns.begin()
        leases = core.vhosts["/"].queues["q"].queries()
        query = leases.open("nightly", user=core.accounts.users["guest"], timeout_us=0)
        leases.next(query, 0, max_messages=1)
        leases.next(query, 1, max_messages=1)
        leases.settle(query, 1)

    api.broker.call(lease)
    named = {"vhost": "/", "queue": "q", "query": "nightly"}
    page, single = scrape(api), scrape(api, "/metrics/per-object")
    assert (page["leveret_queries"], page["leveret_query_messages_leased"]) == (1, 1)
    assert single.of("leveret_query_leases", **named) == 1
    assert single.of("leveret_query_batch", **named) == 1
    seen_s = single.of("leveret_query_last_request_timestamp_seconds", **named)
    assert seen_s == leveret_clock() // 1_000_000
    assert "leveret_query_batch" not in page.names


def test_an_alarm_is_shown(api):
    assert scrape(api)["rabbitmq_alarms_memory_used_watermark"] == 0
    api.broker.set_alarm("memory", on=True)
    page = scrape(api)
    assert page["rabbitmq_alarms_memory_used_watermark"] == page["leveret_publishers_blocked"] == 1
    assert page["rabbitmq_alarms_free_disk_space_watermark"] == 0


# the guide


def test_the_guide_lists_every_metric_of_ours_and_every_family():
    page = Path("docs/guide/metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(leveret_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    tables = (
        *metric_tables.MAXIMA,
        *metric_tables.COUNTS,
        *metric_tables.BROKER,
        *metric_tables.OWN_TOTALS,
    )
    ours = {(each.name, each.kind, "", each.help) for each in tables}
    ours |= {(each.name, each.kind, "`reason`", each.help) for each in metric_tables.REASONS}
    ours |= {(each.name, "histogram", "", each.help) for each in metric_tables.HISTOGRAMS}
    for family in metric_tables.FAMILIES.values():
        shown = ", ".join(f"`{label}`" for label in family.labels)
        ours |= {(each.name, each.kind, shown, each.help) for each in family.metrics}
    built = metric_tables.IDENTITY[-1]
    ours.add((built.name, built.kind, "`version`, `python_version`", built.help))
    assert set(listed) == {each for each in ours if each[0].startswith("leveret_")}
    _, _, families = page.partition("## Families")
    assert set(re.findall(r"`(\w+)`", families)) >= set(FAMILY_NAMES)


# pages


@pytest.mark.parametrize("path", [*PAGES, EVERY_FAMILY])
def test_names_of_any_bytes_leave_a_page_that_can_be_parsed(api, path):
    for name in ODD:
        api.add_queue(name)
    page = scrape(api, path)
    if path != "/metrics":
        name = "rabbitmq_detailed_queue_messages" if "detailed" in path else "rabbitmq_queue_messages"
        found = {dict(labels)["queue"] for labels in page.all(name)}
        assert found == {*ODD[:3], "Not UTF-8, base64 is: //4=", *ODD[4:]}


def test_detailed_shows_the_families_and_virtual_hosts_of_the_query(api, used):
    api.add_vhost("other")
    api.add_queue("there", vhost="other")
    asked = "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status"
    always = {"rabbitmq_build_info", "rabbitmq_identity_info", "leveret_build_info"}
    coarse = {
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
    }
    page = scrape(api, asked)
    assert page.names == always | coarse | {"rabbitmq_cluster_vhost_status"}
    assert len(page.all("rabbitmq_detailed_queue_messages")) == 2
    page = scrape(api, f"{asked}&vhost=other&vhost=missing")
    assert [dict(labels) for labels in page.all("rabbitmq_detailed_queue_messages")] == [
        {"vhost": "other", "queue": "there"}
    ]
    assert [dict(labels) for labels in page.all("rabbitmq_cluster_vhost_status")] == [{"vhost": "other"}]
    for query in ("", "?family=nonsense", "?family=", "?vhost=%2F"):
        assert scrape(api, f"/metrics/detailed{query}").names == always


def test_every_family_is_shown_in_detail(api, used):
    page = scrape(api, EVERY_FAMILY)
    metrics = [metric for family in metric_tables.FAMILIES.values() for metric in family.metrics]
    assert {metric.named(detailed=True) for metric in metrics} <= page.kinds.keys()
    assert page["rabbitmq_detailed_channels_opened_total"] == 1
    assert page["rabbitmq_detailed_process_open_fds"] > 10
    exchanges = {dict(labels)["exchange"] for labels in page.all("rabbitmq_cluster_exchange_name")}
    assert exchanges == {"amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"}


def test_both_names_of_the_number_of_consumers_show_it_once(api, used):
    for families in ("family=queue_consumer_count", "family=queue_metrics&family=queue_consumer_count"):
        page = scrape(api, f"/metrics/detailed?{families}")
        assert page.of("rabbitmq_detailed_queue_consumers", queue="q") == 0


def test_a_user_without_the_tag_monitoring_sees_no_metrics(api):
    user = api.add_user("manager", "management", "/")
    for path in (*PAGES, "/metrics/detailed"):
        answer = api.get(path, user)
        assert (answer.status, answer.json["reason"]) == (401, "Not monitor user")
    assert api.get("/metrics", api.add_user("watcher", "monitoring")).status == 200
    assert api.get("/metrics", None).status == 401


def test_the_listener_for_prometheus_asks_for_no_login_and_serves_nothing_else(api, used):
    app = create_metrics_app(api.broker.server.broker, node=api.node.facts)
    api.listener, listener = HttpListener(app, "127.0.0.1", 0), api.listener
    api.app, whole = app, api.app
    api.run(api.listener.start())
    try:
        for path in (*PAGES, EVERY_FAMILY):
            assert parse(api.get(path, None).body.decode()).names
        assert api.ask("POST", "/metrics", None).status == 405
        assert api.get("/api/overview", None).status == 404
    finally:
        api.run(api.listener.stop())
        api.listener, api.app = listener, whole


# sums never go down


def test_counters_survive_the_objects_that_have_counted(api, used):
    used.exchange_declare("x", "fanout")
    used.queue_bind("q", "x")
    used.basic_publish("x", "", b"")
    before = scrape(api).counters()
    used.exchange_delete("x")
    used.queue_delete("q")
    used.connection.close()
    api.broker.wait_until(lambda: not api.broker.server.broker.sessions, "the connection is gone")
    after = scrape(api).counters()
    assert {key for key, value in before.items() if after[key] < value} == set()
    assert after["rabbitmq_queue_messages_published_total", frozenset()] == 6
    assert after["rabbitmq_global_messages_routed_total", frozenset({("protocol", "amqp091")})] == 6


def test_a_queue_that_is_deleted_during_a_walk_counts_once(api, used):
    broker = api.broker.server.broker

    def walked() -> tuple[int, int]:
        walk = views.queue_rows(broker)
        broker.vhosts["/"].delete_queue(broker.vhosts["/"].queues["q"])
        figures = [row.figures for row in walk.rows]
        published = sum(each.published for each in [*figures, *walk.deleted.values()])
        return published, sum(each.messages for each in figures)

    assert api.broker.call(walked) == (5, 0)
    assert scrape(api)["rabbitmq_queue_messages_published_total"] == 5


def test_a_connection_that_ends_during_a_walk_is_not_shown(api, channel):
    with pika.BlockingConnection(pika.URLParameters(api.broker.url)):
        walk = api.broker.call(lambda: views.connection_rows(api.broker.server.broker))
        first = api.broker.call(lambda: next(walk))
    core = api.broker.server.broker
    api.broker.wait_until(lambda: len(core.sessions) == 1, "the connection is gone")
    assert api.broker.call(lambda: [row.names for row in walk]) == []
    (left,) = api.broker.call(lambda: [session.name for session in core.sessions])
    assert first.names == (left,)


def test_objects_are_read_in_pieces_between_which_the_loop_runs(api):
    for number in range(250):
        api.add_queue(f"q{number}")
    passes: list[int] = []

    async def count_while_reading() -> int:
        async def count() -> None:
            while True:
                passes.append(0)
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        objects = await read("queue", api.broker.server.broker, keeps_rows=True)
        counting.cancel()
        return len(objects.rows)

    assert api.run(count_while_reading()) == 250
    assert len(passes) >= 3


def test_every_kind_of_object_is_read(api, used, orders, join):
    join()

    async def counts() -> dict[str, int]:
        return {kind: (await read(kind, api.broker.server.broker, keeps_rows=False)).count for kind in KINDS}

    assert api.run(counts()) == {
        "queue": 3,
        "exchange": 8,
        "channel": 2,
        "connection": 2,
        "group": 1,
        "query": 0,
    }
