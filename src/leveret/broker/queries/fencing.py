"""Runs of queries: only requests of the present run are accepted.

A query is started many times: again after a failure, or twice by mistake. Each start is a run with a number,
its epoch. `leases` (queries over queues) and `stream_queries` (queries over streams and topics) choose
epochs, store them and compare them for equality; this module holds what both share. Batches of sinks
(`staged_batches`) have no runs: the number of the last committed batch identifies old ones. `ownership`
decides who may begin a run.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.errors import QueryRefused

_KNOWN_MAX: Final = 16
"""Epochs remembered: a run that repeats its request does so soon."""


class Runs:
    """The epochs of the latest runs of a query, by the names that the runs chose for themselves.

    A run whose answer was lost repeats its request and gets the epoch that it has. A restart of the broker
    forgets these epochs.

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
        if run:
            self._epochs[run] = epoch
            if len(self._epochs) > _KNOWN_MAX:
                del self._epochs[next(iter(self._epochs))]


def fenced_error(sentence: str, *, present: int) -> QueryRefused:
    """Return the error for a run that is not the present one; `sentence` says which run is over."""
    return QueryRefused(
        "fenced",
        f"{sentence}: the query is in its run {present}",
        hint="Another run of the same query has taken over. Two queries need two names.",
    )
