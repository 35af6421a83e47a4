"""Where the examples of the client toolkit run: on the broker that `--url` names, or on one of their own.

    python examples/unroutable.py
    python examples/unroutable.py --url amqp://guest:guest@localhost:5672/

Queues and exchanges of an example start with its name and are deleted before and after it. The toolkit's
log is kept silent here, because each example tells in its own words what happens.
"""

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from pamqp import commands

from leveret.client import Connection
from leveret.client.channel import Channel
from leveret.testing.broker import Broker

WAIT_S = 20.0


@contextmanager
def broker(*names: str) -> Iterator[str]:
    """The URL of a broker where nothing of these names exists: `with broker("example.orders") as url:`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="of a broker that runs, Leveret or RabbitMQ; without it one is started")
    url = parser.parse_args().url
    logging.getLogger("leveret.client").addHandler(logging.NullHandler())
    if url is None:
        with Broker() as own:
            yield own.url
        return
    asyncio.run(delete(url, names))
    try:
        yield url
    finally:
        asyncio.run(delete(url, names))


async def delete(url: str, names: tuple[str, ...]) -> None:
    async with Connection(url) as connection, channel_of(connection) as channel:
        for name in names:
            await channel.call(commands.Queue.Delete(queue=name))
            await channel.call(commands.Exchange.Delete(exchange=name))


@asynccontextmanager
async def channel_of(connection: Connection) -> AsyncIterator[Channel]:
    """For calls that the toolkit has no name for: any method of the protocol."""
    session = await connection.connected(WAIT_S)
    channel = await session.open_channel()
    yield channel
    await channel.close()


class State(NamedTuple):
    ready: int
    consumers: int


async def state(url: str, queue: str) -> State:
    """What the broker says of a queue."""
    async with Connection(url) as connection, channel_of(connection) as channel:
        found = await channel.call(commands.Queue.Declare(queue=queue, passive=True))
        return State(found.message_count, found.consumer_count)


async def wait_until(url: str, queue: str, *, ready: int | None = None, consumers: int | None = None) -> None:
    """Asks until it is so; an error after a while."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await state(url, queue)
            if ready in (None, found.ready) and consumers in (None, found.consumers):
                return
            await asyncio.sleep(0.02)


class Wire:
    """A wire to the broker that can be held and cut: `async with Wire(url) as wire: Connection(wire.url)`."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._writers: list[asyncio.StreamWriter] = []
        self._answers_flow = asyncio.Event()
        self._answers_flow.set()

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._carry, "127.0.0.1")
        port = self._server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        self.url = self._parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def hold_answers(self) -> None:
        """What the client says still arrives; what the broker answers does not."""
        self._answers_flow.clear()

    def cut(self) -> None:
        """Ends every connection, with what was held."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._answers_flow.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._parts.hostname or "localhost", self._parts.port or 5672
        answers, there = await asyncio.open_connection(host, port)
        self._writers += (writer, there)
        await asyncio.gather(self._copy(reader, there, held=False), self._copy(answers, writer, held=True))

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, held: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                if held:
                    await self._answers_flow.wait()
                to.write(data)
        except OSError:
            return
        finally:
            to.close()
