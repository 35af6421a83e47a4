"""Tags of a channel that were taken back: a deadline has passed, or a group was moved by hand.

The client does not know yet, and may settle them: that is no mistake, and no error. It has no effect either;
whoever was to have the message by now is told that such a thing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.storage.offset_set import OffsetSet, Range

if TYPE_CHECKING:
    from leveret.broker.queues.consumer import Source


class Lapsed:
    """`tag in lapsed`; `revoked_tags.forgive(tag, tag + 1)` when it was settled after all."""

    def __init__(self) -> None:
        self._tags: dict[Source, OffsetSet] = {}

    def __bool__(self) -> bool:
        return bool(self._tags)

    def __contains__(self, tag: int) -> bool:
        return any(tag in tags for tags in self._tags.values())

    def add(self, source: Source, tags: Sequence[Range]) -> None:
        self._tags.setdefault(source, OffsetSet()).add_many(tags)

    def forgive(self, start: int, stop: int) -> None:
        """Settlements of these came too late: once each."""
        for source, tags in list(self._tags.items()):
            count = tags.remove(start, stop)
            if count:
                source.count_late_settlements(count)
            if not tags:
                del self._tags[source]
