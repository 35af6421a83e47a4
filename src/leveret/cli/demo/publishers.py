"""The publishers of the orders, each on a connection of its own, with confirms.

This module ignores the crash of the broker: the toolkit reconnects and publishes unconfirmed messages
again. What became of each message is in its receipt, and receipts are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leveret.cli.demo.orders import GATE_SHARE, PUBLISHERS, Plan
from leveret.cli.demo.topology import FAST_BACKOFF, ORDERS, UNBOUND
from leveret.client import Connection, Publisher, Receipt

_TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class Receipts:
    """What became of the messages, by their receipts."""

    confirmed: int = 0
    returned: int = 0
    nacked: int = 0
    lost: int = 0
    republished: int = 0
    """Messages that were sent more than once, because a connection was lost."""

    @property
    def total(self) -> int:
        return self.confirmed + self.returned + self.nacked + self.lost

    def count(self, receipt: Receipt) -> None:
        name = receipt.status.value
        setattr(self, name, getattr(self, name) + 1)
        self.republished += receipt.attempts > 1


class Publishers:
    """All publishers: `await publishers.run()` returns when each message has its receipt."""

    def __init__(self, url: str, plan: Plan, on_receipt: Callable[[Receipts], None]) -> None:
        self._url = url
        self._plan = plan
        self._on_receipt = on_receipt
        self.receipts = Receipts()
        self.gate = asyncio.Event()
        """Set when the publishers may continue beyond `GATE_SHARE`."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PUBLISHERS):
                group.create_task(self._publish(number))

    async def _publish(self, number: int) -> None:
        plan, gate_number = self._plan, int(self._plan.orders * GATE_SHARE)
        async with (
            Connection(self._url, name=f"publisher-{number + 1}", backoff=FAST_BACKOFF) as connection,
            Publisher(
                connection, window=plan.window, timeout_s=_TIMEOUT_S, on_confirm=self._count
            ) as publisher,
        ):
            for order in plan.of(number):
                if order.number >= gate_number and not self.gate.is_set():
                    await self.gate.wait()
                if not publisher.has_room:
                    await publisher.room()
                exchange = ORDERS if order.routable else UNBOUND
                publisher.send(order.body, order.customer, exchange=exchange)

    def _count(self, receipt: Receipt) -> None:
        self.receipts.count(receipt)
        self._on_receipt(self.receipts)
