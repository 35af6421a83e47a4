"""Publishers under test: the ways in which they are kept busy while something happens to the connection.

Owns the connection and the publisher of a scenario and enters every receipt into the books. Which faults are
in the way is planned by the tests before they start it; whether the books are in order is asked afterwards.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from leveret.client.backoff import Backoff
from leveret.client.connection import Connection
from leveret.client.publisher import Publisher
from tests.client.accounts import Books
from tests.processes import wait_until

QUICK = Backoff(initial_s=0.01, multiplier=2, max_s=0.1)
TIMEOUT_S = 60.0
"""Of a publish: long enough that an outage makes nobody give up."""
WINDOW = 200
BURST = 5
PAUSE_S = 0.01
"""Between two bursts, so that the queue that is looked at afterwards stays small."""
TAIL = 50
STRAY_EVERY = 10


@contextlib.asynccontextmanager
async def publishing(
    *urls: str, heartbeat_s: int = 0, window: int = 1000, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[Publisher]:
    async with (
        Connection(
            *urls, backoff=QUICK, heartbeat_s=heartbeat_s, timeout_s=10, chance=random.Random(20260101)
        ) as connection,
        Publisher(connection, timeout_s=timeout_s, window=window) as publisher,
    ):
        yield publisher


def body_of(number: int, size_bytes: int = 0) -> bytes:
    return (b"%d " % number).ljust(size_bytes, b".")


async def publish_at_once(
    url: str,
    keys: Sequence[str],
    books: Books,
    *,
    exchanges: Mapping[int, str] = MappingProxyType({}),
    size_bytes: int = 0,
    heartbeat_s: int = 0,
) -> None:
    """One message for each routing key, without waiting for any; `exchanges` by number, else the default."""
    async with publishing(url, heartbeat_s=heartbeat_s) as publisher:
        for number, key in enumerate(keys):
            body = body_of(number, size_bytes)
            books.enter(publisher.send(body, key, exchange=exchanges.get(number, "")), body)
        assert await publisher.flush(TIMEOUT_S)


async def publish_one_by_one(url: str, keys: Sequence[str], books: Books) -> None:
    """Each message only when the one before it is settled, so that there is a confirm for each."""
    async with publishing(url) as publisher:
        for number, key in enumerate(keys):
            body = body_of(number)
            receipt = publisher.send(body, key)
            books.enter(receipt, body)
            await receipt


@dataclass(slots=True)
class Load:
    """A publisher that pauses for nothing: where it connects, in which order, and its books.

    Every tenth message goes astray, if there is an exchange and a routing key for that.
    """

    urls: Sequence[str]
    queue: str
    books: Books = field(default_factory=Books)
    strays: Sequence[tuple[str, str]] = ()
    connections: int = 0

    async def run(self, over: asyncio.Event) -> None:
        """Publishes until it is over, and then some more."""
        async with publishing(*self.urls, window=WINDOW) as publisher:
            left = TAIL
            while left > 0:
                for _ in range(BURST):
                    await publisher.room()
                    number = len(self.books.entries)
                    exchange, key = self._address(number)
                    self.books.enter(publisher.send(body_of(number), key, exchange=exchange), body_of(number))
                    left -= over.is_set()
                await asyncio.sleep(PAUSE_S)
            assert await publisher.flush(TIMEOUT_S)
            self.connections = publisher.connection.sessions

    def _address(self, number: int) -> tuple[str, str]:
        turn, rest = divmod(number, STRAY_EVERY)
        return ("", self.queue) if rest or not self.strays else self.strays[turn % len(self.strays)]

    def goes_on(self) -> None:
        """For another thread: waits until something is confirmed that is published from now on."""
        known = len(self.books.entries)
        wait_until(
            lambda: any(receipt.confirmed for receipt, _ in self.books.entries[known:]),
            f"messages to {self.queue} are confirmed",
        )


def publish_during(happening: Callable[[], None], *loads: Load) -> None:
    """All of them publish while `happening` runs in a thread; each has a confirm before it begins."""

    def happen() -> None:
        for load in loads:
            load.goes_on()
        happening()

    async def run() -> None:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for load in loads:
                tasks.create_task(load.run(over))
            try:
                await asyncio.to_thread(happen)
            finally:
                over.set()

    asyncio.run(run())
