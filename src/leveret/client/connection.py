"""A connection that reconnects: one session after another, over several hosts, with backoff and jitter.

Publishers and listeners are its tenants. The topology is declared on each new session, which is then given to
every tenant. When the session ends, each tenant gets the reason, and recovers its own work. Not thread-safe:
everything happens on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from contextlib import suppress
from typing import Protocol, Self

from leveret.client.backoff import Backoff
from leveret.client.callbacks import call_back
from leveret.client.endpoint import Endpoint
from leveret.client.errors import (
    ChannelClosed,
    ChannelsExhausted,
    ClientError,
    Closed,
    ConnectionBlocked,
    LoginRefused,
    NotConnected,
    TlsFailed,
    TopologyMismatch,
)
from leveret.client.hooks import Hooks
from leveret.client.session import CONNECT_S, HEARTBEAT_S, Session
from leveret.client.topology import Topology

log = logging.getLogger("leveret.client")

_STABLE_S = 10.0
"""After a session that lasted this long, the backoff starts anew."""
_ATTACH_AGAIN_S = 1.0
_FATAL = (LoginRefused, TlsFailed, TopologyMismatch, ChannelClosed)
"""Errors that waiting does not mend. The first connect fails with them at once."""


class Tenant(Protocol):
    """A user of the connection's sessions: a publisher or a consumer."""

    async def attach(self, session: Session) -> None:
        """Begin to use a session."""

    def detach(self, error: ClientError) -> None:
        """Stop using the session, which has ended with this error."""

    def blocked(self, reason: str | None) -> None:
        """The broker takes no messages for this reason; None: it takes them again."""


class Connection:
    """`async with Connection("amqp://one", "amqp://two") as connection: ...`; the hosts are tried in turn."""

    def __init__(
        self,
        *urls: str,
        topology: Topology | None = None,
        # A `Backoff` is frozen, so that one default can serve all.
        backoff: Backoff = Backoff(),  # noqa: B008
        heartbeat_s: int = HEARTBEAT_S,
        timeout_s: float = CONNECT_S,
        tls: ssl.SSLContext | None = None,
        name: str = "",
        hooks: Hooks | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """`timeout_s` is for one try at one host. `name` is shown to the broker's operators."""
        self._endpoints = [Endpoint.parse(url) for url in urls or ("amqp://guest:guest@localhost/",)]
        self._topology = topology
        self._backoff = backoff
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._tls = tls
        self._name = name
        self._chance = chance or random.Random()
        self.hooks = hooks
        self.session: Session | None = None
        self.error: ClientError | None = None
        """Why there is no session, or None."""
        self.sessions = 0
        """How many sessions there have been."""
        self._tenants: list[Tenant] = []
        self._attaching: set[asyncio.Task[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._fatal: ClientError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self, timeout_s: float | None = None) -> None:
        """Wait for the first session. Raises if the brokers refuse, or if none answers in time."""
        self.start()
        try:
            await self.connected(
                self._timeout_s * len(self._endpoints) + 1 if timeout_s is None else timeout_s
            )
        except BaseException:
            await self.close()
            raise

    def start(self) -> None:
        """Connect in the background, as soon as a broker answers."""
        if self._closed:
            raise Closed("the connection was closed")
        if self._supervisor is None:
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def connected(self, timeout_s: float) -> Session:
        """Return the session, as soon as there is one. `NotConnected`: there was none in time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.session is None:
            if self._closed:
                raise Closed("the connection was closed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await waiter
            except TimeoutError:
                raise self.failure(timeout_s) from self.error
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return self.session

    def failure(self, waited_s: float) -> ClientError:
        """Return why nothing could be sent for this time."""
        if self.session is not None and self.session.blocked is not None:
            reason = self.session.blocked
            return ConnectionBlocked(f"the broker has been blocked ({reason}) for longer than {waited_s:g} s")
        if self.error is not None and len(self._endpoints) == 1:
            return NotConnected(f"{self.error.sentence}, and there was no other in {waited_s:.3g} s")
        why = f": {self.error.sentence}" if self.error else ""
        addresses = ", ".join(endpoint.address for endpoint in self._endpoints)
        return NotConnected(f"no connection to any of {addresses} in {waited_s:.3g} s{why}")

    @property
    def closed(self) -> bool:
        return self._closed

    def add(self, tenant: Tenant) -> None:
        """Give sessions to this tenant from now on."""
        if self._closed:
            raise Closed("the connection was closed")
        self._tenants.append(tenant)
        self.attach(tenant)

    def attach(self, tenant: Tenant) -> None:
        """Give the session, if there is one, to a new tenant, or to one that has lost its channel."""
        if self.session is not None and self.session.error is None and tenant in self._tenants:
            task = asyncio.get_running_loop().create_task(self._attached(tenant, self.session))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)

    def remove(self, tenant: Tenant) -> None:
        with suppress(ValueError):
            self._tenants.remove(tenant)

    async def close(self) -> None:
        """Close the session and tell the tenants. A second call does nothing."""
        self._closed = True
        session, self.session = self.session, None
        if session is not None:
            await session.close()
        if self._supervisor is not None:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor
        for task in list(self._attaching):
            task.cancel()
        closed = Closed("the connection was closed")
        for tenant in list(self._tenants):
            tenant.detach(closed)
        self._wake(closed)

    # the supervisor

    async def _supervise(self) -> None:
        """Make one session after another. Pause longer and longer between two rounds of all hosts."""
        loop = asyncio.get_running_loop()
        turn = failures = 0
        while not self._closed:
            endpoint = self._endpoints[turn % len(self._endpoints)]
            try:
                session = await self._connect(endpoint)
            except ClientError as error:
                turn += 1
                self._failed(endpoint, error, all_tried=turn >= len(self._endpoints))
                if turn % len(self._endpoints) == 0:
                    failures += 1
                    await asyncio.sleep(self._backoff.delay_s(failures, self._chance))
                continue
            started_s = loop.time()
            await self._live(session)
            failures = 0 if loop.time() - started_s >= _STABLE_S else failures + 1
            if failures > 1:
                await asyncio.sleep(self._backoff.delay_s(failures - 1, self._chance))

    async def _connect(self, endpoint: Endpoint) -> Session:
        session = await Session.connect(
            endpoint, heartbeat_s=self._heartbeat_s, timeout_s=self._timeout_s, tls=self._tls, name=self._name
        )
        if self._topology is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._topology.apply(session.open_channel)
            except TimeoutError:
                await session.close()
                raise NotConnected(f"{endpoint.address} did not answer the declarations in time") from None
            except BaseException:
                await session.close()
                raise
        return session

    async def _live(self, session: Session) -> None:
        """Give the session to the tenants, and wait until it ends."""
        ended: asyncio.Future[ClientError] = asyncio.get_running_loop().create_future()

        def end(error: ClientError) -> None:
            if not ended.done():
                ended.set_result(error)
            self._lost(session, error)

        if session.error is not None:
            self._failed(session.endpoint, session.error, all_tried=False)
            return
        session.on_end = end
        session.on_blocked = self._blocked
        self.session = session
        self.error = None
        self.sessions += 1
        log.log(
            logging.DEBUG if self.sessions == 1 else logging.INFO,
            "connected to %s",
            session.endpoint.address,
            extra={"event": "connected", "address": session.endpoint.address},
        )
        if self.hooks is not None:
            call_back(self.hooks.connected, session.endpoint.address)
        for tenant in list(self._tenants):
            self.attach(tenant)
        self._wake(None)
        await ended

    def _lost(self, session: Session, error: ClientError) -> None:
        """Tell the tenants in the turn in which the session ended, so that none writes to it any more."""
        if self.session is session:
            self.session = None
        self.error = error
        if not self._closed:
            log.warning("%s", error, extra={"event": "disconnected", "address": session.endpoint.address})
            if self.hooks is not None:
                call_back(self.hooks.disconnected, error)
        for tenant in list(self._tenants):
            tenant.detach(error)

    def _failed(self, endpoint: Endpoint, error: ClientError, *, all_tried: bool) -> None:
        is_new = self.error is None or type(self.error) is not type(error)
        self.error = error
        if is_new or isinstance(error, _FATAL):
            log.warning("%s", error, extra={"event": "connect_failed", "address": endpoint.address})
        if isinstance(error, _FATAL):
            self._fatal = error
        if self._fatal is not None and all_tried and not self.sessions:
            self._wake(self._fatal)

    def _wake(self, error: ClientError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    async def _attached(self, tenant: Tenant, session: Session) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await tenant.attach(session)
        except ChannelsExhausted as error:
            log.error("%s", error, extra={"event": "attach_failed"})
            asyncio.get_running_loop().call_later(_ATTACH_AGAIN_S, self.attach, tenant)
        except Exception as error:
            if not isinstance(error, ClientError | TimeoutError):
                log.exception("%s failed to attach", type(tenant).__name__, extra={"event": "attach_failed"})
            why = str(error) or "no answer in time"
            session.fail(f"{type(tenant).__name__} could not use the session: {why}")

    def _blocked(self, reason: str | None) -> None:
        event = "unblocked" if reason is None else "blocked"
        log.warning("the broker is %s%s", event, f": {reason}" if reason else "", extra={"event": event})
        if self.hooks is not None:
            call_back(self.hooks.blocked, reason)
        for tenant in list(self._tenants):
            tenant.blocked(reason)
