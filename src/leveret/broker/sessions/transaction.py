"""The open transaction of a channel: publishes and settlements that wait for `tx.commit`.

`transaction_commit` commits them. A rollback makes the deliveries of its settlements outstanding again.
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
    """The publishes and settlements of one open transaction."""

    publishes: list[tuple[Route, list[Message]]] = field(default_factory=list)
    settlements: list[tuple[list[Run[Consumer]], Verdict, Wish | None]] = field(default_factory=list)
    """Deliveries, their verdict, and the consumer's wish for a requeue."""
    late: list[Range] = field(default_factory=list)
    """Revoked tags that the client has settled."""

    def publish(self, route: Route, messages: list[Message]) -> None:
        self.publishes.append((route, messages))

    def settle(self, taken: list[Run[Consumer]], verdict: Verdict, *, wish: Wish | None) -> None:
        if taken:
            self.settlements.append((taken, verdict, wish))

    def settled(self) -> Iterator[Run[Consumer]]:
        """Return the deliveries that the commit will settle."""
        return (run for taken, _, _ in self.settlements for run in taken)

    def withdraw(self, start: int, stop: int) -> list[Run[Consumer]]:
        """Remove the tags [start, stop) from the transaction; return their deliveries."""
        withdrawn = []
        for taken, _, _ in self.settlements:
            kept = []
            for run in taken:
                low, high = max(start, run.start), min(stop, run.stop)
                if low >= high:
                    kept.append(run)
                    continue
                withdrawn.append(run.part(low, high))
                rest = ((run.start, low), (high, run.stop))
                kept += [run.part(first, after) for first, after in rest if first < after]
            taken[:] = kept
        return withdrawn

    def rollback(self, unacked: Unacked[Consumer]) -> None:
        """Discard the publishes and make the settled deliveries outstanding again."""
        for taken, _, _ in self.settlements:
            unacked.restore(taken)
            for run in taken:
                deadlines.watch_again(run)
        self.clear()

    def clear(self) -> None:
        """Empty the transaction after a commit or rollback."""
        self.publishes, self.settlements, self.late = [], [], []
