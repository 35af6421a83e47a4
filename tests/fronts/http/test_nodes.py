"""The node over HTTP: its machine, its name, its logins."""

import os

import pytest


def test_a_node_tells_about_process_and_machine(api, channel):
    (node,) = api.get("/api/nodes").json
    assert api.get(f"/api/nodes/{api.broker.server.broker.node}").json.keys() == node.keys()
    assert (node["name"], node["os_pid"], node["running"]) == (
        api.broker.server.broker.node,
        str(os.getpid()),
        True,
    )
    assert node["mem_used"] > 1_000_000
    assert node["fd_used"] >= node["sockets_used"] >= 2
    assert node["fd_total"] >= node["sockets_total"] > 0
    assert node["proc_used"] > 1
    assert (node["mem_alarm"], node["disk_free_alarm"], node["partitions"]) == (False, False, [])
    assert {"amqp", "http"} == {each["protocol"] for each in api.get("/api/overview").json["listeners"]}
    assert {each["name"] for each in node["auth_mechanisms"]} >= {"PLAIN", "AMQPLAIN"}


def test_numbers_of_a_node_have_rates_and_samples(leveret_clock, api):
    leveret_clock.advance(5)
    leveret_clock.advance(5)
    (node,) = api.get("/api/nodes?node_stats_age=5&node_stats_incr=5").json
    assert len(node["mem_used_details"]["samples"]) == 2
    assert node["io_sync_count_details"]["rate"] >= 0.0
    assert "samples" in node["queue_created_details"]


def test_alarms_are_those_of_the_broker(api):
    api.broker.call(lambda: api.broker.server.broker.set_alarm("memory", on=True))
    (node,) = api.get("/api/nodes").json
    assert (node["mem_alarm"], node["disk_free_alarm"]) == (True, False)


def test_memory_is_shown_by_who_uses_it(api):
    memory = api.get(f"/api/nodes/{api.broker.server.broker.node}/memory").json["memory"]
    parts = sum(value for value in memory.values() if isinstance(value, int))
    assert parts == memory["total"]["rss"] > 1_000_000
    relative = api.get(f"/api/nodes/{api.broker.server.broker.node}/memory/relative").json["memory"]
    assert relative["total"] == 100
    assert relative["other_system"] > 50
    assert "memory" in api.get(f"/api/nodes/{api.broker.server.broker.node}?memory=true").json


@pytest.mark.parametrize("path", ["nodes/nope", "nodes/nope/memory", "auth/attempts/nope"])
def test_there_is_no_other_node(api, path):
    assert api.get(f"/api/{path}").status == 404


def test_a_cluster_has_a_name_that_lasts(api):
    assert api.get("/api/cluster-name").json == {"name": "leveret"}
    assert api.ask("PUT", "/api/cluster-name", body={"name": "orders in Berlin"}).status == 204
    assert api.get("/api/cluster-name").json == {"name": "orders in Berlin"}
    assert api.get("/api/overview").json["cluster_name"] == "orders in Berlin"
    api.run(api.listener.stop())
    api.broker.restart()
    assert api.broker.server.broker.name == "orders in Berlin"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "[{key_missing,name}]"),
        ({"name": 5}, "name must be a string."),
    ],
)
def test_a_cluster_name_is_a_text(api, body, reason):
    refused = api.ask("PUT", "/api/cluster-name", body=body)
    assert (refused.status, refused.json["reason"]) == (400, reason)
    assert api.get("/api/cluster-name").json == {"name": "leveret"}


def test_logins_are_counted_by_protocol(api, channel):
    api.get("/api/whoami", "guest:wrong")
    attempts = {
        each["protocol"]: each for each in api.get(f"/api/auth/attempts/{api.broker.server.broker.node}").json
    }
    assert attempts["amqp091"] == {
        "protocol": "amqp091",
        "auth_attempts": 1,
        "auth_attempts_failed": 0,
        "auth_attempts_succeeded": 1,
    }
    assert (attempts["http"]["auth_attempts_failed"], attempts["http"]["auth_attempts_succeeded"]) == (1, 1)
    assert api.ask("DELETE", f"/api/auth/attempts/{api.broker.server.broker.node}").status == 204
    (left,) = api.get(f"/api/auth/attempts/{api.broker.server.broker.node}").json
    assert (left["protocol"], left["auth_attempts"]) == ("http", 1)
    assert api.get(f"/api/auth/attempts/{api.broker.server.broker.node}/source").json == []
    assert api.ask("DELETE", f"/api/auth/attempts/{api.broker.server.broker.node}/source").status == 204


def test_flags_of_rabbitmq_are_enabled_and_there_are_no_extensions(api):
    assert {each["state"] for each in api.get("/api/feature-flags").json} == {"enabled"}
    assert api.get("/api/extensions").json == []
    assert api.ask("POST", "/api/rebalance/queues", body={}).status == 204


@pytest.mark.parametrize("path", ["nodes", "nodes/{node}", "nodes/{node}/memory", "auth/attempts/{node}"])
def test_only_who_may_monitor_sees_the_node(api, path):
    refused = api.get(
        f"/api/{path.format(node=api.broker.server.broker.node)}", api.add_user("ann", "policymaker", "/")
    )
    assert (refused.status, refused.json["reason"]) == (401, "Not monitor user")
    assert (
        api.get(
            f"/api/{path.format(node=api.broker.server.broker.node)}", api.add_user("bob", "monitoring")
        ).status
        == 200
    )
