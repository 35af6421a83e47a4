"""The brokers that are measured, each on free ports and a temporary directory of its own.

    with RabbitMQ() as server:
        server.host, server.port, server.pid

A server is ready when `start` is back, and gone, with its directory, when the `with` ends. Only processes
started here are ended. RabbitMQ runs as its package configures it, with an epmd of its own beside it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peer import Client, Unexpected

START_S = 60.0
STOP_S = 30.0
REALTIME = ("chrt", "--rr", "1")
"""Before a command: it waits for no processor that a process of the usual kind has."""


class Missing(Exception):
    """The broker is not installed here."""


class Server:
    """One process that speaks AMQP; subclasses say how it is started."""

    name: str
    host = "127.0.0.1"
    port: int
    http_port = 0
    flight_port = 0

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._processes[-1].pid

    def start(self) -> None:
        raise NotImplementedError

    def run(self, command: list[str], **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
        self._processes.append(process)
        return process  # type: ignore[no-any-return]

    def stop(self) -> None:
        """The last started first, each with time to stop in good order."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def wait_for_line(self, process: subprocess.Popen[str]) -> None:
        """Takes the port from the line that says where the process is ready."""
        assert process.stdout
        deadline = time.monotonic() + START_S
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            line = process.stdout.readline()
            if found := re.search(r"ready on amqp://[^:/]+:(\d+)", line):
                self.port = int(found[1])
                ports = dict(re.findall(r"(http|grpc)://[^:/]+:(\d+)", line))
                self.http_port, self.flight_port = (int(ports.get(name, 0)) for name in ("http", "grpc"))
                return
            if not line:
                raise Missing(f"{self.name} ended before it was ready: exit code {process.wait()}")
        raise Missing(f"{self.name} was not ready after {START_S:.0f} s")


class RabbitMQ(Server):
    """Debian's rabbitmq-server, without plugins or, for its HTTP API, with the management plugin."""

    name = "rabbitmq"
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    def __init__(self, *, management: bool = False) -> None:
        super().__init__()
        self._management = management

    def start(self) -> None:
        if not self.script.exists():
            raise Missing("rabbitmq-server is not installed")
        self.port, distribution, names, http_port = free_ports(4)
        if self._management:
            self.http_port = http_port
        environment = self.environment(distribution, names)
        self.run(["epmd", "-port", str(names), "-address", self.host], env=environment)
        output = (self.directory / "output").open("w")
        self.run([str(self.script)], env=environment, stdout=output, stderr=output, cwd=self.directory)
        self.wait_for_handshake()

    def environment(self, distribution: int, names: int) -> dict[str, str]:
        plugins = "rabbitmq_management" if self._management else ""
        (self.directory / "plugins").write_text(f"[{plugins}].\n")
        if self._management:
            listener = f"management.tcp.ip = {self.host}\nmanagement.tcp.port = {self.http_port}\n"
            (self.directory / "rabbitmq.conf").write_text(listener)
        settings = {
            "NODENAME": f"bench-{os.getpid()}@localhost",
            "NODE_IP_ADDRESS": self.host,
            "NODE_PORT": str(self.port),
            "DIST_PORT": str(distribution),
            "MNESIA_BASE": str(self.directory / "mnesia"),
            "LOG_BASE": str(self.directory / "log"),
            "CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "GENERATED_CONFIG_DIR": str(self.directory / "config"),
            "CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            # With "input allowed" the script becomes the Erlang process, so that its id is the broker's.
            "ALLOW_INPUT": "1",
            "SERVER_ADDITIONAL_ERL_ARGS": "-noinput",
        }
        return {
            **{key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ},
            **{f"RABBITMQ_{key}": value for key, value in settings.items()},
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": self.host,
        }

    def wait_for_handshake(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._processes[-1].poll() is not None:
                raise Missing(f"rabbitmq-server ended: {(self.directory / 'output').read_text()[-2000:]}")
            try:
                Client(self.host, self.port).close()
                return
            except (OSError, Unexpected):
                time.sleep(0.1)
        raise Missing(f"rabbitmq-server was not ready after {START_S:.0f} s")


class Leveret(Server):
    """`leveret serve` of the environment this runs in; under cProfile when a file for it is given."""

    name = "leveret"
    script = Path(sys.executable).parent / "leveret"

    def __init__(
        self,
        profile: Path | None = None,
        *,
        cpus: str | None = None,
        realtime: bool = False,
        source: Path | None = None,
    ) -> None:
        """`source` is a folder with another `leveret` package: older code to compare with."""
        super().__init__()
        self.source = source
        self.name = "before" if source else "leveret"
        self.profile = profile
        self.cpus = cpus
        self.realtime = realtime

    def start(self) -> None:
        if not self.script.exists():
            raise Missing(f"{self.script.name} is not installed beside {Path(sys.executable).name}")
        before = list(REALTIME) if self.realtime else []
        before += [sys.executable, "-m", "cProfile", "-o", str(self.profile)] if self.profile else []
        serve = [str(self.script), "serve", "--port", "0", "--data-dir", str(self.directory / "data")]
        serve += [] if self.cpus is None else ["--cpus", self.cpus]
        errors = (self.directory / "errors").open("w")
        environment = {**os.environ, "PYTHONPATH": str(self.source)} if self.source else None
        self.wait_for_line(
            self.run([*before, *serve], stdout=subprocess.PIPE, stderr=errors, env=environment)
        )

    def stop(self) -> None:
        """What it had to complain about is shown."""
        errors = self.directory / "errors"
        if errors.exists():
            sys.stderr.writelines(errors.read_text().splitlines(keepends=True)[-20:])
        super().stop()


class Sink(Server):
    """The broker that does nothing, after some time if one is given; plays the one run that it is given."""

    name = "sink"

    def __init__(self, run: str, *, wait_s: float = 0.0, realtime: bool = False) -> None:
        super().__init__()
        self._run = run
        self._wait_s = wait_s
        self._realtime = realtime

    def start(self) -> None:
        before = REALTIME if self._realtime else ()
        command = [*before, sys.executable, "-m", "bench.sink", self._run, str(self._wait_s)]
        self.wait_for_line(self.run(command, stdout=subprocess.PIPE))


def free_ports(count: int) -> list[int]:
    """Held all at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
