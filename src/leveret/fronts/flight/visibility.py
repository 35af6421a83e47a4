"""Which messages of a queue a reader may be shown, decided anew for each ticket.

A ticket names offsets, and anybody can write one. The rule: it shows what a snapshot of the queue would show
now. That is what is not settled, what is in no batch that waits for its commit, and of a stream nothing
behind such a batch.
"""

from __future__ import annotations

from leveret.broker.queue import Queue
from leveret.broker.streams.stream import Stream
from leveret.storage.ackset import AckSet


def withheld(queue: Queue, start: int, stop: int) -> AckSet:
    """All of [start, stop) that may not be read, as if it were settled; outside of it anything."""
    found = queue.cursor.settled.around(start, stop)
    if start >= stop:
        return found
    if (stages := queue.vhost.stages) is not None:
        found.settle_many(list(stages.hidden(queue).ranges(start, stop)))
    if isinstance(queue, Stream) and queue.decided() < stop:
        found.settle(max(queue.decided(), start), stop)
    return found
