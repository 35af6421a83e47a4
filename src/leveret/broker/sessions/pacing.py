"""Pacing: publishers wait for consumers that could take more messages than they get.

One read of a publisher's socket brings thousands of messages, while a consumer takes one prefetch window per
turn. Without pacing the backlog of a queue grows although its consumers are quick and idle.
So messages published to a queue are counted as a debt, and messages that its consumers take are subtracted.
While the debt is positive, the connections that published are `held`: the server does not read from them.
Only two kinds of consumers cause this. *Eager* consumers take at least half of their prefetch at once.
Consumers with *idle credit* may hold more messages than their connection takes at present; for these,
settlements are subtracted instead. Slow consumers hold no publisher. The server calls `forgive` every few
milliseconds. This module does not wait and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

_EAGER_MESSAGES = 64
"""Publishers never wait for consumers that take fewer messages at once: the round trip limits these."""
_DEBT_WINDOWS_MAX = 16
"""Limit of a debt to eager consumers, as a multiple of the number of messages that they took last."""
_IDLE_TURNS_MAX = 8
"""Number of turns without a publish after which a debt without eager consumers is dropped."""
_FORGIVEN_MESSAGES = 64
"""Least number by which each `forgive` reduces a debt with idle credit: at 5 ms, 12,800 a second."""
_DEBT_MAX = 64 * _FORGIVEN_MESSAGES
"""Limit of a debt with idle credit, in messages."""
_QUICK_MESSAGES = 64
"""Number of recent settlements from which consumers count as quick: at 5 ms, 1,600 a second."""
_RECENT_MAX = 8 * _QUICK_MESSAGES


class Publisher(Protocol):
    """A connection that publishes."""

    @property
    def has_consumers(self) -> bool: ...


P = TypeVar("P", bound=Publisher)


class PacedQueue(Protocol):
    """The part of a queue that pacing uses."""

    handed_out: int
    """Number of messages delivered to the queue's consumers so far."""

    @property
    def ready(self) -> int: ...

    @property
    def settled(self) -> int:
        """Number of delivered messages that the consumers have settled."""

    @property
    def has_idle_credit(self) -> bool:
        """Whether a consumer has unused credit, even if its connection takes no messages at present."""

    def is_eager(self, taken: int) -> bool:
        """Return whether consumers that just took `taken` messages could take more at once."""


@dataclass(slots=True)
class _Debt(Generic[P]):
    """Messages published to one queue, minus messages that its consumers have taken or settled."""

    handed_out: int
    """`handed_out` of the queue at the end of the last turn."""
    settled: int
    """`settled` of the queue at the end of the last turn."""
    settled_at_forgive: int
    """`settled` at the last call of `forgive`."""
    messages: int = 0
    publishers: dict[P, None] = field(default_factory=dict)
    eager: bool = False
    """Whether the consumers have been eager since the last call of `forgive`."""
    holding: bool = False
    idle_turns: int = 0
    recent: int = 0
    """Recent settlements with idle credit; each call of `forgive` subtracts an eighth."""


class Pacing(Generic[P]):
    """The debts of all queues: `published` adds to them, `end_turn` subtracts once the queues have run."""

    def __init__(self) -> None:
        self.held: Set[P] = frozenset()
        """Connections that the server must not read from."""
        self._debts: dict[PacedQueue, _Debt[P]] = {}

    def published(self, queue: PacedQueue, count: int, publishers: Iterable[P]) -> None:
        """Add messages from these connections to the debt of a queue with consumers."""
        debt = self._debts.get(queue)
        if debt is None:
            debt = _Debt(queue.handed_out, queue.settled, queue.settled)
            self._debts[queue] = debt
        debt.messages += count
        debt.publishers.update(dict.fromkeys(publishers))
        debt.idle_turns = 0

    def end_turn(self) -> None:
        """Subtract the messages that consumers took in this turn, and decide which publishers are held."""
        if not self._debts:
            return
        for queue, debt in list(self._debts.items()):
            if self._is_over(queue, debt):
                del self._debts[queue]
        self._choose_held()

    def forgive(self) -> bool:
        """Release publishers whose consumers were not quick lately; return whether any stays held."""
        for queue, debt in list(self._debts.items()):
            if debt.recent:
                self._forgive_part(debt)
            elif debt.holding and not debt.eager:
                del self._debts[queue]
            debt.eager = False
        self._choose_held()
        return bool(self.held)

    def forget(self, publisher: P) -> None:
        """Remove a connection that has ended from all debts."""
        for debt in self._debts.values():
            debt.publishers.pop(publisher, None)

    def _forgive_part(self, debt: _Debt[P]) -> None:
        settled = debt.settled - debt.settled_at_forgive
        debt.settled_at_forgive = debt.settled
        debt.messages -= max(0, _FORGIVEN_MESSAGES - settled)
        debt.recent -= debt.recent // 8
        debt.holding = debt.recent >= _QUICK_MESSAGES

    def _is_over(self, queue: PacedQueue, debt: _Debt[P]) -> bool:
        taken, settled = queue.handed_out - debt.handed_out, max(0, queue.settled - debt.settled)
        debt.handed_out, debt.settled = queue.handed_out, queue.settled
        debt.idle_turns += 1
        if not queue.ready:
            return True
        if queue.has_idle_credit:
            return self._settle(debt, settled)
        debt.recent = 0
        debt.messages -= taken
        if debt.messages <= 0:
            return True
        if taken >= _EAGER_MESSAGES and queue.is_eager(taken):
            debt.eager = debt.holding = True
            debt.messages = min(debt.messages, _DEBT_WINDOWS_MAX * taken)
        return not debt.holding and debt.idle_turns > _IDLE_TURNS_MAX

    def _settle(self, debt: _Debt[P], settled: int) -> bool:
        """Subtract settlements; return whether to drop the debt, which is kept some turns after its end."""
        debt.recent = min(debt.recent + settled, _RECENT_MAX)
        debt.holding = debt.recent >= _QUICK_MESSAGES
        debt.messages = max(0, min(debt.messages - settled, _DEBT_MAX))
        return not (debt.holding and debt.messages) and debt.idle_turns > _IDLE_TURNS_MAX

    def _choose_held(self) -> None:
        """Set the held publishers; a connection with consumers is never held, since its acks must be read."""
        self.held = {
            publisher
            for debt in self._debts.values()
            if debt.holding and debt.messages > 0
            for publisher in debt.publishers
            if not publisher.has_consumers
        }
