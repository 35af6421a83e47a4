"""Exchange missing: one wrong name, and the broker closes the channel under everybody who uses it.

Whatever was written behind the wrong publish is thrown away unread. Without confirms nobody hears of it.
With the toolkit the publish to blame is *nacked*, with the broker's words as reason, and no other message
suffers from it.
"""

import asyncio

from playground import broker, state

from leveret.client import Connection, Message, Publisher, Queue, Topology

ORDERS, NOWHERE = "exchange_missing.orders", "exchange_missing.shpo"
MESSAGES = [
    Message({"id": 1}, "new", NOWHERE),
    Message({"id": 2}, ORDERS),
    Message({"id": 3}, ORDERS),
    Message({"id": 4}, ORDERS),
]


async def the_problem(connection: Connection) -> None:
    async with Publisher(connection, confirm="none") as publisher:
        receipts = await publisher.publish_many(MESSAGES)
        print("Without confirms:", ", ".join(receipt.status.value for receipt in receipts) + ".")


async def what_the_toolkit_does(connection: Connection) -> None:
    async with Publisher(connection) as publisher:
        for receipt in await publisher.publish_many(MESSAGES):
            print(f"  {receipt.status.value} {receipt.reason}".rstrip())


async def main(url: str) -> None:
    async with Connection(url, topology=Topology(Queue(ORDERS))) as connection:
        await the_problem(connection)
        print(f"In the queue: {(await state(url, ORDERS)).ready} of 3; they were behind the wrong one.")
        print("With confirms, a receipt each:")
        await what_the_toolkit_does(connection)
    print(f"In the queue: {(await state(url, ORDERS)).ready} of 3.")


with broker(ORDERS) as url:
    asyncio.run(main(url))
