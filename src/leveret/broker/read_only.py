"""A source that is only read: a stream's reader, and a consumer that peeks into a queue.

Owns what settlements mean there: nothing was taken, so nothing is settled, and an ack only makes room for
more. What is shown, and whether a nack is refused, is left to the subclasses. The rule: no cursor is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker.feed import Source
from leveret.storage.offsets import Range

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.feed import Wish
    from leveret.broker.work import Work


class ReadOnlySource(Source):
    """A subclass refuses rejects in `check_return`."""

    def room_again(self, consumer: Consumer) -> None:
        self.wake()

    def ack(self, ranges: Sequence[Range], *, who: bytes = b"", work: Work | None = None) -> None:
        """Keep nothing of an ack: the message stays where it is."""

    def requeue(
        self,
        ranges: Sequence[Range],
        *,
        delayed: bool = False,
        late: bool = False,
        who: bytes = b"",
        wish: Wish | None = None,
        work: Work | None = None,
    ) -> None:
        """Do nothing: the message never left its place."""

    def reject(
        self, ranges: Sequence[Range], *, who: bytes = b"", why: bytes = b"", work: Work | None = None
    ) -> None:
        raise AssertionError("check_return refuses it")
