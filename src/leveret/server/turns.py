"""Turns: when the broker's work is done, and what follows from it.

All sockets that had something in one pass of the event loop are fed first, then one turn serves them all: one
append per queue, one write per connection, one sync. This is the seam between the broker, which knows no
loop, and the loop: it also wakes the broker when something is due, and brings in what threads report.
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
from leveret.server.group_commit import Committer
from leveret.storage.errors import StorageError, WriteFailed

log = logging.getLogger("leveret")

_LAZY_SYNC_S = 0.2
"""Acks that nobody waits for are synced within this."""
_SYNC_SHARE_BYTES = 512 << 10
"""What a publisher may send between two syncs: others that share the next sync wait no longer for it."""
_SMALL_SYNC_SHARE_COST = 768
"""What may be done for a publisher between two syncs while others wait for answers: 256 messages to a queue.

To encode and write a message takes as long as 3 KiB of its body, so messages are counted and not bytes."""
_SMALL_SYNC_BYTES = 16 << 10
"""A sync of less than this is no reason to stop anybody."""
_TIMER_S_MAX = 1.0
"""The broker's clock is looked at again after this: the loop's own stands still while the machine sleeps."""
_PACING_S = 0.005
"""Publishers are read again when consumers have taken little for this long."""


class Socket(Protocol):
    """Where a connection's bytes go."""

    def write_out(self) -> None: ...

    def abort(self) -> None:
        """Drop the connection as a broken network would."""

    def abandon(self) -> None:
        """Drop the connection as the death of this process would: nothing is given back."""

    @property
    def is_closing(self) -> bool:
        """Return whether the peer has still to answer that the connection is closed."""

    def hold_back(self, held: bool) -> None:
        """Whether to stop reading from it, if it publishes or keeps much that is not whole."""

    def next_share(self) -> None:
        """A sync is done: read from it again if it had sent all that it may between two of them."""

    def pace(self, held: bool) -> None:
        """Stop reading, or go on: the consumers of what it publishes come first."""

    def round_trip_us(self) -> int | None:
        """To the peer and back, as the system has measured it; None where it has not."""


class Turns:
    """`turns.begin()` before a connection is fed; everything else follows."""

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        *,
        fatal: Callable[[BaseException], None],
        withdraw: Callable[[], list[int]],
        unsynced_bytes_max: int = 32 << 20,
        memory_bytes_max: int = 512 << 20,
        sync_share_bytes: int = _SYNC_SHARE_BYTES,
        pacing_s: float = _PACING_S,
    ) -> None:
        """`withdraw` takes back the definitions that were refused, and says which they are."""
        self.broker = broker
        self.loop = loop
        self.sockets: dict[Session[Channel], Socket] = {}
        self.watchers: list[Callable[[], None]] = []
        """Called after every turn: what they look at does not change until they return."""
        self._unsynced_bytes_max = unsynced_bytes_max
        self._memory_bytes_max = memory_bytes_max
        self.sync_share_bytes = sync_share_bytes
        self._committer = Committer(
            broker.store, done=self._done, checkpointed=self._checkpoint_done, fatal=self.report
        )
        self._fatal = fatal
        self._withdraw = withdraw
        self._scheduled: asyncio.Handle | None = None
        self._postponed: list[Callable[[], None]] = []
        self._abandoned = False
        self._syncing = False
        self._requested = 0
        """The ticket up to which a sync was last asked for."""
        self._lazy: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_us: int | None = None
        self._held_back = False
        self._waiting: list[Callable[[], None]] = []
        """What is to be done when publishers are not held back any more."""
        self._failing = False
        self.syncs = 0
        """How many syncs have been done."""
        self.pacing_s = pacing_s
        self._pacing: asyncio.TimerHandle | None = None
        self._paced: Set[Session[Channel]] = frozenset()
        """The sessions that are not read from because of their queues' consumers."""

    def start(self) -> None:
        self._committer.start()
        self.begin()
        if self.broker.store.is_opening:
            self._request_sync()  # which fails as long as the disk is full, and holds publishers back

    def close(self) -> None:
        """Ends the threads; on any thread, after `abandon`."""
        self._committer.close()

    def abandon(self) -> None:
        """No turn follows any more, whatever is reported or asked for."""
        self._abandoned = True
        for handle in (self._lazy, self._timer, self._pacing):
            if handle is not None:
                handle.cancel()

    def begin(self) -> None:
        """Something is about to be fed to the broker: a turn follows in this pass of the loop."""
        if self._scheduled is None and not self._abandoned:
            self.broker.begin_turn()
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
        self._write_out()
        self._hold_back()
        self._pace()
        self._sync()
        self._set_timer()
        if self.broker.has_more:
            self.begin()
        for watch in list(self.watchers):
            watch()

    def go_on_later(self, then: Callable[[], None]) -> None:
        """Call what is left to do for a client, behind what others have asked for meanwhile."""
        if not self._postponed:
            # The loop calls timers that are due behind all sockets that it found readable.
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
        """How far away clients are, by the names of their connections."""
        found = {session.name: socket.round_trip_us() for session, socket in self.sockets.items()}
        return {name: round_trip_us for name, round_trip_us in found.items() if round_trip_us is not None}

    def _write_out(self) -> None:
        flushed = self.broker.flushed
        while flushed:
            session, _ = flushed.popitem()
            socket = self.sockets.get(session)
            if socket is not None:
                try:
                    socket.write_out()
                except Exception:  # ours: one connection must not cost the others their turn
                    log.exception("%s: an internal error", session.name)
                    socket.abort()

    # durability

    def _sync(self) -> None:
        ledger = self.broker.ledger
        if self._syncing:
            if self.shares_are_small and ledger.wants_sync and self.broker.store.ticket > self._requested:
                self._request_sync()  # begins when the last one ends, not a turn later
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

    def _done(self, error: WriteFailed | None) -> None:
        self._call(self._synced, error)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to hear it
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _checkpoint_done(self, error: WriteFailed | None) -> None:
        self._call(self._checkpointed, error)

    def _checkpointed(self, error: WriteFailed | None) -> None:
        """Memory is written to the files, or can't be at present: then publishers wait."""
        if not self._abandoned:
            self.begin()
            if error is None:
                self.broker.synced()
                self.broker.checkpointed()
            self.broker.set_alarm("disk", on=error is not None, source="checkpoints")

    def _synced(self, error: WriteFailed | None) -> None:
        if self._abandoned:
            return
        self.begin()
        if error is None:
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
        """Call something in a turn; any thread."""
        self._call(self._in_turn, then)

    def _in_turn(self, then: Callable[[], None]) -> None:
        if not self._abandoned:
            self.begin()
            then()

    def report(self, error: BaseException) -> None:
        """Something failed for good; any thread."""
        self._call(self._fatal, error)

    def committed(self, number: int) -> None:
        """Definitions are written; any thread."""
        self._call(self._committed, number)

    def _committed(self, number: int) -> None:
        self.begin()
        self.broker.committed(number)

    def definitions_refused(self, error: StorageError) -> None:
        """Definitions can't be written at present; any thread."""
        self._call(self._definitions_refused, error)

    def _definitions_refused(self, error: StorageError) -> None:
        log.error("definitions are refused until they can be written again: %s", error)
        self.begin()
        # Both in one step: what is put from here on is based on what is left after the undoing.
        self.broker.refused(self._withdraw(), error)
        self.broker.set_alarm("disk", on=True, source="definitions")

    def definitions_resumed(self) -> None:
        """Definitions can be written again; any thread."""
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
        """Something may be due."""
        self._timer_due_us = None
        self.begin()
        try:
            self.broker.tick()
        except BaseException as error:
            self._fatal(error)
            raise

    # back-pressure

    def _hold_back(self) -> None:
        """Publishers are not read from while the disk is behind."""
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
        """Return whether a publisher has had its share of the next sync; `next_share` ends that.

        Transient messages are in no sync, so publishers of such messages are not stopped.
        """
        unsynced_bytes = min(sent_bytes, self.broker.store.unsynced_bytes)
        is_large = unsynced_bytes >= _SMALL_SYNC_BYTES and cost >= _SMALL_SYNC_SHARE_COST
        if unsynced_bytes < self.sync_share_bytes and not (is_large and self.shares_are_small):
            return False
        self.broker.ledger.after_sync(socket.next_share)
        return True

    @property
    def shares_are_small(self) -> bool:
        """Whether a client had a small share lately because another one waits for answers."""
        return self.broker.shares.are_small(self.broker.turn_us)

    def _pace(self) -> None:
        """Read from publishers only as far as eager consumers of their queues have caught up."""
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
        """Consumers that have taken nothing meanwhile are not waited for any longer."""
        self._pacing = None
        self.broker.pacing.forgive()
        self._pace()

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Calls it when publishers are not held back: at once, or at the end of a later turn."""
        if self._held_back:
            self._waiting.append(then)
        else:
            then()

    @property
    def held_back(self) -> bool:
        return self._held_back
