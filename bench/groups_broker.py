"""The broker of the group benchmark: `leveret serve` with its HTTP port known, and runs that may fail.

AMQP has no method to look at a group, to change it from outside or to delete it: those few calls are made
here, over HTTP, and never while something is measured that they could disturb.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.peer import Client, Unexpected
from bench.servers import Leveret, Missing, free_ports
from bench.streams import Stall

HTTP_S = 60.0
SETTLE_S = 30.0
LOGIN = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
Measured = dict[str, Any]
Runs = dict[str, list[Measured]]
"""By contender, in the order in which they were made."""


class GroupBroker(Leveret):
    """`with GroupBroker() as broker: broker.connect()`."""

    def start(self) -> None:
        if not self.script.exists():
            raise Missing(f"{self.script.name} is not installed beside {Path(sys.executable).name}")
        before = [sys.executable, "-m", "cProfile", "-o", str(self.profile)] if self.profile else []
        self.http_port = free_ports(1)[0]
        serve = [str(self.script), "serve", "--port", "0", "--http-port", str(self.http_port)]
        errors = (self.directory / "errors").open("w")
        command = [*before, *serve, "--data-dir", str(self.directory / "data")]
        self.wait_for_line(self.run(command, stdout=subprocess.PIPE, stderr=errors))

    def connect(self) -> Client:
        return Client(self.host, self.port)

    @property
    def resident_bytes(self) -> int:
        """Of the broker's own process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise Unexpected("the broker is gone")

    # groups

    def ask(self, method: str, path: str, body: Measured | None = None) -> Any:
        """The answer of `/api{path}`."""
        connection = HTTPConnection(self.host, self.http_port, timeout=HTTP_S)
        try:
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), LOGIN)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise Unexpected(f"{method} {path}: {response.status} {text.decode()}")
        return json.loads(text) if text else None

    def group(self, name: str) -> Measured:
        """Its line in the list of groups."""
        found: list[Measured] = [each for each in self.ask("GET", "/groups/%2F") if each["name"] == name]
        return found[0]

    def change_group(self, name: str, **settings: object) -> None:
        self.ask("PATCH", f"/groups/%2F/{name}", dict(settings))

    def delete_group(self, name: str) -> None:
        self.ask("DELETE", f"/groups/%2F/{name}")

    def check_done(self, name: str) -> None:
        """Everything was settled: nothing of the stream or topic is left for this group."""
        deadline = time.monotonic() + SETTLE_S
        while (found := self.group(name))["lag"] or found["in_flight"]:
            if time.monotonic() > deadline:
                raise Unexpected(f"group '{name}' has {found['lag']} messages left: {found}")
            time.sleep(0.01)


def attempt(measure: Callable[[], Measured]) -> Measured:
    """A run, or why there is none."""
    try:
        return measure()
    except (Unexpected, Stall, OSError) as reason:
        return {"error": f"{type(reason).__name__}: {reason}"}


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
