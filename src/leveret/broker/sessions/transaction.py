"""What a transaction of a channel has collected: publishes and settlements that wait for `tx.commit`.

The commit is left to `transaction_commit`. A rollback makes the deliveries of its settlements outstanding
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from leveret.broker.queues import deadlines
from leveret.broker.queues.consumer import Consumer, Wish
from leveret.broker.sessions.route import Route
from leveret.broker.sessions.settlement import Verdict
from leveret.broker.sessions.unacked import Run, Unacked
from leveret.storage.offset_set import Range
from leveret.storage.records import Message


@dataclass(slots=True)
class Buffer:
    """What a transaction has collected so far."""

    publishes: list[tuple[Route, list[Message]]] = field(default_factory=list)
    settlements: list[tuple[list[Run[Consumer]], Verdict, Wish | None]] = field(default_factory=list)
    """With how a requeue shall be, where the consumer has a wish."""
    late: list[Range] = field(default_factory=list)
    """Tags that were settled too late."""

    def publish(self, route: Route, messages: list[Message]) -> None:
        self.publishes.append((route, messages))

    def settle(self, taken: list[Run[Consumer]], verdict: Verdict, *, wish: Wish | None) -> None:
        if taken:
            self.settlements.append((taken, verdict, wish))

    def settled(self) -> Iterator[Run[Consumer]]:
        """Deliveries that the commit is going to settle."""
        return (run for taken, _, _ in self.settlements for run in taken)

    def withdraw(self, start: int, stop: int) -> list[Run[Consumer]]:
        """The tags [start, stop) are not settled by it, nor outstanding after a rollback."""
        withdrawn = []
        for taken, _, _ in self.settlements:
            kept = []
            for run in taken:
                low, high = max(start, run.start), min(stop, run.stop)
                if low >= high:
                    kept.append(run)
                    continue
                withdrawn.append(run.part(low, high))
                kept += [
                    run.part(*each) for each in ((run.start, low), (high, run.stop)) if each[0] < each[1]
                ]
            taken[:] = kept
        return withdrawn

    def rollback(self, unacked: Unacked[Consumer]) -> None:
        """Forget the publishes; the deliveries are outstanding again."""
        for taken, _, _ in self.settlements:
            unacked.restore(taken)
            for run in taken:
                deadlines.watch_again(run)
        self.clear()

    def clear(self) -> None:
        """Begin anew: all that was collected is committed, or rolled back."""
        self.publishes, self.settlements, self.late = [], [], []
