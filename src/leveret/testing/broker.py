"""A real broker in the process, for tests: on a free port, in memory or on a directory, in milliseconds.

    with Broker() as broker:                       # in a thread of its own
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.wait_until_depth("orders", 3)

    async with Broker() as broker: ...             # in the running loop

It is the server that `leveret serve` runs, with the same store, so what a test sees is what production does.
With a `VirtualClock` time passes when the test says so; `crash` and `restart` show what survives.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from leveret.broker.limits import Limits
from leveret.broker.vhosts.destination import Destination
from leveret.fronts.flight.endpoint import FlightEndpoint, FlightSettings
from leveret.server.definitions import Definitions
from leveret.server.server import DefinitionStore, Server
from leveret.storage.files import Files, OsFiles
from leveret.storage.store import Options
from leveret.testing.clock import VirtualClock
from leveret.testing.definitions import MemoryDefinitions
from leveret.testing.disk import SimulatedDisk
from leveret.testing.faults import Faults, FaultySocket

T = TypeVar("T")

WAIT_S = 60.0
"""The bound on every wait. What works takes milliseconds; a busy machine must not fail a test."""
_GOODBYE_S = 0.2
"""Clients in tests often do not look at their sockets any more when the broker stops."""
_SMALL = Options(wal_bytes=4 << 20, segment_bytes=4 << 20, memory_bytes=16 << 20, reserve_bytes=64 << 10)


class Broker:
    """`with Broker() as broker:` or `async with Broker() as broker:`; `broker.url` is where it listens."""

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        clock: VirtualClock | None = None,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        options: Options = _SMALL,
        port: int = 0,
        flight: bool | FlightSettings = False,
        goodbye_s: float = _GOODBYE_S,
    ) -> None:
        """In memory unless a directory is given; on the machine's clock unless a virtual one is. With
        `flight`, which needs a directory, Spark can read and write it. `goodbye_s` is how long `stop` waits
        for clients to leave."""
        self.clock = clock
        self.disk = None if directory is not None else SimulatedDisk()
        """What an in-memory broker writes to: it can crash, fill up and fail."""
        self.directory = None if directory is None else Path(directory)
        """Where the data is, unless it is in memory."""
        self.definitions = MemoryDefinitions()
        """What an in-memory broker knows of queues, exchanges and users when it starts again."""
        self._limits = limits
        self._options = options
        self._port = port
        self._flight = FlightSettings(str(directory)) if flight is True else flight or None
        self._goodbye_s = goodbye_s
        self._server: Server | None = None
        self.faults = Faults(self)
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    # starting and stopping

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        self._loop = asyncio.get_running_loop()
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.clock is not None:
            self.clock.ignore(self._tick)
        await self.server.stop()

    def start(self) -> None:
        """Runs it in a thread; returns when it listens."""
        started = threading.Event()
        failure: list[BaseException] = []

        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            try:
                await self._start()
            except BaseException as error:  # noqa: BLE001  # `start` raises it in the caller's thread
                failure.append(error)
                return
            finally:
                started.set()
            await self.server.ended.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), name="leveret", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Stops it as SIGTERM would."""
        if self._thread is not None:
            if self.clock is not None:
                self.clock.ignore(self._tick)
            if not self.server.ended.is_set():
                self.run(self.server.stop())
            self._thread.join(WAIT_S)
            self._thread = None

    def restart(self) -> None:
        """Stops it gracefully and starts it again, on the same port."""
        self._port = self.port
        self.stop()
        self.start()

    def crash(self, power_loss: Random | None = None) -> None:
        """Ends it as `kill -9` would, or a power loss with this randomness; `start` shows what survived."""
        assert self.disk is not None, "crashes are for a broker in memory"
        assert self._thread is not None, "the broker runs in a thread of its own"
        self._port = self.port
        if self.clock is not None:
            self.clock.ignore(self._tick)
        if not self.server.ended.is_set():
            self.run(self.server.abandon())
        self._thread.join(WAIT_S)
        self._thread = None
        self.definitions.close()
        self.disk = self.disk.restart() if power_loss is None else self.disk.crash(power_loss)

    async def _start(self) -> None:
        files: Files
        definitions: DefinitionStore
        if self.directory is None:
            assert self.disk is not None
            files, definitions = self.disk, self.definitions
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            files = OsFiles(str(self.directory))
            definitions = Definitions(str(self.directory / "definitions.db"))
        self._server = Server(
            files,
            definitions=definitions,
            socket=lambda turns: FaultySocket(turns, self.faults),
            port=self._port,
            clock=self.clock,
            options=self._options,
            limits=self._limits,
            goodbye_s=self._goodbye_s,
            flight=self._flight,
        )
        await self._server.start()
        if self.clock is not None:
            self.clock.listen(self._tick)
        if self._flight is not None and self.endpoint is not None:
            self._flight = replace(self._flight, port=self.endpoint.port)

    def _tick(self) -> None:
        if self._thread is None:
            self.server.turns.tick()
        else:
            done = threading.Event()

            def tick() -> None:
                self.server.turns.tick()
                self.server.turns.loop.call_soon(done.set)

            # What clients have sent before is read first, in a pass of the loop of its own.
            self._loop.call_soon_threadsafe(self._loop.call_soon, tick)
            done.wait(WAIT_S)

    # where it is

    @property
    def server(self) -> Server:
        assert self._server is not None, "the broker has not been started"
        return self._server

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def endpoint(self) -> FlightEndpoint | None:
        """The process that serves Arrow Flight, if there is one."""
        return self.server.endpoint

    @property
    def url(self) -> str:
        return self.server.url

    # what it lacks

    def set_alarm(self, what: str, *, on: bool) -> None:
        """As if it were short of `memory` or `disk`, or no longer: publishers are told, and held back."""

        def set_it() -> None:
            self.server.turns.begin()
            self.server.broker.set_alarm(what, on=on, source="test")

        self.call(set_it)

    # what it holds

    def depth(self, queue: str, vhost: str = "/") -> int:
        """How many messages of a queue are ready."""
        return self.call(lambda: self._queue(queue, vhost).ready)

    def unacked(self, queue: str, vhost: str = "/") -> int:
        """How many messages of a queue are with consumers."""
        return self.call(lambda: self._queue(queue, vhost).unacked)

    def consumers(self, queue: str, vhost: str = "/") -> int:
        """Return how many consumers a queue has."""
        return self.call(lambda: self._queue(queue, vhost).consumer_count)

    def wait_until_depth(
        self, queue: str, count: int, *, vhost: str = "/", timeout_s: float = WAIT_S
    ) -> None:
        self.wait_until(
            lambda: self._holds(queue, vhost, lambda found: found.ready == count),
            f"queue '{queue}' has {count} messages ready",
            timeout_s=timeout_s,
        )

    def wait_until_unacked(
        self, queue: str, count: int, *, vhost: str = "/", timeout_s: float = WAIT_S
    ) -> None:
        self.wait_until(
            lambda: self._holds(queue, vhost, lambda found: found.unacked == count),
            f"queue '{queue}' has {count} messages unacked",
            timeout_s=timeout_s,
        )

    def wait_until(self, holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Waits until something holds; it is looked at when the broker has done something, without sleeps.

        For a broker in a thread; one in the running loop is waited for with `await broker.until(...)`.
        """
        if self._thread is None:
            raise RuntimeError(
                "the broker runs in this loop, which must not be blocked: await broker.until(...)"
            )
        happened = threading.Event()
        turns = self.server.turns

        def look() -> None:
            if not happened.is_set() and holds():
                happened.set()

        def begin() -> None:
            look()
            turns.watchers.append(look)

        self.call(begin)
        came = happened.wait(timeout_s)
        self.call(lambda: turns.watchers.remove(look))
        if not came:
            raise TimeoutError(f"after {timeout_s} s it is not so that {what}")

    async def until(self, holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
        """`wait_until` for a broker in the running loop: `await broker.until(lambda: ..., "it is done")`."""
        turns = self.server.turns
        happened = asyncio.Event()

        def look() -> None:
            if holds():
                happened.set()

        look()
        turns.watchers.append(look)
        try:
            await asyncio.wait_for(happened.wait(), timeout_s)
        except TimeoutError:
            raise TimeoutError(f"after {timeout_s} s it is not so that {what}") from None
        finally:
            turns.watchers.remove(look)

    def call(self, function: Callable[[], T]) -> T:
        """Runs something on the broker's thread, where its state may be looked at."""
        if self._thread is None or threading.current_thread() is self._thread:
            return function()
        return self.run(_run(function))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the broker's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def _holds(self, name: str, vhost: str, holds: Callable[[Destination], bool]) -> bool:
        """False for a queue that does not exist yet."""
        found = self.server.broker.vhosts[vhost].queues.get(name)
        return found is not None and holds(found)

    def _queue(self, name: str, vhost: str) -> Destination:
        return self.server.broker.vhosts[vhost].queue(name)


async def _run(function: Callable[[], T]) -> T:
    return function()
