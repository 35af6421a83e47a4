"""Delivery tags that the broker has taken back from a channel: a deadline passed, or a group was moved.

The client does not know yet and may still settle these tags. Such a settlement has no effect and is no error;
the source counts it as stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.storage.offset_set import OffsetSet, Range

if TYPE_CHECKING:
    from leveret.broker.queues.consumer import Source


class RevokedTags:
    """`tag in revoked_tags`; `revoked_tags.forgive(tag, tag + 1)` when the client settles the tag."""

    def __init__(self) -> None:
        self._tags: dict[Source, OffsetSet] = {}

    def __bool__(self) -> bool:
        return bool(self._tags)

    def __contains__(self, tag: int) -> bool:
        return any(tag in tags for tags in self._tags.values())

    def add(self, source: Source, tags: Sequence[Range]) -> None:
        self._tags.setdefault(source, OffsetSet()).add_many(tags)

    def forgive(self, start: int, stop: int) -> None:
        """Remove the revoked tags in [start, stop), and count their late settlements at their sources."""
        for source, tags in list(self._tags.items()):
            count = tags.remove(start, stop)
            if count:
                source.count_late_settlements(count)
            if not tags:
                del self._tags[source]
