"""Signals to a real `leveret serve`: SIGTERM ends it, SIGHUP does not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.serving import Serving
from tests.processes import WAIT_S, wait_until
from tests.semantics.client import Client

pytestmark = pytest.mark.real


def test_sighup_is_logged_and_clients_notice_nothing(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        channel = Client(server.port).channel().confirm_select()
        channel.declare("q")
        server.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: (
                "SIGHUP: there is nothing to reload" in server.errors or server.process.poll() is not None
            ),
            "the broker logs the signal",
            timeout_s=WAIT_S,
        )
        assert server.process.poll() is None, f"SIGHUP has ended the broker: {server.errors}"
        channel.publish_confirmed("q", "1")
        assert channel.get_all("q") == ["1"]
        assert server.terminate() == 0
