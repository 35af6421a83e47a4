"""The unconfirmed publishes of one channel, in the order of their tags.

Confirms mostly come in order and with `multiple`. So this is a queue whose head has a known tag, and the
usual confirm takes receipts off the front. A receipt that is confirmed ahead of others, or whose deadline
has passed, stays in its place until the head reaches it. Tags count from 1 on every channel (SEMANTICS,
"Publisher confirms").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

from leveret.amqp.events import Settlement
from leveret.client.receipt import Receipt, Status

_OVERDUE_MAX: Final = 10_000


class Unconfirmed:
    """`unconfirmed.add(receipt)` when it is written, `unconfirmed.settled(event)` when a confirm comes."""

    def __init__(self) -> None:
        self._receipts: deque[Receipt] = deque()
        self._first_tag = 1
        self._overdue: set[int] = set()
        """Tags of receipts that were dropped after their deadline, although no confirm has come for them."""
        self._next_return = 0
        """The tag after the last one that was returned. The search for the next return begins there."""

    def __len__(self) -> int:
        return len(self._receipts)

    def __iter__(self) -> Iterator[Receipt]:
        return (receipt for receipt in self._receipts if receipt.status is Status.PENDING)

    def add(self, receipt: Receipt) -> None:
        self._receipts.append(receipt)

    def settled(self, event: Settlement) -> list[Receipt]:
        """Take off the receipts that a confirm is for, and return those that are still pending."""
        receipts = self._receipts
        if self._overdue:
            self._overdue.difference_update([tag for tag in self._overdue if _covers(event, tag)])
        if event.multiple:
            count = event.last - self._first_tag + 1 if event.last else len(receipts)
            count = min(count, len(receipts))
            self._first_tag += max(count, 0)
            settled = [receipts.popleft() for _ in range(count)]
        else:
            start = event.first - self._first_tag
            stop = min(event.last - self._first_tag + 1, len(receipts))
            if start == 0:
                self._first_tag += stop
                return [
                    receipt for _ in range(stop) if (receipt := receipts.popleft()).status is Status.PENDING
                ]
            settled = [receipts[index] for index in range(max(start, 0), stop)]
        return [receipt for receipt in settled if receipt.status is Status.PENDING]

    def trim(self) -> None:
        """Drop receipts at the head that are resolved."""
        receipts = self._receipts
        while receipts and receipts[0].status is not Status.PENDING:
            receipt = receipts.popleft()
            if receipt.status is Status.LOST and not receipt.reason and len(self._overdue) < _OVERDUE_MAX:
                self._overdue.add(self._first_tag)
            self._first_tag += 1

    def returned(self, seq: int, exchange: str = "", routing_key: str = "") -> Receipt | None:
        """Return the receipt with this sequence number and address, or None.

        Several publishes may share a sequence number. Returns come in the order of the publishes.
        """
        start = max(self._next_return - self._first_tag, 0)
        count = len(self._receipts)
        for index in chain(range(start, count), range(min(start, count))):
            receipt = self._receipts[index]
            if receipt.seq == seq and (receipt.exchange, receipt.routing_key) == (exchange, routing_key):
                self._next_return = self._first_tag + index + 1
                return receipt
        return None

    @property
    def has_overdue(self) -> bool:
        """Whether the broker has yet to confirm a publish whose deadline has passed."""
        return bool(self._overdue) or any(receipt.status is Status.LOST for receipt in self._receipts)

    def take_all(self) -> list[Receipt]:
        """Empty this for the next channel, and return the receipts that are pending, in order."""
        pending = list(self)
        self._receipts.clear()
        self._overdue.clear()
        self._first_tag = 1
        self._next_return = 0
        return pending


def _covers(event: Settlement, tag: int) -> bool:
    if event.multiple:
        return tag <= event.last or not event.last
    return event.first <= tag <= event.last
