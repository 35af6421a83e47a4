"""Turns: run the broker once in each pass of the event loop.

All readable sockets of a pass are fed first. Then one turn does the work for all of them: one append per
queue, one write per connection, one sync. This module connects the broker, which knows no event loop, with
the loop. It also sets the broker's timers, and passes on what threads report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Protocol

from leveret.broker.broker import Broker
from leveret.broker.sessions.channel import Channel
from leveret.broker.sessions.session import Session
from leveret.server.event_log import EventLog
from leveret.server.group_commit import Committer, Timed
from leveret.server.slow_log import SlowLog, TurnWatch
from leveret.storage.errors import StorageError, WriteFailed

log = logging.getLogger("leveret")

_LAZY_SYNC_S = 0.2
"""Time within which acks are synced, for which nobody waits."""
_SYNC_SHARE_BYTES = 512 << 10
"""Bytes that a publisher may send between two syncs, so that others wait only so long for the next one."""
_SMALL_SYNC_SHARE_COST = 768
"""Cost of a publisher's work between two syncs while others wait for answers: 256 messages to one queue.

Encoding and writing a message takes as long as 3 KiB of its body, so a share is limited by cost too."""
_SMALL_SYNC_BYTES = 16 << 10
"""With fewer unsynced bytes than this, no publisher is stopped."""
_TIMER_S_MAX = 1.0
"""Longest wait for a timer: the event loop's clock stops while the machine is suspended."""
_PACING_S = 0.005
"""Time after which publishers are read again although consumers have taken little."""


class Socket(Protocol):
    def write_out(self) -> None: ...

    def abort(self) -> None:
        """Drop the connection as a broken network does."""

    def abandon(self) -> None:
        """Drop the connection as the end of this process does: nothing is requeued."""

    @property
    def is_closing(self) -> bool:
        """Return whether connection.close was sent and close-ok is awaited."""

    def hold_back(self, held: bool) -> None:
        """Stop or continue reading, if the client publishes or has large unfinished messages."""

    def next_share(self) -> None:
        """Read again after a sync, if the publisher had used up its share."""

    def pace(self, held: bool) -> None:
        """Stop or continue reading: consumers of the publisher's queues come first."""

    def round_trip_us(self) -> int | None:
        """Return the round-trip time that the operating system has measured, or None."""


class Turns:
    """Schedules turns: call `turns.begin()` before a connection is fed."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        *,
        fatal: Callable[[BaseException], None],
        withdraw: Callable[[], list[int]],
        events: EventLog,
        unsynced_bytes_max: int = 32 << 20,
        memory_bytes_max: int = 512 << 20,
        sync_share_bytes: int = _SYNC_SHARE_BYTES,
        pacing_s: float = _PACING_S,
    ) -> None:
        """`withdraw` takes back the refused changes of definitions, and returns their numbers."""
        self.broker = broker
        self.loop = loop
        self.events = events
        self.sockets: dict[Session[Channel], Socket] = {}
        self.watchers: list[Callable[[], None]] = []
        """Called after every turn; the broker's state does not change until they return."""
        self._unsynced_bytes_max = unsynced_bytes_max
        self._memory_bytes_max = memory_bytes_max
        self.sync_share_bytes = sync_share_bytes
        self.slow_syncs = SlowLog("a sync", "log.slow_sync_ms")
        self.watch = TurnWatch(SlowLog("a turn", "log.slow_turn_ms"), broker.now_us)
        self._committer = Committer(
            broker.store,
            done=self._done,
            checkpointed=self._checkpoint_done,
            fatal=self.report,
            slow=self.slow_syncs,
        )
        self._fatal = fatal
        self._withdraw = withdraw
        self._scheduled: asyncio.Handle | None = None
        self._began_us = 0
        """Time of the first input of the present turn."""
        self._postponed: list[Callable[[], None]] = []
        self._abandoned = False
        self._syncing = False
        self._requested = 0
        """Ticket of the last requested sync."""
        self._lazy: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_us: int | None = None
        self._held_back = False
        self._waiting: list[Callable[[], None]] = []
        """Called when publishers are not held back any more."""
        self._failing = False
        self.syncs = 0
        """Number of finished syncs."""
        self.pacing_s = pacing_s
        self._pacing: asyncio.TimerHandle | None = None
        self._paced: Set[Session[Channel]] = frozenset()
        """Sessions that are not read, because consumers of their queues come first."""

    def start(self) -> None:
        self._committer.start()
        self.begin()
        if self.broker.store.is_opening:
            # Fails as long as the disk is full, and holds publishers back.
            self._request_sync()

    def close(self) -> None:
        """End the threads. Call after `abandon`, on any thread."""
        self.watch.stop()
        self._committer.close()

    def abandon(self) -> None:
        """Run no more turns."""
        self._abandoned = True
        for handle in (self._lazy, self._timer, self._pacing):
            if handle is not None:
                handle.cancel()

    def begin(self) -> None:
        """Schedule a turn in this pass of the event loop. Call before the broker is used."""
        if self._scheduled is None and not self._abandoned:
            self.broker.begin_turn()
            self.watch.began_us = self.broker.turn_us
            self._began_us = self.broker.turn_us
            self._scheduled = self.loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = None
        if self._abandoned:
            return
        try:
            self.broker.end_turn()
        except BaseException as error:
            self._fatal(error)
            raise
        began_us = self._began_us
        self._write_out()
        self._hold_back()
        self._pace()
        self._sync()
        self._set_timer()
        took_us = self.broker.now_us() - self.watch.began_us
        if took_us > self.watch.slow.limit_us:
            self.watch.ended(took_us)
        self.watch.began_us = 0
        if self.broker.has_more:
            self.begin()
        for watch in list(self.watchers):
            watch()
        self.broker.observations.turn_us.observe(self.broker.now_us() - began_us)

    def go_on_later(self, then: Callable[[], None]) -> None:
        """Call `then` after the input of other clients is handled, to continue a client's work."""
        if not self._postponed:
            # The event loop calls due timers after all readable sockets.
            self.loop.call_later(0.0, self._go_on)
        self._postponed.append(then)

    def _go_on(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._run()
        postponed, self._postponed = self._postponed, []
        for then in postponed:
            then()

    def round_trips_us(self) -> dict[str, int]:
        """Return the round-trip times of clients by connection name."""
        times_us = {session.name: socket.round_trip_us() for session, socket in self.sockets.items()}
        return {name: time_us for name, time_us in times_us.items() if time_us is not None}

    def _write_out(self) -> None:
        flushed = self.broker.flushed
        while flushed:
            session, _ = flushed.popitem()
            socket = self.sockets.get(session)
            if socket is not None:
                try:
                    socket.write_out()
                except Exception:
                    # A bug of the broker costs this client its connection, and nobody else.
                    log.exception("%s: an internal error", session.name)
                    socket.abort()

    # durability

    def _sync(self) -> None:
        ledger = self.broker.ledger
        if self._syncing:
            if self.shares_are_small and ledger.wants_sync and self.broker.store.ticket > self._requested:
                # It begins when the running sync ends, not a turn later.
                self._request_sync()
        elif ledger.wants_sync:
            self._request_sync()
        elif self._lazy is None and ledger.wants_sync_later:
            self._lazy = self.loop.call_later(_LAZY_SYNC_S, self._request_sync)

    def _request_sync(self) -> None:
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None
        self._syncing = True
        self._requested = self.broker.store.ticket
        self._committer.request()

    def _done(self, error: WriteFailed | None, timed: Timed) -> None:
        self._call(self._synced, error, timed)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        # The event loop may be closed.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _checkpoint_done(self, error: WriteFailed | None, timed: Timed) -> None:
        self._call(self._checkpointed, error, timed)

    def _checkpointed(self, error: WriteFailed | None, timed: Timed) -> None:
        """Handle the end of a checkpoint; after a failed one, publishers are held back."""
        if not self._abandoned:
            self.begin()
            if error is None:
                self.broker.observations.checkpoint_us.observe(timed.duration_us)
                self.broker.synced()
                self.broker.checkpointed()
            self.broker.set_alarm("disk", on=error is not None, source="checkpoints")

    def _synced(self, error: WriteFailed | None, timed: Timed) -> None:
        if self._abandoned:
            return
        self.begin()
        if error is None:
            self.broker.observations.note_sync(*timed)
            self._syncing = self.broker.store.safe_ticket < self._requested
            self.syncs += 1
            self.broker.synced()
            if self._failing:
                self._failing = False
                self.broker.set_alarm("disk", on=False, source="writes")
        else:
            self._failing = True
            self.broker.write_failed(error)
            self.broker.set_alarm("disk", on=True, source="writes")

    def call(self, then: Callable[[], None]) -> None:
        """Call a function in a turn. Thread-safe."""
        self._call(self._in_turn, then)

    def _in_turn(self, then: Callable[[], None]) -> None:
        if not self._abandoned:
            self.begin()
            then()

    def report(self, error: BaseException) -> None:
        """Report an error after which the server must stop. Thread-safe."""
        self._call(self._fatal, error)

    def committed(self, number: int) -> None:
        """Report that definitions up to this number are durable. Thread-safe."""
        self._call(self._committed, number)

    def _committed(self, number: int) -> None:
        self.begin()
        self.broker.committed(number)

    def definitions_refused(self, error: StorageError) -> None:
        """Report that definitions can't be written at present. Thread-safe."""
        self._call(self._definitions_refused, error)

    def _definitions_refused(self, error: StorageError) -> None:
        log.error("definitions are refused until they can be written again: %s", error)
        self.begin()
        # Withdrawn and undone in one step, because later changes depend on the state after that.
        self.broker.refused(self._withdraw(), error)
        self.broker.set_alarm("disk", on=True, source="definitions")

    def definitions_resumed(self) -> None:
        """Report that definitions can be written again. Thread-safe."""
        self._call(self._definitions_resumed)

    def _definitions_resumed(self) -> None:
        log.info("definitions can be written again")
        self.begin()
        self.broker.definitions.resume()
        self.broker.set_alarm("disk", on=False, source="definitions")

    # time

    def _set_timer(self) -> None:
        due_us = self.broker.timers.next_due_us
        if due_us == self._timer_due_us:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due_us = due_us
        if due_us is not None:
            delay_s = max(0.0, (due_us - self.broker.now_us()) / 1_000_000)
            self._timer = self.loop.call_later(min(delay_s, _TIMER_S_MAX), self.tick)

    def tick(self) -> None:
        """Run the broker's due timers."""
        self._timer_due_us = None
        self.begin()
        try:
            self.broker.tick()
        except BaseException as error:
            self._fatal(error)
            raise

    # back-pressure

    def _hold_back(self) -> None:
        """Stop reading from publishers while the disk is behind; continue afterwards."""
        store = self.broker.store
        behind = (
            self.broker.blocked is not None
            or store.unsynced_bytes > self._unsynced_bytes_max
            or store.memory_bytes > self._memory_bytes_max
        )
        if behind != self._held_back:
            self._held_back = behind
            for socket in list(self.sockets.values()):
                socket.hold_back(behind)
        if not behind and self._waiting:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()

    def is_spent(self, socket: Socket, sent_bytes: int, cost: int) -> bool:
        """Return whether a publisher has used up its share; the next sync then calls `socket.next_share`.

        Transient messages need no sync, so their publishers are not stopped.
        """
        unsynced_bytes = min(sent_bytes, self.broker.store.unsynced_bytes)
        is_large = unsynced_bytes >= _SMALL_SYNC_BYTES and cost >= _SMALL_SYNC_SHARE_COST
        if unsynced_bytes < self.sync_share_bytes and not (is_large and self.shares_are_small):
            return False
        self.broker.ledger.after_sync(socket.next_share)
        return True

    @property
    def shares_are_small(self) -> bool:
        """Whether shares were small lately, because a client waits for answers."""
        return self.broker.shares.are_small(self.broker.turn_us)

    def _pace(self) -> None:
        """Stop reading from publishers while eager consumers of their queues are behind."""
        held, paced = self.broker.pacing.held, self._paced
        if held is not paced:
            self._paced = held
            for session in paced ^ held:
                socket = self.sockets.get(session)
                if socket is not None:
                    socket.pace(session in held)
        if held and self._pacing is None:
            self._pacing = self.loop.call_later(self.pacing_s, self._end_pacing)

    def _end_pacing(self) -> None:
        """Stop waiting for consumers that have taken nothing meanwhile."""
        self._pacing = None
        self.broker.pacing.forgive()
        self._pace()

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call `then` when publishers are not held back: now, or at the end of a later turn."""
        if self._held_back:
            self._waiting.append(then)
        else:
            then()

    @property
    def held_back(self) -> bool:
        return self._held_back
