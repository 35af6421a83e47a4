"""One message of a partition at a time, in their order: for listeners of groups that are in orderly mode.

The broker has one message of a partition in flight. Still, two can be here: the handler of one that was lost
with its connection, or was voided by a seek, goes on while the partition's next delivery comes. That one
waits in its lane until the handler before it is done. Which partitions are this member's, and whether its
group is orderly, is the broker's affair: deliveries say it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from leveret.client.delivery import Delivery
from leveret.client.errors import ConversionError


class Lanes:
    """`lanes.enter(deliveries)` are those that may begin, `lanes.leave(delivery)` those that may then."""

    def __init__(self) -> None:
        self._behind: dict[str, deque[Delivery]] = {}
        """Of each partition that has begun with one: those that wait for it."""

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._behind.values()))

    def enter(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        free = []
        for delivery in deliveries:
            partition = _partition(delivery)
            if partition is None:
                free.append(delivery)
            elif partition in self._behind:
                self._behind[partition].append(delivery)
            else:
                self._behind[partition] = deque()
                free.append(delivery)
        return free

    def leave(self, delivery: Delivery) -> Sequence[Delivery]:
        partition = _partition(delivery)
        if partition is None:
            return ()
        if lane := self._behind.get(partition):
            return (lane.popleft(),)
        self._behind.pop(partition, None)
        return ()

    def empty(self) -> list[Delivery]:
        """Takes all out that wait."""
        waiting = [delivery for lane in self._behind.values() for delivery in lane]
        self._behind.clear()
        return waiting


def _partition(delivery: Delivery) -> str | None:
    """In whose lane it is, if it is in one."""
    try:
        return delivery.partition if delivery.is_in_order else None
    except ConversionError:  # its handler will not be called
        return None
