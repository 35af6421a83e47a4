"""Publisher confirms of one channel: their sequence numbers, and which of them can be sent.

A publish waits for an ack until the ticket of its sync is safe (ticket 0 waits for nothing), or for a nack.
Confirms go out in the order of the publishes, so all acks between two nacks are one confirm with `multiple`.
A publish that can't be undone (`done`) waits for its ticket however often writing fails. The ledger calls
`release` after every turn and every sync.
The rule: every publish is acked or nacked exactly once, and no ack goes out before its ticket is safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class _Waiting:
    """Publishes of one turn with one outcome: those after the previous entry, up to the number `last`."""

    last: int
    ticket: int
    nack: bool
    done: bool
    since_us: int


class Confirm(NamedTuple):
    """An ack or nack of the publish with the number `last`; with `multiple`, also of all before it."""

    last: int
    nack: bool
    multiple: bool


class Confirms:
    """`confirms.expect(3, ticket)`; later `confirms.release(safe_ticket)` returns the confirms to send."""

    __slots__ = ("_confirmed", "_waiting", "acked", "last")

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._confirmed = 0
        """The number of the last publish that was acked or nacked."""
        self.last = 0
        """The number of the last publish."""
        self.acked = 0
        """Number of publishes that were acked."""

    def __len__(self) -> int:
        """Return the number of publishes that are neither acked nor nacked."""
        return self.last - self._confirmed

    def expect(self, count: int, ticket: int, *, done: bool = False, since_us: int = 0) -> None:
        """Add publishes that are acked once the ticket is safe; `done` if they can't be undone.

        `since_us` is the time of the publishes, for the measurement of latency.
        """
        self._add(count, ticket, nack=False, done=done, since_us=since_us)

    def refuse(self, count: int) -> None:
        """Add publishes that are nacked."""
        self._add(count, 0, nack=True, done=False, since_us=0)

    def fail(self, safe_ticket: int) -> int:
        """Nack the publishes whose ticket is not safe, except those that are `done`; return their number."""
        failed = 0
        previous_last = self._confirmed
        for entry in self._waiting:
            if entry.ticket > safe_ticket and not entry.done:
                failed += entry.last - previous_last
                entry.ticket, entry.nack = 0, True
            previous_last = entry.last
        return failed

    def release(self, safe_ticket: int, acking: Callable[[int, int], None] | None = None) -> list[Confirm]:
        """Return the confirms that can be sent now, in the order of the publishes.

        `acking` is called with the time of publishes and their number, for all publishes of a turn at once.
        """
        confirms: list[Confirm] = []
        waiting = self._waiting
        while waiting and waiting[0].ticket <= safe_ticket:
            nack, before = waiting[0].nack, self._confirmed
            while waiting and waiting[0].nack == nack and waiting[0].ticket <= safe_ticket:
                entry = waiting.popleft()
                if acking is not None and not nack:
                    acking(entry.since_us, entry.last - self._confirmed)
                self._confirmed = entry.last
            count = self._confirmed - before
            confirms.append(Confirm(self._confirmed, nack, count > 1))
            if not nack:
                self.acked += count
        return confirms

    def _add(self, count: int, ticket: int, *, nack: bool, done: bool, since_us: int) -> None:
        self.last += count
        newest = self._waiting[-1] if self._waiting else None
        outcome = (ticket, nack, done, since_us)
        if newest and (newest.ticket, newest.nack, newest.done, newest.since_us) == outcome:
            newest.last = self.last
        else:
            self._waiting.append(_Waiting(self.last, *outcome))
