"""One AMQP socket: reading, writing, heartbeats and closing.

A thin shell around `fronts.amqp.connection.Connection`. It feeds received bytes, writes the connection's
output, stops reading or delivering while the peer or the disk is behind, and detects lost peers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from leveret.amqp.errors import InternalError
from leveret.amqp.events import Event
from leveret.amqp.frames import HEARTBEAT_FRAME
from leveret.broker.sessions.turn_shares import SHARED_COST
from leveret.fronts.amqp.connection import Connection
from leveret.fronts.amqp.wire import State
from leveret.server.event_log import VANISHED
from leveret.server.tls import CurrentTls
from leveret.server.tls_facts import tls_view
from leveret.server.turns import Turns

log = logging.getLogger("leveret")

HANDSHAKE_S = 10.0
_CLOSE_S = 5.0
"""Time in which a peer must answer connection.close, or close its socket after a close-ok. Until then
received bytes are discarded: closing a socket with unread data resets it, and the peer's writes would fail.
"""
_WRITE_HIGH_BYTES = 1 << 20
"""While more unsent bytes than this wait, nothing is delivered."""
_READ_STOP_BYTES = 8 << 20
"""While more unsent bytes than this wait, nothing is read from the peer either."""
_READ_BYTES, _SMALL_READ_BYTES = 256 << 10, 32 << 10
"""Bytes of one read: asyncio's default, and fewer while other clients wait for answers."""
_TCP_INFO_BYTES = 152
_NOT_MEASURED = 0xFFFFFFFF
_ROUND_TRIP_POSITION = 148
"""`tcpi_min_rtt` in Linux's `struct tcp_info`: u32, microseconds; the minimum has no delayed acks in it."""


class AmqpSocket(asyncio.Protocol):
    """The asyncio protocol of one AMQP connection."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = turns.loop
        self._transport: asyncio.Transport
        self.handshake_s = HANDSHAKE_S
        self.tls: CurrentTls | None = None
        """Whom certificates of clients name. Set, as `handshake_s`, before the connection is made."""
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat_due_s = 0.0
        self._received_s = self._sent_s = 0.0
        self._is_held_back = False
        self._is_paced = False
        self._is_spent = False
        self._small_reads = False
        self._syncs = 0
        self._sent_since_sync_bytes = 0
        """Bytes received since sync number `_syncs`."""
        self._cost_at_sync = 0
        """`Connection.done_cost` when sync number `_syncs` ended."""
        self._is_behind = False
        self._is_scheduled = False
        self._end_scheduled = False
        self._unsent_before_bytes = 0
        self._address = ""
        """The peer's address with the port."""
        self._lost = VANISHED
        """The reason for the log if the connection ends without connection.close."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._address = _address(peer)
        self.connection = Connection(
            self._turns.broker,
            peer=f"{self._address} -> {_address(local)}",
            loopback=_is_loopback(peer),
            address=peer[0] if isinstance(peer, tuple) else "",
            external=self._certified_user(),
        )
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:
            self.connection.tls = tls_view(encrypted)
        self._turns.sockets[self.connection.session] = self
        self._received_s = self._sent_s = self._loop.time()
        self._deadline = self._loop.call_later(self.handshake_s, self._abort_unless_open)

    def _certified_user(self) -> str | None:
        """Return the user whom the client's certificate names; None if clients are not asked for one.

        A certificate that is here was verified in the TLS handshake.
        """
        tls = self._transport.get_extra_info("ssl_object")
        if tls is None or self.tls is None or not self.tls.settings.asks_clients:
            return None
        return self.tls.settings.login_name(tls.getpeercert(binary_form=True))

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        connection = self.connection
        if connection.state is State.CLOSED:
            return
        counters = connection.session.counters
        counters.octets_in += len(data)
        counters.packets_in += 1
        self._turns.begin()
        cost_before = connection.done_cost
        self._feed(self.scan(data))
        self._limit_reads(len(data), connection.done_cost - cost_before)
        if connection.publishes:
            self._count_share(len(data))

    def _feed(self, events: Sequence[Event]) -> None:
        connection = self.connection
        try:
            connection.receive(events)
        except Exception:
            # A bug of the broker costs this client its connection, and nobody else.
            log.exception("%s: an internal error", connection.name)
            connection.close(InternalError("an internal error; see the broker's log"))
        if self._turns.held_back and not self._is_held_back and connection.fills_memory:
            self.hold_back(True)
        if connection.backlog:
            self._continue_later()
        if self._deadline is not None and connection.state is State.RUNNING:
            self._opened()

    def _limit_reads(self, size_bytes: int, cost: int) -> None:
        """Read fewer bytes at once while others wait for answers, if a full read costs a whole share."""
        costly = bool(self.connection.backlog) or cost * _READ_BYTES > SHARED_COST * size_bytes
        small = costly and self._turns.shares_are_small
        if small != self._small_reads:
            self._small_reads = small
            # `max_size` works with plain sockets; TLS transports ignore it.
            self._transport.max_size = _SMALL_READ_BYTES if small else _READ_BYTES  # type: ignore[attr-defined]

    def _count_share(self, size_bytes: int) -> None:
        """Stop reading from a publisher that has used up its share of the next sync."""
        turns, cost = self._turns, self.connection.done_cost
        if self._syncs != turns.syncs:
            self._syncs, self._sent_since_sync_bytes, self._cost_at_sync = turns.syncs, 0, cost
        self._sent_since_sync_bytes += size_bytes
        if not self._is_spent and turns.is_spent(
            self, self._sent_since_sync_bytes, cost - self._cost_at_sync
        ):
            self._is_spent = True
            self._update_reading()

    def next_share(self) -> None:
        self._is_spent = False
        self._update_reading()

    def scan(self, data: bytes) -> list[Event]:
        return self.connection.scanner.feed(data)

    def eof_received(self) -> None:
        """The peer has closed its side: requeue its unacked deliveries at once."""
        self._turns.begin()
        self.connection.lost()
        self._transport.close()
        self._end_later()

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timers()
        self._turns.sockets.pop(self.connection.session, None)
        self._turns.begin()
        self.connection.lost()
        if isinstance(error, OSError) and self._lost is VANISHED:
            self._lost = error.strerror or str(error)
        self._turns.events.ended(self.connection, self._address, self._lost)

    def pause_writing(self) -> None:
        self.connection.writable = False
        self._count_unsent()

    def resume_writing(self) -> None:
        self._turns.begin()
        self.connection.writable = True
        self._count_unsent()
        if self._is_behind:
            self._continue()
        self.connection.session.wake_consumers()

    # for the turns

    def write_out(self) -> None:
        connection = self.connection
        data = connection.take_out()
        if data and not self._transport.is_closing():
            self._transport.write(data)
            self._sent_s = self._loop.time()
            if not connection.writable:
                self._count_unsent()
        if connection.backlog or self._transport.get_write_buffer_size() > _READ_STOP_BYTES:
            self._continue_later()
        if connection.state is State.CLOSED:
            if connection.peer_closes_socket:
                self._update_reading()
            else:
                self._transport.close()
            self._end_later()
        elif connection.state is State.CLOSING:
            self._end_later()
            transport = self._transport
            if connection.is_unreadable and transport.can_write_eof() and not transport.is_closing():
                with suppress(OSError):
                    transport.write_eof()

    def _count_unsent(self) -> None:
        """Count unsent bytes as memory. Below the limit of `pause_writing` they are sent soon."""
        connection = self.connection
        connection.unsent_bytes = 0 if connection.writable else self._transport.get_write_buffer_size()
        connection.count_buffers()

    def hold_back(self, held: bool) -> None:
        self._is_held_back = held and self.connection.fills_memory
        self._update_reading()

    def pace(self, held: bool) -> None:
        self._is_paced = held
        self._update_reading()

    def abort(self) -> None:
        self._lost = "the broker has dropped the connection"
        self._transport.abort()

    def abandon(self) -> None:
        self.connection.state = State.CLOSED
        self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self.connection.state is State.CLOSING

    def round_trip_us(self) -> int | None:
        connected = self._transport.get_extra_info("socket")
        if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:
            return None
        round_trip_us = int.from_bytes(info[_ROUND_TRIP_POSITION : _ROUND_TRIP_POSITION + 4], sys.byteorder)
        return None if round_trip_us == _NOT_MEASURED else round_trip_us

    def _continue_later(self) -> None:
        """Stop reading, and continue with the backlog in a later turn.

        While the password is checked nothing is scheduled: `write_out` continues after the answer.
        """
        self._is_behind = True
        self._update_reading()
        if self.connection.writable and not self.connection.awaits_login and not self._is_scheduled:
            self._is_scheduled = True
            self._turns.go_on_later(self._continue)

    def _continue(self) -> None:
        self._is_scheduled = False
        if not self.connection.writable:
            return
        self._turns.begin()
        self._is_behind = False
        # The backlog is handled only now, so the peer counts as heard.
        self._received_s = self._loop.time()
        self._feed(())
        self._update_reading()

    def _update_reading(self) -> None:
        if self._transport.is_closing():
            return
        if (
            self._is_held_back or self._is_paced or self._is_spent or self._is_behind
        ) and not self.connection.peer_closes_socket:
            self._transport.pause_reading()
        else:
            # While reading was paused, the peer could not be heard.
            self._received_s = self._loop.time()
            self._transport.resume_reading()

    # deadlines

    def _end_later(self) -> None:
        """Abort the connection in a few seconds, unless the peer closes it before."""
        if not self._end_scheduled:
            self._end_scheduled = True
            self._cancel_timers()
            self._deadline = self._loop.call_later(_CLOSE_S, self._transport.abort)

    def _cancel_timers(self) -> None:
        for timer in (self._deadline, self._heartbeat):
            if timer is not None:
                timer.cancel()

    def _opened(self) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None
        self._turns.events.opened(self.connection, self._address)
        if self.connection.heartbeat_s:
            self._schedule_beat(self.connection.heartbeat_s / 2)

    def _abort_unless_open(self) -> None:
        """Abort the connection if the handshake is not done."""
        self._deadline = None
        if self.connection.state is not State.RUNNING:
            self._lost = f"the handshake took longer than {self.handshake_s:g} s"
            self._transport.abort()

    def _beat(self) -> None:
        """Abort the connection if the peer is silent; send a heartbeat if needed. Runs twice per interval."""
        interval_s = self.connection.heartbeat_s
        now_s = self._loop.time()
        # While the event loop was late, the peer could not be heard.
        late_s = now_s - self._beat_due_s
        self._received_s = min(now_s, self._received_s + late_s)
        unsent_bytes = self._transport.get_write_buffer_size()
        # A peer that reads is alive.
        if self._is_behind and unsent_bytes < self._unsent_before_bytes:
            self._received_s = now_s
        self._unsent_before_bytes = unsent_bytes
        if now_s - self._received_s >= 2 * interval_s and not self._is_held_back:
            self._lost = f"no heartbeat came for {2 * interval_s:g} s"
            self._transport.abort()
            return
        if now_s - self._sent_s >= interval_s / 2 and not self._transport.is_closing():
            self._transport.write(HEARTBEAT_FRAME)
            self._sent_s = now_s
        wait_s = min(interval_s / 2, max(0.05, self._received_s + 2 * interval_s - now_s))
        self._schedule_beat(wait_s)

    def _schedule_beat(self, wait_s: float) -> None:
        self._beat_due_s = self._loop.time() + wait_s
        self._heartbeat = self._loop.call_at(self._beat_due_s, self._beat)


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")


def _is_loopback(peer: Any) -> bool:
    """Return whether the peer is this machine. A peer that has reset the connection has no address."""
    return isinstance(peer, tuple) and ip_address(peer[0].split("%")[0]).is_loopback
