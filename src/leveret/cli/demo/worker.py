"""One that works on orders: `python -m leveret.cli.demo.worker URL NAME FILE`.

An order that can't be read, or has an amount below 0, fails; the toolkit tries it again twice, a moment
later, and then rejects it, which makes it a dead letter. Some fail once and are done at the next try.
"""

from __future__ import annotations

import asyncio
import json
import sys

from leveret.cli.demo.orders import fails_at_first, number_of
from leveret.cli.demo.records import Deed, Record
from leveret.cli.demo.topology import BACK_SOON, WORK
from leveret.client import App, Delivery, Retry


class OrderFailed(Exception):
    """It is to be tried again."""


def work(url: str, name: str, path: str) -> App:
    app = App(url, name=name, backoff=BACK_SOON)
    record = Record(path)

    @app.listener(WORK, retry=Retry(3, initial_s=0.2, multiplier=2))
    async def take(body: bytes, delivery: Delivery) -> None:
        number = number_of(body)
        try:
            check(body)
            if delivery.attempt == 1 and fails_at_first(number):
                raise OrderFailed("the shop does not answer")
        except OrderFailed:
            record.add(Deed.FAILED, number)
            raise
        record.add(Deed.DONE, number)

    return app


def check(body: bytes) -> None:
    """Raises for an order that nothing can be done with."""
    try:
        order = json.loads(body)
    except ValueError as error:
        raise OrderFailed(f"is not JSON: {error}") from error
    if order["amount"] < 0:
        raise OrderFailed(f"amount {order['amount']} is below 0")


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]).run())
