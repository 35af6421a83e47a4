"""The publishes of one channel that are on the wire, in the order of their tags.

Confirms come mostly in order and with `multiple`, so this is a queue whose head has a known tag: the usual
confirm takes receipts off its front. One that is settled ahead of others, or given up because its time is
over, stays in its place as done until the head reaches it. Tags count from 1 on every channel (SEMANTICS,
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
        """Tags of those that were given up and are forgotten here, though no confirm has come for them."""
        self._next_return = 0
        """The tag behind the last one that was returned: the next return is found there, as a rule."""

    def __len__(self) -> int:
        return len(self._receipts)

    def __iter__(self) -> Iterator[Receipt]:
        return (receipt for receipt in self._receipts if receipt.status is Status.PENDING)

    def add(self, receipt: Receipt) -> None:
        self._receipts.append(receipt)

    def settled(self, event: Settlement) -> list[Receipt]:
        """The receipts that a confirm is about, those left out whose time was over before it came."""
        receipts = self._receipts
        if self._overdue:
            self._overdue.difference_update([tag for tag in self._overdue if _covers(event, tag)])
        if event.multiple:
            count = event.last - self._first_tag + 1 if event.last else len(receipts)
            count = min(count, len(receipts))
            self._first_tag += max(count, 0)
            found = [receipts.popleft() for _ in range(count)]
        else:
            start = event.first - self._first_tag
            stop = min(event.last - self._first_tag + 1, len(receipts))
            if start == 0:
                self._first_tag += stop
                return [each for _ in range(stop) if (each := receipts.popleft()).status is Status.PENDING]
            found = [receipts[index] for index in range(max(start, 0), stop)]
        return [receipt for receipt in found if receipt.status is Status.PENDING]

    def trim(self) -> None:
        """Forgets those at the head that are done."""
        receipts = self._receipts
        while receipts and receipts[0].status is not Status.PENDING:
            receipt = receipts.popleft()
            if receipt.status is Status.LOST and not receipt.reason and len(self._overdue) < _OVERDUE_MAX:
                self._overdue.add(self._first_tag)
            self._first_tag += 1

    def returned(self, seq: int, exchange: str = "", routing_key: str = "") -> Receipt | None:
        """The one with this sequence that went there: a sequence may go to several places.

        Returns come in the order of the publishes.
        """
        start = max(self._next_return - self._first_tag, 0)
        count = len(self._receipts)
        for index in chain(range(start, count), range(min(start, count))):
            found = self._receipts[index]
            if found.seq == seq and (found.exchange, found.routing_key) == (exchange, routing_key):
                self._next_return = self._first_tag + index + 1
                return found
        return None

    @property
    def given_up(self) -> bool:
        """Whether some are on the wire still whose time was over: the broker may stop at one of these."""
        return bool(self._overdue) or any(receipt.status is Status.LOST for receipt in self._receipts)

    def take_all(self) -> list[Receipt]:
        """The channel is over: those that nothing is known about, in order; the next channel starts anew."""
        left = list(self)
        self._receipts.clear()
        self._overdue.clear()
        self._first_tag = 1
        self._next_return = 0
        return left


def _covers(event: Settlement, tag: int) -> bool:
    if event.multiple:
        return tag <= event.last or not event.last
    return event.first <= tag <= event.last
