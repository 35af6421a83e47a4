"""Unroutable: the exchange has the message, and no queue wants it.

The broker acks such a message, because it has dealt with it: by throwing it away. Only a publish that is
*mandatory* comes back. With the toolkit every publish is, and its receipt says so.
"""

import asyncio

from playground import broker, state

from leveret.client import Binding, Connection, Exchange, MessageReturned, Publisher, Queue, Receipt, Topology

SHOP, ORDERS = "unroutable.shop", "unroutable.orders"


async def the_problem(connection: Connection) -> None:
    async with Publisher(connection, mandatory=False) as publisher:
        receipt = await publisher.publish({"id": 1}, "oder.new", exchange=SHOP)  # a typing error
        print(f"Not mandatory: the broker says '{receipt.status.value}', and the order is in no queue.")


async def what_the_toolkit_does(connection: Connection) -> None:
    def came_back(receipt: Receipt) -> None:
        print(f"on_return: {receipt.reply_code} {receipt.reply_text}, while it is {receipt.status.value}.")

    def answered(receipt: Receipt) -> None:
        print(f"on_confirm: {receipt.status.value}, key '{receipt.routing_key}'.")

    async with Publisher(connection, on_return=came_back, on_confirm=answered) as publisher:
        receipt = await publisher.publish({"id": 2}, "oder.new", exchange=SHOP)
        try:
            receipt.check()
        except MessageReturned as error:
            print(f"check() raises {type(error).__name__}; the hint: {error.hint}.")
        await publisher.publish({"id": 2}, "order.new", exchange=SHOP)


async def main(url: str) -> None:
    strict = Topology(Exchange(SHOP, "topic"), Queue(ORDERS), Binding(SHOP, ORDERS, "order.#"))
    async with Connection(url, topology=strict) as connection:
        await the_problem(connection)
        await what_the_toolkit_does(connection)
    print(f"Orders in the queue: {(await state(url, ORDERS)).ready}.")


with broker(SHOP, ORDERS) as url:
    asyncio.run(main(url))
