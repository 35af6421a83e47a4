"""A member of the group that reads the same orders: `python -m leveret.cli.demo.member URL NAME FILE ORDERS`.

There is one order on which a member hangs, whichever of them gets it. It is held and not settled, while
everything before and behind it goes on: that is the hole which the audit must find, and say who holds it.
"""

from __future__ import annotations

import asyncio
import sys

from leveret.cli.demo.orders import Plan, number_of
from leveret.cli.demo.records import Deed, Record
from leveret.cli.demo.topology import BACK_SOON, GROUP, TOPIC
from leveret.client import App

_GRACE_S = 0.5


def join(url: str, name: str, path: str, orders: int) -> App:
    app = App(url, name=name, backoff=BACK_SOON, grace_s=_GRACE_S)
    record = Record(path)
    hangs = Plan(orders).hangs

    @app.group_listener(TOPIC, group=GROUP, concurrency=4, prefetch=200, max_span=orders)
    async def bill(body: bytes) -> None:
        number = number_of(body)
        if number == hangs:
            record.add(Deed.HANGS, number)
            await asyncio.get_running_loop().create_future()
        record.add(Deed.DONE, number)

    return app


if __name__ == "__main__":
    url, name, path, orders = sys.argv[1:]
    asyncio.run(join(url, name, path, int(orders)).run())
