"""Metrics of a real `leveret serve`: on a port of their own without a login, with figures of the process."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.e2e.serving import Serving
from tests.fronts.http.metric_pages import parse
from tests.processes import WAIT_S, free_ports
from tests.semantics.client import Client

pytestmark = pytest.mark.real


def test_prometheus_needs_no_login_on_the_port_for_metrics(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Serving(tmp_path / "data", "--set", f"listeners.metrics_port={port}") as server:
        client = Client(server.port)
        url = f"http://127.0.0.1:{port}/metrics"
        assert url.removesuffix("/metrics") in server.line
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            page = parse(answer.read().decode())
        client.close()
        assert server.terminate() == 0
    assert page["rabbitmq_connections"] == 1
    assert page["rabbitmq_process_open_tcp_sockets"] >= 1
    assert 10 < page["rabbitmq_process_open_fds"] < page["rabbitmq_process_max_fds"]
    assert page["rabbitmq_process_resident_memory_bytes"] > 10_000_000
    assert page["rabbitmq_resident_memory_limit_bytes"] > 10_000_000
    assert page["rabbitmq_disk_space_available_bytes"] > 0
    assert page["rabbitmq_disk_space_available_limit_bytes"] == 50_000_000
    assert page["process_cpu_seconds_total"] > 0
