"""Pacing: publishers wait for consumers that could take more than they are given.

A publisher adds all of a read at once, thousands of messages, while a consumer takes one prefetch window per
pass of the loop. Without a brake the backlog of a queue grows although its consumers are quick and idle.
So what is published to a queue is a debt, and what its consumers take pays it off. While they are eager
(they take at least half of their prefetch at once, or have credit left over) and the debt is not paid, the
connections that published are `held`: the server does not read from them. Slow consumers hold nobody: they
settle a few messages at a time. The server calls `forgive` when consumers have paused for some milliseconds.
Nothing here waits or reads a clock.
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

    def is_eager(self, taken: int) -> bool:
        """Return whether consumers that just took so many messages could do with more at once."""


@dataclass(slots=True)
class _Debt(Generic[P]):
    """What was published to one queue and is not yet made up for by its consumers."""

    handed_out: int
    """The queue's count of messages handed out when the debt was last looked at."""
    messages: int = 0
    publishers: dict[P, None] = field(default_factory=dict)
    eager: bool = False
    """Whether the consumers have been eager since `forgive` last looked."""
    holding: bool = False
    idle_turns: int = 0


class Pacing(Generic[P]):
    """`published` for each batch, `end_turn` once queues have run; then `held` says who is not read from."""

    def __init__(self) -> None:
        self.held: Set[P] = frozenset()
        self._debts: dict[PacedQueue, _Debt[P]] = {}

    def published(self, queue: PacedQueue, count: int, publishers: Iterable[P]) -> None:
        """Note that a queue with consumers got messages from these connections."""
        debt = self._debts.get(queue)
        if debt is None:
            debt = self._debts[queue] = _Debt(queue.handed_out)
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
        """Let go of publishers whose consumers were not eager since the last call; True if some stay held."""
        for queue, debt in list(self._debts.items()):
            if debt.holding and not debt.eager:
                del self._debts[queue]
            debt.eager = False
        self._choose()
        return bool(self.held)

    def forget(self, publisher: P) -> None:
        """Drop a connection that has ended."""
        for debt in self._debts.values():
            debt.publishers.pop(publisher, None)

    def _is_over(self, queue: PacedQueue, debt: _Debt[P]) -> bool:
        taken = queue.handed_out - debt.handed_out
        debt.handed_out = queue.handed_out
        debt.messages -= taken
        if debt.messages <= 0 or not queue.ready:
            return True
        if taken >= _EAGER_MESSAGES and queue.is_eager(taken):
            debt.eager = debt.holding = True
            debt.messages = min(debt.messages, _DEBT_WINDOWS_MAX * taken)
        debt.idle_turns += 1
        return not debt.holding and debt.idle_turns > _IDLE_TURNS_MAX

    def _choose(self) -> None:
        """A connection that consumes, too, is never held: its acks are what is waited for."""
        self.held = {
            publisher
            for debt in self._debts.values()
            if debt.holding
            for publisher in debt.publishers
            if not publisher.has_consumers
        }
