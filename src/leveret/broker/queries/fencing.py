"""Runs of queries: one is the present run, and all others are refused.

A query is started many times: again after a failure, or twice by mistake. Each start is a run and gets a
number, its epoch. `leases` (queries over queues) and `stream_queries` (queries over streams and topics) write
it down, choose it, and compare it for equality. What both do alike is here. Batches of sinks (`stages`) have
no runs: the number of the last committed batch tells old ones. Who may begin a run is left to `ownership`.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import QueryRefused

_KNOWN_MAX: Final = 16
"""A run that asks twice does so soon."""


class Runs:
    """The epochs of the runs that began last, by the names that the runs gave themselves.

    A run whose answer was lost asks again, and gets the epoch that it has. A restart of the broker forgets
    this.

    >>> runs = Runs()
    >>> runs.remember("a3f1", 7)
    >>> runs.epoch_of("a3f1"), runs.epoch_of("b204")
    (7, None)
    """

    __slots__ = ("_epochs",)

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def epoch_of(self, run: str) -> int | None:
        return self._epochs.get(run)

    def remember(self, run: str, epoch: int) -> None:
        """Note the epoch of a run; a run without a name is not noted."""
        if run:
            self._epochs[run] = epoch
            if len(self._epochs) > _KNOWN_MAX:
                del self._epochs[next(iter(self._epochs))]


def fenced(sentence: str, *, present: int) -> QueryRefused:
    """Return the refusal of a run that is not the present one; `sentence` says which run is over."""
    return QueryRefused(
        "fenced",
        f"{sentence}: the query is in its run {present}",
        hint="Another run of the same query has taken over. Two queries need two names.",
    )
