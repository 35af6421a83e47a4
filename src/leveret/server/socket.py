"""One AMQP socket: bytes in, bytes out, heartbeats, and the end.

The thinnest shell around `fronts.amqp.Connection`: it feeds what is read, writes what is to be written, stops
reading or delivering when the other side or the disk is behind, and notices peers that are gone.
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
from leveret.server.turns import Turns

log = logging.getLogger("leveret")

HANDSHAKE_S = 10.0
_CLOSE_S = 5.0
"""How long a peer has to answer connection.close, or to close its socket after a close-ok. Until then what it
sends is read and discarded: closing a socket with unread data resets it, and the peer's writes fail.
"""
_WRITE_HIGH_BYTES = 1 << 20
"""More than this unsent, and nothing is delivered until it has gone."""
_READ_STOP_BYTES = 8 << 20
"""More than this unsent, and the peer is not read from either: it asks for more than it takes."""
_READ_BYTES, _SMALL_READ_BYTES = 256 << 10, 32 << 10
"""Read at once: asyncio's own measure, and a smaller one while others wait for answers."""
_TCP_INFO_BYTES = 152
_NOT_MEASURED = 0xFFFFFFFF
_ROUND_TRIP_AT = 148
"""`tcpi_min_rtt` in Linux's `struct tcp_info`: u32, in microseconds; the least, so without delayed acks."""


class AmqpSocket(asyncio.Protocol):
    """Made by the listener for every connection."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = turns.loop
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat_due_s = 0.0
        self._received_s = self._sent_s = 0.0
        self._held = False
        self._paced = False
        self._spent = False
        self._reads_little = False
        self._syncs = 0
        self._sent_since_sync_bytes = 0
        """What the peer has sent since the sync with the number `_syncs`."""
        self._cost_at_sync = 0
        """What had been done for the peer when that sync ended."""
        self._choked = False
        self._goes_on = False
        self._ending = False
        self._unsent = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.connection = Connection(
            self._turns.broker,
            peer=f"{_address(peer)} -> {_address(here)}",
            loopback=_is_loopback(peer),
            address=peer[0] if isinstance(peer, tuple) else "",
        )
        self._turns.sockets[self.connection.session] = self
        self._received_s = self._sent_s = self._loop.time()
        self._deadline = self._loop.call_later(HANDSHAKE_S, self._shut_unless_open)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        connection = self.connection
        if connection.state is State.CLOSED:
            return  # nothing that follows a close-ok counts
        connection.session.counters.octets_in += len(data)
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
        except Exception:  # ours: the client loses its connection, and the broker goes on
            log.exception("%s: an internal error", connection.name)
            connection.close(InternalError("an internal error; see the broker's log"))
        if self._turns.held_back and not self._held and connection.fills_memory:
            self.hold_back(True)
        if connection.backlog:
            self._go_on_later()
        if self._deadline is not None and connection.state is State.RUNNING:
            self._opened()

    def _limit_reads(self, size_bytes: int, cost: int) -> None:
        """Read less at once while others wait for answers, if a full read would take a whole share."""
        costly = bool(self.connection.backlog) or cost * _READ_BYTES > SHARED_COST * size_bytes
        small = costly and self._turns.shares_are_small
        if small != self._reads_little:
            self._reads_little = small
            # asyncio's own transports have it; those of TLS read what they like.
            self._transport.max_size = _SMALL_READ_BYTES if small else _READ_BYTES  # type: ignore[attr-defined]

    def _count_share(self, size_bytes: int) -> None:
        """Stop reading from a publisher that has sent its share of the next sync."""
        turns, cost = self._turns, self.connection.done_cost
        if self._syncs != turns.syncs:
            self._syncs, self._sent_since_sync_bytes, self._cost_at_sync = turns.syncs, 0, cost
        self._sent_since_sync_bytes += size_bytes
        if not self._spent and turns.is_spent(self, self._sent_since_sync_bytes, cost - self._cost_at_sync):
            self._spent = True
            self._read_or_not()

    def next_share(self) -> None:
        self._spent = False
        self._read_or_not()

    def scan(self, data: bytes) -> list[Event]:
        return self.connection.scanner.feed(data)

    def eof_received(self) -> None:
        """The peer says nothing more: what it held goes back at once, whatever it still reads."""
        self._turns.begin()
        self.connection.lost()
        self._transport.close()
        self._end_soon()

    def connection_lost(self, error: Exception | None) -> None:
        for timer in (self._deadline, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._turns.sockets.pop(self.connection.session, None)
        self._turns.begin()
        self.connection.lost()

    def pause_writing(self) -> None:
        self.connection.writable = False
        self._count_unsent()

    def resume_writing(self) -> None:
        self._turns.begin()
        self.connection.writable = True
        self._count_unsent()
        if self._choked:
            self._go_on()
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
            self._go_on_later()
        if connection.state is State.CLOSED:
            if connection.peer_closes_socket:
                self._read_or_not()
            else:
                self._transport.close()
            self._end_soon()
        elif connection.state is State.CLOSING:
            self._end_soon()
            if (
                connection.is_unreadable
                and self._transport.can_write_eof()
                and not self._transport.is_closing()
            ):
                with suppress(OSError):  # it is gone already
                    self._transport.write_eof()

    def _count_unsent(self) -> None:
        """What the peer does not read counts as memory. Below the limit of a pause, it is about to go."""
        connection = self.connection
        connection.unsent_bytes = 0 if connection.writable else self._transport.get_write_buffer_size()
        connection.count_buffers()

    def hold_back(self, held: bool) -> None:
        self._held = held and self.connection.fills_memory
        self._read_or_not()

    def pace(self, held: bool) -> None:
        self._paced = held
        self._read_or_not()

    def abort(self) -> None:
        self._transport.abort()

    def abandon(self) -> None:
        self.connection.state = State.CLOSED
        self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self.connection.state is State.CLOSING

    def round_trip_us(self) -> int | None:
        found = self._transport.get_extra_info("socket")
        if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:
            return None
        found_us = int.from_bytes(info[_ROUND_TRIP_AT : _ROUND_TRIP_AT + 4], sys.byteorder)
        return None if found_us == _NOT_MEASURED else found_us

    def _go_on_later(self) -> None:
        """It asked for more than fits into a turn or the buffers: it is not read from until that is done.

        While its password is checked it waits; `write_out` comes back to it with the answer.
        """
        self._choked = True
        self._read_or_not()
        if self.connection.writable and not self.connection.awaits_login and not self._goes_on:
            self._goes_on = True
            self._turns.go_on_later(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if not self.connection.writable:
            return  # `resume_writing` comes back to it
        self._turns.begin()
        self._choked = False
        self._received_s = self._loop.time()  # what it sent is only looked at now
        self._feed(())
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if (
            self._held or self._paced or self._spent or self._choked
        ) and not self.connection.peer_closes_socket:
            self._transport.pause_reading()
        else:
            self._received_s = self._loop.time()  # it could not have been heard until now
            self._transport.resume_reading()

    # deadlines

    def _end_soon(self) -> None:
        """The connection is over; a peer that does not take part in its end is cut off."""
        if not self._ending:
            self._ending = True
            for timer in (self._deadline, self._heartbeat):
                if timer is not None:
                    timer.cancel()
            self._deadline = self._loop.call_later(_CLOSE_S, self._transport.abort)

    def _opened(self) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None
        if self.connection.heartbeat_s:
            self._beat_in(self.connection.heartbeat_s / 2)

    def _shut_unless_open(self) -> None:
        """The handshake has taken too long, or the peer does not answer a close."""
        self._deadline = None
        if self.connection.state is not State.RUNNING:
            self._transport.abort()

    def _beat(self) -> None:
        """Twice per interval: is the peer alive, and does it know that we are?"""
        interval_s = self.connection.heartbeat_s
        now_s = self._loop.time()
        late_s = now_s - self._beat_due_s  # so long this loop could not hear
        self._received_s = min(now_s, self._received_s + late_s)
        unsent = self._transport.get_write_buffer_size()
        if self._choked and unsent < self._unsent:  # it reads, which is a sign of life too
            self._received_s = now_s
        self._unsent = unsent
        if now_s - self._received_s >= 2 * interval_s and not self._held:
            self._transport.abort()
            return
        if now_s - self._sent_s >= interval_s / 2 and not self._transport.is_closing():
            self._transport.write(HEARTBEAT_FRAME)
            self._sent_s = now_s
        wait_s = min(interval_s / 2, max(0.05, self._received_s + 2 * interval_s - now_s))
        self._beat_in(wait_s)

    def _beat_in(self, wait_s: float) -> None:
        self._beat_due_s = self._loop.time() + wait_s
        self._heartbeat = self._loop.call_at(self._beat_due_s, self._beat)


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")


def _is_loopback(peer: Any) -> bool:
    """The system does not know the address of a peer that has reset the connection: that may be anybody."""
    return isinstance(peer, tuple) and ip_address(peer[0].split("%")[0]).is_loopback
