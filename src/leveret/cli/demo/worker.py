"""A worker that takes orders from the queue: `python -m leveret.cli.demo.worker URL NAME FILE`.

An order that can't be read, or has an amount below 0, fails. The toolkit retries it twice after a moment
and then rejects it, so that the broker dead-letters it. Some orders fail only on the first attempt.
"""

from __future__ import annotations

import asyncio
import json
import sys

from leveret.cli.demo.orders import fails_at_first, order_number
from leveret.cli.demo.records import Action, ActionWriter
from leveret.cli.demo.topology import FAST_BACKOFF, WORK
from leveret.client import App, Delivery, Retry


class OrderFailed(Exception):
    """An attempt at an order failed, and the toolkit should retry it."""


def work(url: str, name: str, path: str) -> App:
    app = App(url, name=name, backoff=FAST_BACKOFF)
    actions = ActionWriter(path)

    @app.listener(WORK, retry=Retry(3, initial_s=0.2, multiplier=2))
    async def take(body: bytes, delivery: Delivery) -> None:
        number = order_number(body)
        try:
            check(body)
            if delivery.attempt == 1 and fails_at_first(number):
                raise OrderFailed("the shop does not answer")
        except OrderFailed:
            actions.add(Action.FAILED, number)
            raise
        actions.add(Action.DONE, number)

    return app


def check(body: bytes) -> None:
    """Raise `OrderFailed` for an invalid order."""
    try:
        order = json.loads(body)
    except ValueError as error:
        raise OrderFailed(f"is not JSON: {error}") from error
    if order["amount"] < 0:
        raise OrderFailed(f"amount {order['amount']} is below 0")


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]).run())
