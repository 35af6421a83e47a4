"""Publisher confirms of one channel: what is owed, and when it is paid.

Owns the sequence numbers. A publish is owed an ack under the ticket of the sync that makes it safe (0 when
there is nothing to wait for), or a nack; both go out in the order of the publishes, so that all acks between
two nacks are one confirm with `multiple`. What can't be undone (`done`) waits for its ticket however often
writing fails. When to look is left to the broker: after every turn, every sync.
The rule: every publish is acked or nacked exactly once, and no ack goes out before its ticket is safe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class _Owed:
    """The publishes up to `last`, from the one after the entry before."""

    last: int
    ticket: int
    nack: bool
    done: bool


class Confirm(NamedTuple):
    """What can be said of the publish with the number `last`; with `multiple`, of those before it, too."""

    last: int
    nack: bool
    multiple: bool


class Confirms:
    """`confirms.expect(3, ticket)`; later `confirms.release(safe_ticket)` says what can be confirmed."""

    __slots__ = ("_owed", "_paid", "acked", "last")

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._paid = 0
        self.last = 0
        """The number of the last publish."""
        self.acked = 0
        """How many publishes were acked."""

    def __len__(self) -> int:
        """How many publishes are neither acked nor nacked."""
        return self.last - self._paid

    def expect(self, count: int, ticket: int, *, done: bool = False) -> None:
        """So many publishes are acked once the ticket is safe; what can't be undone is `done`."""
        self._owe(count, ticket, nack=False, done=done)

    def refuse(self, count: int) -> None:
        """So many publishes are nacked."""
        self._owe(count, 0, nack=True, done=False)

    def fail(self, safe_ticket: int) -> int:
        """Nacks everything that waits for a ticket that is not safe; returns how many publishes that are."""
        failed = 0
        before = self._paid
        for entry in self._owed:
            if entry.ticket > safe_ticket and not entry.done:
                failed += entry.last - before
                entry.ticket, entry.nack = 0, True
            before = entry.last
        return failed

    def release(self, safe_ticket: int) -> list[Confirm]:
        """Return what can be confirmed now, in the order of the publishes."""
        confirms: list[Confirm] = []
        owed = self._owed
        while owed and owed[0].ticket <= safe_ticket:
            entry = owed.popleft()
            while owed and owed[0].nack == entry.nack and owed[0].ticket <= safe_ticket:
                entry = owed.popleft()
            count = entry.last - self._paid
            confirms.append(Confirm(entry.last, entry.nack, count > 1))
            if not entry.nack:
                self.acked += count
            self._paid = entry.last
        return confirms

    def _owe(self, count: int, ticket: int, *, nack: bool, done: bool) -> None:
        self.last += count
        before = self._owed[-1] if self._owed else None
        if before and before.ticket == ticket and before.nack == nack and before.done == done:
            before.last = self.last
        else:
            self._owed.append(_Owed(self.last, ticket, nack, done))
