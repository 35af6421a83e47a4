"""One message of a partition at a time, in order, for groups in orderly mode.

The broker has one message of a partition in flight. Still, a listener can have two: after a lost connection
or a seek, the old handler goes on while the partition's next delivery arrives. That delivery waits in its
lane until the old handler has ended. The broker assigns partitions and knows the mode: deliveries carry both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError


class Lanes:
    """`lanes.enter(deliveries)` and `lanes.leave(delivery)` both return the deliveries that may begin now."""

    def __init__(self) -> None:
        self._behind: dict[str, deque[Delivery]] = {}
        """The waiting deliveries of each partition that has one in hand."""

    def __len__(self) -> int:
        """The number of waiting deliveries."""
        return sum(map(len, self._behind.values()))

    def enter(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        ready = []
        for delivery in deliveries:
            partition = _partition(delivery)
            if partition is None:
                ready.append(delivery)
            elif partition in self._behind:
                self._behind[partition].append(delivery)
            else:
                self._behind[partition] = deque()
                ready.append(delivery)
        return ready

    def leave(self, delivery: Delivery) -> Sequence[Delivery]:
        partition = _partition(delivery)
        if partition is None:
            return ()
        if lane := self._behind.get(partition):
            return (lane.popleft(),)
        self._behind.pop(partition, None)
        return ()

    def empty(self) -> list[Delivery]:
        """Remove and return all waiting deliveries."""
        waiting = [delivery for lane in self._behind.values() for delivery in lane]
        self._behind.clear()
        return waiting


def _partition(delivery: Delivery) -> str | None:
    """Return the partition whose lane holds this delivery, or None if it may begin at any time."""
    try:
        return delivery.partition if delivery.is_in_order else None
    except ConversionError:
        # No handler will be called for it.
        return None
