"""Group listeners under test: the topic they read, and what the broker knows of their group.

`Watched` looks at a group on the broker's own thread, waits for it without sleeping, and changes it there as
an operator does. Applications and handlers are the tests' own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from leveret.broker.groups.group import Group
from leveret.broker.groups.partition import Partition
from leveret.client import App, ChannelClosed, Message, Publisher, Topology, partition, topic
from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.client.listening import QUICK, WAIT_S, taken

T = TypeVar("T")


def application(url: str, *, partitions: int = 1, name: str = "orders", **options: Any) -> App:
    """With a topic; quick to come back, and with the same chance each time."""
    options = {"backoff": QUICK, "chance": random.Random(20260101), "grace_s": 10.0, **options}
    return App(url, topology=Topology(topic(name, partitions=partitions)), **options)


async def put(publisher: Publisher, bodies: list[Any], *, into: int = 0, **properties: Any) -> None:
    """Into one partition of the topic, in this order; all are confirmed."""
    stream = partition("orders", into)
    messages = [Message(body, stream, properties=properties) for body in bodies]  # type: ignore[typeddict-item]
    for receipt in await publisher.publish_many(messages, timeout_s=WAIT_S):
        receipt.check()


async def pass_time(clock: VirtualClock, seconds: float) -> None:
    await asyncio.to_thread(clock.advance, seconds)


async def dead_letters(url: str, group: str = "billing") -> list[tuple[bytes, dict[str, Any]]]:
    """Bodies and headers, taken out; the queue is there from the first one on."""
    try:
        found = await taken(url, f"%DLQ%{group}")
    except ChannelClosed as error:
        if error.code != 404:
            raise
        return []
    return [(body, said["headers"]) for body, said in found]


class Watched:
    """`await group.until(lambda found: not found.lag, "all is done")`."""

    def __init__(self, broker: Broker, subject: str = "orders", name: str = "billing") -> None:
        self._broker = broker
        self._key = (subject, name)

    def _find(self) -> Group | None:
        groups = self._broker.server.broker.vhosts["/"].groups
        return next((group for group in groups if (group.subject, group.name) == self._key), None)

    def see(self, look: Callable[[Group], T]) -> T:
        return self._broker.call(lambda: look(_there(self._find())))

    def partition(self, look: Callable[[Partition], T], number: int = 0) -> T:
        return self.see(lambda group: look(group.partitions[partition("orders", number)]))

    def change(self, **settings: Any) -> None:
        """As an operator does, while it runs."""
        self.act(lambda group: group.vhost.groups.change(group, settings))

    def act(self, action: Callable[[Group], object]) -> None:
        def turn() -> None:
            self._broker.server.turns.begin()
            action(_there(self._find()))

        self._broker.call(turn)

    async def until(self, holds: Callable[[Group], bool], what: str) -> None:
        def look() -> bool:
            found = self._find()
            return found is not None and holds(found)

        await asyncio.to_thread(self._broker.wait_until, look, what, timeout_s=WAIT_S)

    async def until_done(self) -> None:
        await self.until(lambda group: not group.lag, "everything is settled")

    async def until_back(self, count: int = 1) -> None:
        """So many wait for their next try."""
        await self.until(
            lambda group: sum(each.cursor.waiting.delayed for each in group.partitions.values()) == count,
            f"{count} are sent back",
        )


def _there(group: Group | None) -> Group:
    assert group is not None, "there is no such group"
    return group
