"""Thousands of connections that do nothing: each costs a little memory, and nobody else notices.

The broker runs in a process of its own, so that what is measured is its memory and not the clients'.
"""

import asyncio
import contextlib
import re
import resource
import subprocess
import sys
from collections.abc import Coroutine, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands

from tests.amqp.session import handshake, names_in, sent
from tests.processes import WAIT_S

pytestmark = pytest.mark.real

COUNT = 5_000
AT_ONCE = 250
BYTES_PER_CONNECTION_MAX = 64 << 10
FILES_NEEDED = COUNT + 200
SERVER = """
import resource, sys
from leveret.testing.broker import Broker
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, int(sys.argv[1])), hard))
with Broker() as broker:
    print(broker.port, flush=True)
    for line in sys.stdin:  # what the test asks for
        if line.strip() == "none left":
            broker.wait_until(lambda: not broker.server.turns.sockets, "all sockets are gone")
        print(broker.call(lambda: len(broker.server.broker.sessions)), flush=True)
"""

LOST = re.compile("connection lost: |[0-9]+ more connections that failed within 60 s: ")
LINES_MAX = 11
"""Lines of one address in a minute, and the one that counts the others."""


class Server:
    """A broker in another process, and questions to it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, question: str) -> int:
        """How many connections it knows."""
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no VmRSS")


@pytest.fixture
def server() -> Iterator[Server]:
    command = [sys.executable, "-c", SERVER, str(FILES_NEEDED)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Server(process)
        finally:
            _, errors = process.communicate(timeout=WAIT_S)
        lines = errors.splitlines()
        assert [line for line in lines if not LOST.match(line)] == []
        assert len(lines) <= LINES_MAX, "a flood of lost connections is counted, not written"
        assert process.returncode == 0


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        pytest.skip(f"{FILES_NEEDED} open files are needed, and no more than {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES_NEEDED), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Streams:
    """An open connection, and nothing on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(handshake(heartbeat_s=600))
    await answered(reader, "connection.open-ok")
    return reader, writer


async def answered(reader: asyncio.StreamReader, name: str) -> None:
    """Reads up to the method with this name."""
    found = ""
    while found != name:
        head = await reader.readexactly(7)
        data = head + await reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
        (found,) = names_in(data)
        assert not found.startswith("connection.close "), found


async def disconnect(streams: Streams) -> None:
    reader, writer = streams
    writer.write(sent(0, commands.Connection.Close))
    await answered(reader, "connection.close-ok")
    writer.close()
    await writer.wait_closed()


async def in_groups(waiting: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Awaits them all, some at once."""
    found: list[Any] = []
    waiting = iter(waiting)
    async with asyncio.timeout(WAIT_S):
        while group := list(islice(waiting, AT_ONCE)):
            found += await asyncio.gather(*group)
    return found


def works(port: int, count: int = 50) -> None:
    """An ordinary client publishes with confirms, consumes and acks, as if it were alone."""
    with contextlib.closing(
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    ) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for number in range(count):
            channel.basic_publish("", queue, str(number).encode(), mandatory=True)
        found = []
        for method, _, body in channel.consume(queue, inactivity_timeout=WAIT_S):
            assert method is not None
            found.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        assert found == list(range(count))


def test_five_thousand_idle_connections_cost_little_and_disturb_nobody(
    server: Server, many_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    works(server.port)
    before_bytes = server.resident_bytes()

    async def play() -> None:
        wires = await in_groups(connect(server.port) for _ in range(COUNT))
        assert server.ask("how many") == COUNT
        each_bytes = (server.resident_bytes() - before_bytes) // COUNT
        with capsys.disabled():
            print(f"\n{COUNT} idle connections take {each_bytes / 1024:.1f} KiB each")
        assert each_bytes < BYTES_PER_CONNECTION_MAX
        await asyncio.to_thread(works, server.port)
        await in_groups(disconnect(each) for each in wires)

    asyncio.run(play())
    assert server.ask("none left") == 0
    works(server.port)
    assert server.ask("none left") == 0


def test_connections_that_vanish_all_at_once_leave_nothing(server: Server, many_files: None) -> None:
    async def play() -> None:
        wires = await in_groups(connect(server.port) for _ in range(1_000))
        for _, writer in wires:
            writer.transport.abort()

    asyncio.run(play())
    assert server.ask("none left") == 0
    works(server.port)
