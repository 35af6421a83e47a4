"""A member of the group that reads the orders: `python -m leveret.cli.demo.member URL NAME FILE ORDERS`.

Whichever member gets the order `Plan.hangs` never settles it, while the group settles all others. So the
order stays a hole, which the audit must find together with the member that holds it.
"""

from __future__ import annotations

import asyncio
import sys

from leveret.cli.demo.orders import Plan, order_number
from leveret.cli.demo.records import Action, ActionWriter
from leveret.cli.demo.topology import FAST_BACKOFF, GROUP, TOPIC
from leveret.client import App

_GRACE_S = 0.5


def join(url: str, name: str, path: str, orders: int) -> App:
    app = App(url, name=name, backoff=FAST_BACKOFF, grace_s=_GRACE_S)
    actions = ActionWriter(path)
    hangs = Plan(orders).hangs

    @app.group_listener(TOPIC, group=GROUP, concurrency=4, prefetch=200, max_span=orders)
    async def bill(body: bytes) -> None:
        number = order_number(body)
        if number == hangs:
            actions.add(Action.HANGS, number)
            await asyncio.get_running_loop().create_future()
        actions.add(Action.DONE, number)

    return app


if __name__ == "__main__":
    url, name, path, orders = sys.argv[1:]
    asyncio.run(join(url, name, path, int(orders)).run())
