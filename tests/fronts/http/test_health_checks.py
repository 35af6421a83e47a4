"""RabbitMQ's health checks: 200, or 503 with the reason."""

import time

import pytest

from leveret.fronts.http.app import create_app
from leveret.fronts.http.node_facts import CertificateFacts, ListenerFacts, NodeFacts
from leveret.server.http import HttpListener

DAY_S = 86_400


@pytest.mark.parametrize(("path", "where"), [("alarms", "in the cluster"), ("local-alarms", "on the node")])
def test_alarms_are_named_with_their_resource(api, path, where):
    assert api.get(f"/api/health/checks/{path}").json == {"status": "ok"}
    core = api.broker.server.broker
    api.broker.call(lambda: [core.set_alarm(resource, on=True) for resource in ("disk", "memory")])
    failed = api.get(f"/api/health/checks/{path}")
    assert failed.status == 503
    assert failed.json == {
        "status": "failed",
        "reason": f"There are alarms in effect {where}",
        "alarms": [
            {"node": api.broker.server.broker.node, "resource": "disk space"},
            {"node": api.broker.server.broker.node, "resource": "memory"},
        ],
    }


def test_the_older_check_of_a_node_names_alarms_without_a_status_of_its_own(api):
    core = api.broker.server.broker
    for path in ("node", f"node/{core.node}"):
        assert api.get(f"/api/healthchecks/{path}").json == {"status": "ok"}
    assert api.get("/api/healthchecks/node/nope").status == 404
    api.broker.call(lambda: core.set_alarm("memory", on=True))
    failed = api.get("/api/healthchecks/node")
    reason = "resource alarm(s) in effect:[memory]"
    assert (failed.status, failed.json) == (200, {"status": "failed", "reason": reason})


def test_a_port_is_listened_on_or_not(api):
    ports = [api.broker.port, api.listener.port]
    found = api.get(f"/api/health/checks/port-listener/{api.broker.port}")
    assert (found.status, found.json) == (200, {"status": "ok", "port": api.broker.port})
    failed = api.get("/api/health/checks/port-listener/1")
    missing = {"status": "failed", "reason": "No active listener", "missing": 1, "ports": ports}
    assert (failed.status, failed.json) == (503, missing)
    refused = api.get("/api/health/checks/port-listener/x")
    assert (refused.status, refused.json) == (400, {"error": "bad_request", "reason": "Invalid port"})


@pytest.mark.parametrize("name", ["amqp", "AMQP", "amqp091", "amqp0-9-1"])
def test_a_protocol_has_several_names(api, name):
    found = api.get(f"/api/health/checks/protocol-listener/{name}")
    assert (found.status, found.json) == (200, {"status": "ok", "protocol": "amqp"})


def test_a_protocol_that_nobody_speaks_is_missing(api):
    failed = api.get("/api/health/checks/protocol-listener/amqps")
    assert failed.status == 503
    assert failed.json == {
        "status": "failed",
        "reason": "No active listener",
        "missing": "amqp/ssl",
        "protocols": ["amqp", "http"],
    }


def test_checks_of_clusters_are_fine_on_one_node(api):
    assert api.get("/api/health/checks/virtual-hosts").json == {"status": "ok"}
    for path in ("node-is-mirror-sync-critical", "node-is-quorum-critical"):
        found = api.get(f"/api/health/checks/{path}").json
        assert found == {"status": "ok", "reason": "single node cluster"}


@pytest.fixture
def encrypted(api):
    """An API of a broker whose certificate ends in ten days, and that of its authority in 40 days."""
    now_s = time.time()
    facts = NodeFacts(
        listeners=(ListenerFacts("amqp", "127.0.0.1", 5672), ListenerFacts("amqp/ssl", "127.0.0.1", 5671)),
        certificates=(CertificateFacts("cert.pem", "ca.pem", now_s + 10 * DAY_S, now_s + 40 * DAY_S),),
    )
    api.run(api.listener.stop())
    app = create_app(api.broker.server.broker, changed=api.broker.server.turns.begin, node=lambda: facts)
    api.listener = HttpListener(app, "127.0.0.1", 0)
    api.run(api.listener.start())
    return api


@pytest.mark.parametrize("within", ["9/days", "1/weeks", "0/years", "-1/months"])
def test_certificates_that_end_later_are_fine(encrypted, within):
    path = f"/api/health/checks/certificate-expiration/{within}"
    assert encrypted.get(path).json == {"status": "ok"}


@pytest.mark.parametrize("within", ["11/days", "2/weeks", "1/months", "1/years"])
def test_certificates_that_end_soon_are_listed_with_their_listeners(encrypted, within):
    failed = encrypted.get(f"/api/health/checks/certificate-expiration/{within}")
    assert (failed.status, failed.json["reason"]) == (503, "Certificates expiring")
    (expired,) = failed.json["expired"]
    assert (expired["protocol"], expired["port"], expired["certfile"]) == ("amqp/ssl", 5671, "cert.pem")
    assert len(expired["certfile_expires_on"]) == len(expired["cacertfile_expires_on"]) == 1


def test_without_certificates_none_expires(api):
    assert api.get("/api/health/checks/certificate-expiration/1000/years").json == {"status": "ok"}


@pytest.mark.parametrize(
    ("within", "reason"),
    [
        ("x/days", "Invalid expiration value."),
        ("1/hours", "Time unit not recognised. Supported units: days, weeks, months, years."),
    ],
)
def test_a_time_has_a_number_and_a_unit(api, within, reason):
    refused = api.get(f"/api/health/checks/certificate-expiration/{within}")
    assert (refused.status, refused.json) == (400, {"error": "bad_request", "reason": reason})
