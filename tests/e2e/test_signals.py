"""Signals to a real `leveret serve`: SIGTERM ends it, SIGHUP does not."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.serving import Serving
from tests.processes import WAIT_S, wait_until
from tests.semantics.client import Client

pytestmark = pytest.mark.real


def test_settings_reach_the_broker_and_the_flight_process(tmp_path: Path) -> None:
    """Connections that say nothing, and a message that is too large, meet limits that were set."""
    limits = {
        "amqp.handshake_timeout_s": 1.5,
        "amqp.message_max_bytes": 10,
        "flight.unknown_s": 0.2,
        "http.body_max_bytes": 1024,
    }
    options = [word for name, value in limits.items() for word in ("--set", f"{name}={value}")]
    with Serving(tmp_path / "data", *options, "--flight-port", "0") as server:
        channel = Client(server.port).channel()
        channel.publish("q", "eleven char")
        assert channel.error().text.endswith("message size 11 is larger than configured max size 10")
        (flight_port,) = re.findall(r"grpc://[^:]+:(\d+)", server.line)
        for port in (server.port, int(flight_port)):
            with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as silent:
                while silent.recv(4096):
                    pass
        (http_port,) = re.findall(r"http://[^:]+:(\d+)", server.line)
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"http://127.0.0.1:{http_port}/api/users/ann", b"x" * 2000, method="PUT"))
        assert "larger than 1024 bytes" in refused.value.read().decode()
        assert server.terminate() == 0


def test_sighup_changes_what_can_be_changed_and_clients_notice_nothing(tmp_path: Path) -> None:
    file = tmp_path / "leveret.toml"
    file.write_text("[log]\nlevel = 'info'\n")

    def hang_up(server: Serving, logged: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: logged in server.errors or server.process.poll() is not None,
            f"the broker logs {logged!r}",
            timeout_s=WAIT_S,
        )
        assert server.process.poll() is None, f"SIGHUP has ended the broker: {server.errors}"

    with Serving(tmp_path / "data", "--config", str(file)) as server:
        channel = Client(server.port).channel().confirm_select()
        channel.declare("q")
        hang_up(server, "0 settings differ")
        file.write_text("[log]\nlevel = 'loud'\n")
        hang_up(server, "nothing is changed: ")
        assert (
            f"{file}, line 2: log.level is 'loud', and must be debug, info, warning or error" in server.errors
        )
        file.write_text(
            "[log]\nformat = 'json'\n[amqp]\nheartbeat_s = 7\n[alarms]\ndisk_free_min_bytes = 1\n"
        )
        hang_up(server, "3 settings differ")
        assert "\"message\": \"SIGHUP: log.format changed from 'text' to 'json'\"" in server.errors
        assert "SIGHUP: amqp.heartbeat_s changes after a restart from 60 to 7" in server.errors
        file.write_text(f"[alarms]\ndisk_free_min_bytes = {2**62}\n")
        hang_up(server, f"disk_free_min_bytes changed from 1 to {2**62}")
        wait_until(lambda: "low on disk: publishers are held back" in server.errors, "the alarm is on")
        file.write_text("")
        hang_up(server, f"disk_free_min_bytes changed from {2**62} to")
        wait_until(lambda: "no longer low on disk" in server.errors, "the alarm is off")
        channel.publish_confirmed("q", "1")
        assert channel.get_all("q") == ["1"]
        assert server.terminate() == 0
