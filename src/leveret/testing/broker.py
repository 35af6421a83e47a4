"""A real broker in the test's process: on a free port, in memory or on a directory, started in milliseconds.

    with Broker() as broker:                       # in its own thread
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        ...
        broker.wait_until_depth("orders", 3)

    async with Broker() as broker: ...             # in the running loop

It is the server and the store of `leveret serve`, so tests see the behaviour of production. With a
`VirtualClock` the test moves the time; `crash` and `restart` show what survives.
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
from leveret.server.tls import CurrentTls
from leveret.storage.files import Files, OsFiles
from leveret.storage.store import Options
from leveret.testing.clock import VirtualClock
from leveret.testing.definitions import MemoryDefinitions
from leveret.testing.disk import SimulatedDisk
from leveret.testing.faults import Faults, FaultySocket

T = TypeVar("T")

WAIT_S = 60.0
"""Timeout of every wait: far more than needed, so that a busy machine does not fail a test."""
_GOODBYE_S = 0.2
"""Time in which clients must leave: clients in tests often do not read their sockets any more."""
_SMALL = Options(wal_bytes=4 << 20, segment_bytes=4 << 20, memory_bytes=16 << 20, reserve_bytes=64 << 10)


class Broker:
    """A broker for tests: `with Broker() as broker:` or `async with`; clients connect to `broker.url`."""

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        clock: VirtualClock | None = None,
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        options: Options = _SMALL,
        port: int = 0,
        flight: bool | FlightSettings = False,
        tls: CurrentTls | None = None,
        goodbye_s: float = _GOODBYE_S,
    ) -> None:
        """By default the broker is in memory and uses the machine's clock. `flight` needs a directory, and
        lets Spark read and write. `tls` adds a port, `server.tls_port`. `goodbye_s` is how long `stop` waits
        for clients to leave."""
        self.clock = clock
        self.disk = None if directory is not None else SimulatedDisk()
        """The disk of an in-memory broker, which can crash, fill up and fail."""
        self.directory = None if directory is None else Path(directory)
        """The data directory; None for a broker in memory."""
        self.definitions = MemoryDefinitions()
        """Queues, exchanges and users of an in-memory broker, kept over restarts."""
        self._limits = limits
        self._options = options
        self._port = port
        self._flight = FlightSettings(str(directory)) if flight is True else flight or None
        self._tls = tls
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
        """Run the broker in a thread; return when it listens."""
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
        """Stop the broker as SIGTERM does."""
        if self._thread is not None:
            self._end(self._thread, self.server.stop)

    def restart(self) -> None:
        """Stop the broker gracefully, and start it again on its port."""
        self._port = self.port
        self.stop()
        self.start()

    def crash(self, power_loss: Random | None = None) -> None:
        """End the broker as `kill -9` does, or as a power loss with this randomness; then call `start`."""
        assert self.disk is not None, "only a broker in memory can crash"
        assert self._thread is not None, "only a broker in its own thread can crash"
        self._port = self.port
        self._end(self._thread, self.server.abandon)
        self.definitions.close()
        self.disk = self.disk.restart() if power_loss is None else self.disk.crash(power_loss)

    def _end(self, thread: threading.Thread, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self.clock is not None:
            self.clock.ignore(self._tick)
        if not self.server.ended.is_set():
            self.run(end())
        thread.join(WAIT_S)
        self._thread = None

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
            tls=self._tls,
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

            # Bytes that clients have sent before are read first, in an earlier pass of the event loop.
            self._loop.call_soon_threadsafe(self._loop.call_soon, tick)
            done.wait(WAIT_S)

    # addresses

    @property
    def server(self) -> Server:
        assert self._server is not None, "the broker has not been started"
        return self._server

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def endpoint(self) -> FlightEndpoint | None:
        """The endpoint for Arrow Flight; None without `flight`."""
        return self.server.endpoint

    @property
    def url(self) -> str:
        return self.server.url

    # alarms

    def set_alarm(self, what: str, *, on: bool) -> None:
        """Set or clear the alarm for `memory` or `disk`, which holds publishers back."""

        def change() -> None:
            self.server.turns.begin()
            self.server.broker.set_alarm(what, on=on, source="test")

        self.call(change)

    # queues

    def depth(self, queue: str, vhost: str = "/") -> int:
        """Return the number of ready messages of a queue."""
        return self.call(lambda: self._queue(queue, vhost).ready)

    def unacked(self, queue: str, vhost: str = "/") -> int:
        """Return the number of unacked messages of a queue."""
        return self.call(lambda: self._queue(queue, vhost).unacked)

    def consumers(self, queue: str, vhost: str = "/") -> int:
        """Return the number of consumers of a queue."""
        return self.call(lambda: self._queue(queue, vhost).consumer_count)

    def wait_until_depth(
        self, queue: str, count: int, *, vhost: str = "/", timeout_s: float = WAIT_S
    ) -> None:
        self._wait_for_count("ready", queue, count, vhost=vhost, timeout_s=timeout_s)

    def wait_until_unacked(
        self, queue: str, count: int, *, vhost: str = "/", timeout_s: float = WAIT_S
    ) -> None:
        self._wait_for_count("unacked", queue, count, vhost=vhost, timeout_s=timeout_s)

    def _wait_for_count(self, state: str, name: str, count: int, *, vhost: str, timeout_s: float) -> None:
        def reached() -> bool:
            queue = self.server.broker.vhosts[vhost].queues.get(name)
            return queue is not None and getattr(queue, state) == count

        self.wait_until(reached, f"queue '{name}' has {count} {state} messages", timeout_s=timeout_s)

    def wait_until(self, holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until a condition holds. It is checked after each turn of the broker, without sleeps.

        For a broker in a thread; with a broker in the running event loop use `await broker.until(...)`.
        """
        if self._thread is None:
            raise RuntimeError("wait_until blocks the event loop of this broker: use await broker.until(...)")
        happened = threading.Event()
        turns = self.server.turns

        def check() -> None:
            if not happened.is_set() and holds():
                happened.set()

        def begin() -> None:
            check()
            turns.watchers.append(check)

        self.call(begin)
        has_happened = happened.wait(timeout_s)
        self.call(lambda: turns.watchers.remove(check))
        if not has_happened:
            raise TimeoutError(f"timed out after {timeout_s:g} s waiting until {what}")

    async def until(self, holds: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait as `wait_until` does, for a broker in the running event loop: `await broker.until(...)`."""
        turns = self.server.turns
        happened = asyncio.Event()

        def check() -> None:
            if holds():
                happened.set()

        check()
        turns.watchers.append(check)
        try:
            await asyncio.wait_for(happened.wait(), timeout_s)
        except TimeoutError:
            raise TimeoutError(f"timed out after {timeout_s:g} s waiting until {what}") from None
        finally:
            turns.watchers.remove(check)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the broker's thread, where it may use the broker's state."""
        if self._thread is None or threading.current_thread() is self._thread:
            return function()
        return self.run(_run(function))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def _queue(self, name: str, vhost: str) -> Destination:
        return self.server.broker.vhosts[vhost].queue(name)


async def _run(function: Callable[[], T]) -> T:
    return function()
