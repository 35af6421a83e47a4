"""The server: a broker over a data directory, its listeners, and their start and stop.

    server = Server(files, definitions=Definitions(path), port=0)
    await server.start()
    ...
    await server.stop()

`stop` is graceful: it stops listening, syncs and confirms publishes, closes connections (320
CONNECTION_FORCED), and closes the store cleanly. The rule: after a failed sync the store is not used again;
the server ends with the error in `failure`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from socket import gethostname
from typing import Protocol

from leveret.broker.access.administration import unusable_patterns
from leveret.broker.broker import Broker
from leveret.broker.definitions import Change, Row
from leveret.broker.limits import Limits
from leveret.broker.product import NAME
from leveret.broker.sessions.channel import Channel
from leveret.fronts.flight.endpoint import FlightEndpoint, FlightSettings
from leveret.server.acceptor import Acceptor
from leveret.server.alarms import INTERVAL_S, MEMORY_SHARE_MAX, Alarms, Measure
from leveret.server.clock import SteadyClock, StepWatch
from leveret.server.damage_log import DamageReport
from leveret.server.descriptors import Descriptors
from leveret.server.hashing import HashThreads
from leveret.server.listening_sockets import BACKLOG, bind_host
from leveret.server.loop_lag import LoopLag
from leveret.server.malloc_settings import machine_bytes
from leveret.server.socket import HANDSHAKE_S, AmqpSocket
from leveret.server.tls import OFF, CurrentTls
from leveret.server.turns import Turns
from leveret.storage.errors import StorageError
from leveret.storage.files import Files
from leveret.storage.store import Options, Store

log = logging.getLogger("leveret")

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"


class DefinitionStore(Protocol):
    """The store of definitions: see `leveret.server.definitions.Definitions`."""

    def load(self) -> list[Row]: ...

    @property
    def is_new(self) -> bool: ...

    @property
    def damage(self) -> Sequence[object]: ...

    def start(
        self,
        committed: Callable[[int], None],
        failed: Callable[[BaseException], None],
        *,
        refused: Callable[[StorageError], None] | None = None,
        resumed: Callable[[], None] | None = None,
    ) -> None: ...

    def put(self, number: int, changes: Sequence[Change]) -> None: ...

    def withdraw(self) -> list[int]: ...

    def close(self) -> None: ...


class Server:
    """One broker and its listeners."""

    def __init__(
        self,
        files: Files,
        *,
        definitions: DefinitionStore,
        host: str = "127.0.0.1",
        port: int = 5672,
        clock: Callable[[], int] | None = None,
        options: Options = Options(),  # noqa: B008  (frozen)
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        name: str = "leveret",
        socket: Callable[[Turns], AmqpSocket] = AmqpSocket,
        measure: Measure | None = None,
        measure_every_s: float = INTERVAL_S,
        goodbye_s: float = 5.0,
        handshake_s: float = HANDSHAKE_S,
        memory_max_bytes: int | None = None,
        flight: FlightSettings | None = None,
        tls: CurrentTls | None = None,
        descriptors: Descriptors | None = None,
        backlog: int = BACKLOG,
        hashing: HashThreads | None = None,
    ) -> None:
        """`clock` returns microseconds, by default a `SteadyClock`. `measure` returns shortages of memory
        and disk. `goodbye_s`, `handshake_s`: time in which clients must leave, or finish the handshake.
        `memory_max_bytes`: limit of the Flight process. `flight`, `tls`: serve Flight, and AMQP over TLS;
        with `tls`, `port` may be `OFF`. `tls` and `descriptors` are shared with other listeners."""
        self._files = files
        self._definitions = definitions
        self._host = host
        self._port = port
        self._clock = SteadyClock() if clock is None else clock
        self._steps: StepWatch | None = None
        self._lag: LoopLag | None = None
        self._options = options
        self._limits = limits
        self._name = name
        self._socket = socket
        self._measure = measure
        self._measure_every_s = measure_every_s
        self._goodbye_s = goodbye_s
        self._handshake_s = handshake_s
        self._memory_max_bytes = memory_max_bytes or int(MEMORY_SHARE_MAX * machine_bytes())
        self._flight = flight
        self._tls = tls
        self._descriptors = descriptors or Descriptors()
        self._alarms: Alarms | None = None
        self.endpoint: FlightEndpoint | None = None
        self._listeners: list[Acceptor] = []
        self._hashing = hashing or HashThreads()
        self._backlog = backlog
        self.broker: Broker
        self.turns: Turns
        self.tls_port: int | None = None
        """The listening port for TLS."""
        self.failure: BaseException | None = None
        """The error that stopped the server, or None."""
        self.ended = asyncio.Event()
        self._started = False

    async def start(self) -> None:
        """Recover the data directory, then listen."""
        store = Store(
            self._files,
            clock=self._clock,
            entropy=lambda: secrets.randbits(64),
            options=self._options,
            # Random, so that logs of different brokers have different ids.
            first_id=(secrets.randbits(32) << 20) + 1,
        )
        turns: Turns | None = None
        try:
            rows = self._definitions.load()
            self.broker = Broker(
                store,
                clock=self._clock,
                token=secrets.token_urlsafe,
                define=self._definitions.put,
                rows=rows,
                definitions_lost=self._definitions.is_new and not store.is_new,
                name=self._name,
                node=f"{NAME.lower()}@{gethostname()}",
                limits=self._limits,
                listener=self,
                hasher=self._hashing,
            )
            for sentence in unusable_patterns(self.broker):
                log.error("%s", sentence)
            self.damage = DamageReport(self.broker)
            self.damage.look()
            self.damage.tell_definitions(self._definitions.damage)
            self._check_accounts(rows)
            loop = asyncio.get_running_loop()
            turns = self.turns = Turns(
                self.broker, loop, fatal=self._fail, withdraw=self._definitions.withdraw
            )
            self._definitions.start(
                turns.committed,
                turns.report,
                refused=turns.definitions_refused,
                resumed=turns.definitions_resumed,
            )
            self._hashing.start(turns.call)
            # Before listening, because connection.start announces its port.
            if self._flight is not None:
                self.endpoint = FlightEndpoint(
                    self.broker,
                    self.turns,
                    self._flight,
                    module="leveret.server.flight_process",
                    memory_max_bytes=self._memory_max_bytes,
                )
                await self.endpoint.start()
            await self._listen()
            if self.failure is not None:
                raise self.failure
        except BaseException:
            await self._undo_start(store, turns)
            raise
        self._started = True
        self.turns.watchers.append(self.damage.look)
        self.broker.sampler.start()
        self.turns.start()
        if self._measure is not None:
            self._alarms = Alarms(self.turns, self._measure, self.helpers, interval_s=self._measure_every_s)
            self._alarms.start()
        self._watch_time(loop)

    def _watch_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch for steps of the system's clock, and for the lag of the event loop."""
        if isinstance(self._clock, SteadyClock):
            self._steps = StepWatch(self._clock, loop)
            self._steps.start()
        self._lag = LoopLag(self.broker.observations.loop_lag_us, loop)
        self._lag.start()

    @property
    def measure(self) -> Measure | None:
        """The function that measures shortages of memory and disk, or None."""
        return self._measure

    def change_alarms(self, measure: Measure, interval_s: float) -> None:
        """Measure shortages with changed limits from now on."""
        self._measure = measure
        if self._alarms is not None:
            self._alarms.measure, self._alarms.interval_s = measure, interval_s

    async def _undo_start(self, store: Store, turns: Turns | None) -> None:
        """Release everything that a failed start has opened."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self.endpoint is not None:
            await self.endpoint.stop()
        self._hashing.close()
        self._definitions.close()
        if turns is not None:
            turns.abandon()
        try:
            store.close()
        except StorageError as error:
            log.error("the store could not be closed cleanly: %s", error)

    def _check_accounts(self, rows: Sequence[Row]) -> None:
        """Log a critical error if the definitions are missing, or no user can change them."""
        if self.broker.accounts.has_administrator:
            return
        if not rows:
            queues = sum(len(vhost.queues) for vhost in self.broker.vhosts.values())
            log.critical(
                "the definitions are missing, but the data directory is not new. %d durable queues were made "
                "again from their logs; users, permissions, exchanges and bindings are lost, unless a copy "
                "of definitions.db is put back",
                queues,
            )
        log.critical(
            "there is no administrator, so users can't be made: stop the broker, then run "
            "'leveret users recover NAME --data-dir DIRECTORY'"
        )

    def helpers(self) -> list[int]:
        """Return the ids of helper processes."""
        return [] if self.endpoint is None else self.endpoint.pids

    async def _listen(self) -> None:
        if self._port != OFF:
            self._port = await self._listen_on(self._port)
        if self._tls is not None and self._tls.settings.port != OFF:
            self.tls_port = await self._listen_on(self._tls.settings.port, self._tls)

    async def _listen_on(self, port: int, tls: CurrentTls | None = None) -> int:
        """Listen on a port, and return it; 0 chooses a free one."""
        sockets = await bind_host(self._host, port, backlog=self._backlog)
        acceptor = Acceptor(
            sockets,
            self._make_socket,
            descriptors=self._descriptors,
            spare=self._descriptors.spare_for_http,
            tls=tls,
            tls_handshake_s=self._handshake_s,
        )
        self._listeners.append(acceptor)
        port = int(sockets[0].getsockname()[1])
        acceptor.start()
        return port

    def _make_socket(self) -> AmqpSocket:
        socket = self._socket(self.turns)
        socket.handshake_s = self._handshake_s
        socket.tls = self._tls
        return socket

    @property
    def port(self) -> int:
        """The listening port, or `OFF`; the port that was chosen if 0 was given."""
        return self._port

    @property
    def host(self) -> str:
        return self._host

    @property
    def descriptors(self) -> Descriptors:
        return self._descriptors

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self._host}:{self.port}/"

    async def stop(self) -> None:
        """Stop gracefully; everything persistent is then on disk."""
        if not self._stop_listening():
            return
        if self._alarms is not None:
            self._alarms.stop()
        if self.endpoint is not None:
            await self.endpoint.stop()
        if self.failure is None:
            await self._say_goodbye()
        for socket in list(self.turns.sockets.values()):
            assert isinstance(socket, AmqpSocket)
            socket.abort()
        await asyncio.sleep(0)
        await self._close_store()
        self.ended.set()

    async def abandon(self) -> None:
        """Stop as a killed process does, without closing the store."""
        if not self._stop_listening():
            return
        self.failure = self.failure or ConnectionAbortedError("the server was abandoned")
        if self.endpoint is not None:
            await self.endpoint.stop()
        self.turns.abandon()
        for socket in list(self.turns.sockets.values()):
            socket.abandon()
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, self._hashing.close)
        await asyncio.get_running_loop().run_in_executor(None, self.turns.close)
        self.ended.set()

    def _stop_listening(self) -> bool:
        """Stop listening; return whether the server was listening."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        if self._steps is not None:
            self._steps.stop()
        if self._lag is not None:
            self._lag.stop()
        return bool(listeners)

    async def _say_goodbye(self) -> None:
        await self._quiesce()
        self.turns.begin()
        for session in list(self.broker.sessions):
            session.peer.force_close(SHUTDOWN)
        deadline_s = time.monotonic() + self._goodbye_s
        # A closed connection sets no event: check again until all are closed.
        while any(socket.is_closing for socket in self.turns.sockets.values()) and (  # noqa: ASYNC110
            time.monotonic() < deadline_s
        ):
            await asyncio.sleep(0.005)

    async def _quiesce(self) -> None:
        """Wait until nobody waits for a sync, but at most `goodbye_s`."""
        deadline_s = time.monotonic() + self._goodbye_s
        self.turns.begin()
        await asyncio.sleep(0)
        # A finished sync sets no event: check again until nobody waits for one.
        while (  # noqa: ASYNC110
            self.broker.ledger.wants_sync and self.failure is None and time.monotonic() < deadline_s
        ):
            await asyncio.sleep(0.001)

    async def _close_store(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        self.turns.abandon()
        await loop.run_in_executor(None, self._hashing.close)
        await loop.run_in_executor(None, self.turns.close)
        await loop.run_in_executor(None, self._definitions.close)
        try:
            await loop.run_in_executor(None, self.broker.store.close)
        except StorageError as error:
            self.failure = self.failure or error
            log.error("the store could not be closed cleanly: %s", error)

    def _fail(self, error: BaseException) -> None:
        """Stop the server after an error that leaves its data in doubt."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", error, exc_info=None if isinstance(error, StorageError) else error)
            # Before the end of `start`, `start` raises the error.
            if self._started:
                self._stopping = asyncio.get_running_loop().create_task(self.stop())

    def refused_late(self, partition: str, count: int, so_far: int) -> None:
        """Log late settlements less and less often: a member that hangs settles everything late."""
        if so_far.bit_length() != (so_far - count).bit_length():
            log.warning(
                "%s: %d settlements came too late and were refused, in all its group", partition, so_far
            )

    def nacked(self, channel: Channel, reason: str, count: int) -> None:
        log.warning("%s: %d publishes nacked: %s", channel.name, count, reason)
