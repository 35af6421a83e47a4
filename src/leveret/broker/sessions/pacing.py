"""Pacing: publishers wait for consumers that could take more than they are given.

A publisher adds all of a read at once, thousands of messages, while a consumer takes one prefetch window per
pass of the loop. Without a brake the backlog of a queue grows although its consumers are quick and idle.
So what is published to a queue is a debt, and what its consumers take pays it off. The connections that
published are `held` while the debt is not paid: the server does not read from them. Two kinds of consumers
hold them. *Eager* ones take at least half of their prefetch at once. Others have *idle credit*: they may hold
more than their connection takes at present, and settle quickly; they pay by what they settle. Slow consumers
hold nobody. The server calls `forgive` every few milliseconds. Nothing here waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

_EAGER_MESSAGES = 64
"""Consumers that take fewer messages at once are never waited for: the round trip limits them."""
_DEBT_WINDOWS_MAX = 16
"""A publisher waits for at most so many hand-outs like the last one, however much it has published."""
_IDLE_TURNS_MAX = 8
"""The debt of a queue without eager consumers is dropped after so many turns without a publish."""
_FORGIVEN_MESSAGES = 64
"""With idle credit a debt shrinks by at least so many at each call of `forgive`: at 5 ms 12,800 a second."""
_DEBT_MAX = 64 * _FORGIVEN_MESSAGES
"""With idle credit a publisher waits for at most so many messages."""
_QUICK_MESSAGES = 64
"""Consumers are quick while their recent settlements are that many: at 5 ms from 1,600 a second on."""
_RECENT_MAX = 8 * _QUICK_MESSAGES


class Publisher(Protocol):
    """A connection that publishes."""

    @property
    def has_consumers(self) -> bool: ...


P = TypeVar("P", bound=Publisher)


class PacedQueue(Protocol):
    """A queue, as far as pacing looks at it."""

    handed_out: int
    """How many messages its consumers have been given in all."""

    @property
    def ready(self) -> int: ...

    @property
    def settled(self) -> int:
        """How many of the messages handed out its consumers have settled."""

    @property
    def has_idle_credit(self) -> bool:
        """Whether a consumer may hold more messages, be its connection ready for them or not."""

    def is_eager(self, taken: int) -> bool:
        """Return whether consumers that just took so many messages could do with more at once."""


@dataclass(slots=True)
class _Debt(Generic[P]):
    """What was published to one queue and is not yet made up for by its consumers."""

    handed_out: int
    """The queue's count of messages handed out when the debt was last looked at."""
    settled: int
    """The queue's count of settled messages then."""
    settled_at_look: int
    """That count when `forgive` last looked."""
    messages: int = 0
    publishers: dict[P, None] = field(default_factory=dict)
    eager: bool = False
    """Whether the consumers have been eager since `forgive` last looked."""
    holding: bool = False
    idle_turns: int = 0
    recent: int = 0
    """How many were settled of late, with idle credit: each call of `forgive` takes an eighth off."""


class Pacing(Generic[P]):
    """`published` for each batch, `end_turn` once queues have run; then `held` says who is not read from."""

    def __init__(self) -> None:
        self.held: Set[P] = frozenset()
        self._debts: dict[PacedQueue, _Debt[P]] = {}

    def published(self, queue: PacedQueue, count: int, publishers: Iterable[P]) -> None:
        """Note that a queue with consumers got messages from these connections."""
        debt = self._debts.get(queue)
        if debt is None:
            debt = _Debt(queue.handed_out, queue.settled, queue.settled)
            self._debts[queue] = debt
        debt.messages += count
        debt.publishers.update(dict.fromkeys(publishers))
        debt.idle_turns = 0

    def end_turn(self) -> None:
        """Subtract what consumers took in this turn, and decide who is held."""
        if not self._debts:
            return
        for queue, debt in list(self._debts.items()):
            if self._is_over(queue, debt):
                del self._debts[queue]
        self._choose()

    def forgive(self) -> bool:
        """Let go of publishers whose consumers were not quick since the last call; True if some stay held."""
        for queue, debt in list(self._debts.items()):
            if debt.recent:
                self._forgive_part(debt)
            elif debt.holding and not debt.eager:
                del self._debts[queue]
            debt.eager = False
        self._choose()
        return bool(self.held)

    def forget(self, publisher: P) -> None:
        """Drop a connection that has ended."""
        for debt in self._debts.values():
            debt.publishers.pop(publisher, None)

    def _forgive_part(self, debt: _Debt[P]) -> None:
        settled = debt.settled - debt.settled_at_look
        debt.settled_at_look = debt.settled
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
        """Pay by what was settled. A debt that is paid stays for some turns: it knows how quick they are."""
        debt.recent = min(debt.recent + settled, _RECENT_MAX)
        debt.holding = debt.recent >= _QUICK_MESSAGES
        debt.messages = max(0, min(debt.messages - settled, _DEBT_MAX))
        return not (debt.holding and debt.messages) and debt.idle_turns > _IDLE_TURNS_MAX

    def _choose(self) -> None:
        """A connection that consumes, too, is never held: its acks are what is waited for."""
        self.held = {
            publisher
            for debt in self._debts.values()
            if debt.holding and debt.messages > 0
            for publisher in debt.publishers
            if not publisher.has_consumers
        }
