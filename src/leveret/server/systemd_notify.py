"""Messages to the service manager that has started the process: systemd's `Type=notify`.

Owns the datagrams (see `sd_notify(3)`). Without a service manager, nothing is sent. The rule: a service
manager that does not listen never stops the broker.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """`ServiceManager(os.environ).ready("listens on port 5672")`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self, status: str) -> None:
        """The start, or a reload, has ended. `systemctl status` shows the status."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def reloading(self) -> None:
        """Settings are read again; `ready` says when that has ended."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The process has begun to stop."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.sendto(state.encode(), self._address)
