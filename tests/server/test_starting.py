"""A server that can't start says so: nothing listens in the name of a broker that has failed already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leveret.broker.definitions import Change, PermissionRow
from leveret.fronts.flight.endpoint import FlightSettings
from leveret.server.server import Server
from leveret.storage.files import OsFiles
from leveret.testing.broker import Broker
from leveret.testing.definitions import MemoryDefinitions
from tests.semantics.client import Client

pytestmark = pytest.mark.real

FULL = OSError(28, "No space left on device")


class Failing(MemoryDefinitions):
    """Whose thread can't write, and says so while the server still starts."""

    def start(
        self, committed: Callable[[int], None], failed: Callable[[BaseException], None], **others: Any
    ) -> None:
        super().start(committed, failed, **others)
        reporting = threading.Thread(target=failed, args=[FULL])
        reporting.start()
        reporting.join()


def test_a_failure_while_it_starts_is_raised_and_nothing_is_left(tmp_path: Path):
    async def start() -> None:
        directory = str(tmp_path)
        server = Server(OsFiles(directory), definitions=Failing(), port=0, flight=FlightSettings(directory))
        with pytest.raises(OSError, match="No space left on device") as raised:
            await server.start()
        assert raised.value is FULL
        assert server.endpoint is not None
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.endpoint.port)
        again = Server(OsFiles(directory), definitions=MemoryDefinitions(), port=0)  # the store is free
        await again.start()
        await again.stop()

    asyncio.run(start())


def test_a_pattern_from_before_that_can_not_be_used_is_named_and_hinders_nobody_else(caplog):
    """Such rows are from a version of Leveret that used another engine, or were written by hand."""
    with Broker() as broker:
        broker.definitions.put(9, [Change(PermissionRow("/", "guest", ".*", "(?!amq)", ".*"))])
        broker.restart()
        assert "user 'guest' in vhost '/' matches no name: write: '(?!amq)' is not a regular" in caplog.text
        channel = Client(broker.port).channel()
        channel.declare("q")
        channel.publish("q", "1")
        assert channel.error().code == 403
