"""An application: listeners, a publisher and a topology that start and stop together.

    app = App("amqp://localhost")

    @app.listener("orders", concurrency=4, retry=Retry(5), recoverer=Park())
    async def take(order: Order) -> None:
        ...

    @app.group_listener("orders", group="billing", concurrency=20)
    async def bill(order: Order, delivery: Delivery) -> None:
        ...

    asyncio.run(app.run())

The listeners share a connection, and the publisher has another, because a broker that holds publishers back
must not hold back acks. A listener without acks has a third connection, because it stops reading while its
handlers are behind.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from leveret.amqp.tables import Value
from leveret.client.blocking import BlockingPublisher, Bridge
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.errors import ClientError
from leveret.client.handlers import Handler
from leveret.client.hooks import Hooks
from leveret.client.idempotence import Seen
from leveret.client.internal_queues import EnsuredQueues
from leveret.client.listener import Listener, ListenerHealth
from leveret.client.listener_options import PREFETCH, AckMode, Batch, ListenerOptions, group_prefetch
from leveret.client.membership import Membership, Mode, Start
from leveret.client.publisher import Publisher
from leveret.client.recoverers import Recoverer, RejectAndDontRequeue
from leveret.client.retry import Retry
from leveret.client.subscription import Subscription
from leveret.client.topology import Topology

GRACE_S: Final = 30.0
_DECLARE_S: Final = 10.0
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Health:
    """What works, for a health probe."""

    connected: bool
    publishing: bool
    blocked_by: str | None
    unconfirmed: int
    listeners: list[ListenerHealth]

    @property
    def ok(self) -> bool:
        return self.connected and all(listener.consuming for listener in self.listeners)


class App:
    """`App("amqp://one", "amqp://two", ...)`."""

    def __init__(
        self,
        *urls: str,
        topology: Topology | None = None,
        codecs: Codecs | None = None,
        hooks: Hooks | None = None,
        retry: Retry | None = None,
        recoverer: Recoverer | None = None,
        grace_s: float = GRACE_S,
        name: str = "",
        chance: random.Random | None = None,
        **connection: Any,
    ) -> None:
        """`retry` and `recoverer` are defaults for listeners. `grace_s` is how long handlers may take to
        finish when the application stops. All other arguments are those of `Connection`."""
        self._urls = urls
        self._options = {"hooks": hooks, "name": name, **connection}
        self._topology = topology
        self._codecs = codecs or Codecs()
        self._retry = retry
        self._recoverer = recoverer
        self._grace_s = grace_s
        self._chance = chance or random.Random()
        self._registered: list[tuple[Subscription, Handler, ListenerOptions]] = []
        self._connections: list[Connection] = []
        self._publisher: Publisher | None = None
        self._running = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listeners: list[Listener] = []

    def listener(
        self,
        queue: str,
        *,
        ack: AckMode = "auto",
        prefetch: int = PREFETCH,
        concurrency: int = 1,
        retry: Retry | None = None,
        recoverer: Recoverer | None = None,
        timeout_s: float | None = None,
        ack_timeout_s: float = 60.0,
        idempotence: Seen | None = None,
        batch: Batch | None = None,
        exclusive: bool = False,
        arguments: Mapping[str, Value] | None = None,
    ) -> Callable[[_F], _F]:
        """Make a function the handler of a queue. See `ListenerOptions` for the arguments."""
        if ack == "none" and (retry or recoverer):
            raise ValueError(
                "retry and recoverer need acks: with ack='none' the broker forgets a message on delivery"
            )
        if ack != "none":
            retry, recoverer = retry or self._retry, recoverer or self._recoverer
        options = ListenerOptions(
            ack=ack,
            prefetch=prefetch,
            concurrency=concurrency,
            retry=retry,
            timeout_s=timeout_s,
            ack_timeout_s=ack_timeout_s,
            idempotence=idempotence,
            batch=batch,
            recoverer=recoverer or RejectAndDontRequeue(),
        )
        subscription = Subscription(
            queue, prefetch, ack == "none", exclusive, arguments or {}, marks_begun=True
        )
        return self._register(subscription, options)

    def group_listener(
        self,
        topic: str,
        *,
        group: str,
        mode: Mode | None = None,
        concurrency: int = 1,
        prefetch: int | None = None,
        start: Start = "first",
        max_span: int | None = None,
        consume_timeout_s: float | None = None,
        max_reconsume: int | None = None,
        delays: str | Sequence[float] | None = None,
        first_level: int | None = None,
        ack: AckMode = "auto",
        retry: Retry | None = None,
        recoverer: Recoverer | None = None,
        timeout_s: float | None = None,
        ack_timeout_s: float = 60.0,
        idempotence: Seen | None = None,
        batch: Batch | None = None,
    ) -> Callable[[_F], _F]:
        """Make a function the handler of a group on a topic or a stream. Only Leveret has groups.

        See `Membership` for settings of the whole group, and `ListenerOptions` for those of this listener.
        A failed message is requeued with the group's delays, or retried by the `retry` policy.
        """
        if prefetch is None:
            prefetch = group_prefetch(concurrency, batch)
        member = Membership(
            group,
            mode=mode,
            start=start,
            max_span=max_span,
            consume_timeout_s=consume_timeout_s,
            max_reconsume=max_reconsume,
            delays=delays,
            first_level=first_level,
        )
        options = ListenerOptions(
            ack=ack,
            prefetch=prefetch,
            concurrency=concurrency,
            retry=retry or self._retry,
            timeout_s=timeout_s,
            ack_timeout_s=ack_timeout_s,
            idempotence=idempotence,
            batch=batch,
            member=member,
            recoverer=recoverer or self._recoverer or RejectAndDontRequeue(),
        )
        subscription = Subscription(topic, prefetch, arguments=member.arguments(), marks_begun=True)
        return self._register(subscription, options)

    def _register(self, subscription: Subscription, options: ListenerOptions) -> Callable[[_F], _F]:
        if self._running:
            raise ClientError("the application runs", hint="register listeners before it is started")

        def register(function: _F) -> _F:
            handler = Handler(function, self._codecs, batch=options.batch is not None)
            if options.ack == "manual" and not handler.is_async:
                raise TypeError(f"{handler.name} would run in a thread, but ack='manual' needs an async def")
            self._registered.append((subscription, handler, options))
            return function

        return register

    @property
    def blocking_publisher(self) -> BlockingPublisher:
        """A publisher for handlers that are plain functions: its methods block."""
        publisher = self.publisher
        assert self._loop is not None
        return BlockingPublisher(Bridge(self._loop), publisher)

    @property
    def publisher(self) -> Publisher:
        """A publisher with confirms, for handlers. The application must run."""
        if self._publisher is None:
            raise ClientError("the application does not run", hint="use it as `async with app:`")
        return self._publisher

    async def start(self) -> None:
        """Connect, declare the topology, and start to consume. Raises if the broker refuses."""
        self._running = True
        self._loop = asyncio.get_running_loop()
        try:
            shared = await self._connect("consuming", self._topology)
            publishing = await self._connect("publishing", self._topology and self._topology.shared())
            self._publisher = Publisher(publishing, codecs=self._codecs)
            self._publisher.start()
            queues = EnsuredQueues(publishing, timeout_s=_DECLARE_S)
            for subscription, handler, options in self._registered:
                self._check_exclusive(subscription)
                if shared.session is not None:
                    subscription.check(shared.session)
                connection = await self._connect("consuming") if subscription.no_ack else shared
                listener = Listener(
                    connection,
                    subscription,
                    handler,
                    options,
                    publisher=lambda: self.publisher,
                    queues=queues,
                    codecs=self._codecs,
                    chance=self._chance,
                    single_active=self._topology is not None
                    and subscription.queue in self._topology.single_active(),
                )
                self.listeners.append(listener)
                listener.start()
        except BaseException:
            await self.stop()
            raise

    def _check_exclusive(self, subscription: Subscription) -> None:
        name = subscription.queue
        if subscription.no_ack and self._topology and name in self._topology.exclusive():
            sentence = f"queue '{name}' is exclusive, but a listener without acks has a separate connection"
            raise ClientError(sentence, hint="consume it with acks")

    async def _connect(self, purpose: str, topology: Topology | None = None) -> Connection:
        name = str(self._options["name"])
        options = {**self._options, "name": f"{name} ({purpose})" if name else purpose}
        connection = Connection(*self._urls, topology=topology, **options)
        self._connections.append(connection)
        await connection.open()
        return connection

    async def stop(self) -> None:
        """Stop the listeners, wait for confirms, and close the connections."""
        caller = asyncio.current_task()
        await asyncio.gather(*(listener.stop(self._grace_s, caller=caller) for listener in self.listeners))
        self.listeners.clear()
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close(self._grace_s)
        await asyncio.gather(*(connection.close() for connection in self._connections))
        self._connections.clear()
        self._running = False

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until the task is cancelled."""
        must_stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, must_stop.set)
        try:
            async with self:
                await must_stop.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def health(self) -> Health:
        """Return the present state. May be called from any thread."""
        publisher = self._publisher
        sessions = [connection.session for connection in self._connections]
        return Health(
            connected=bool(sessions) and None not in sessions,
            publishing=publisher is not None and publisher.ready,
            blocked_by=None if publisher is None else publisher.blocked_by,
            unconfirmed=0 if publisher is None else publisher.unconfirmed_count,
            listeners=[listener.health() for listener in self.listeners],
        )
