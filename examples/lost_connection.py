"""A connection is lost between a publish and its confirm: was it stored, or not?

Nobody can know. The toolkit sends what is unconfirmed again, in order, with the same message id, and marks
it. On Leveret a queue with `dedup` stores it once all the same. Elsewhere it may be there twice: the second
copy says so, and a consumer with a memory skips it.
"""

import asyncio

from playground import WAIT_S, Wire, broker, state, wait_until

from leveret.client import App, Connection, Delivery, MemorySeen, Message, Publisher, Queue, Topology

ORDERS = "lost_connection.orders"
TOPOLOGY = Topology(Queue(ORDERS, dedup=True))  # other brokers take the argument, and do nothing about it


async def publish_through_a_bad_wire(url: str, wire: Wire) -> None:
    async with Connection(wire.url, topology=TOPOLOGY) as connection, Publisher(connection) as publisher:
        (await publisher.publish({"id": 1}, ORDERS)).check()
        wire.hold_answers()
        receipts = [publisher.send({"id": n}, ORDERS) for n in (2, 3)]
        await wait_until(url, ORDERS, ready=3)
        print(f"The broker has 3 orders; {len(publisher.unconfirmed())} receipts are open. The wire is cut.")
        wire.cut()
        for receipt in receipts:
            await receipt
            print(f"  {receipt.status.value} after {receipt.attempts} attempts")


async def consume(url: str) -> None:
    app = App(url)
    done = asyncio.Event()

    @app.listener(ORDERS, idempotence=MemorySeen())
    async def take(order: dict[str, int], delivery: Delivery) -> None:
        print(f"  order {order['id']}, redelivered: {delivery.redelivered}")
        if order["id"] == 4:
            done.set()

    async with app, asyncio.timeout(WAIT_S):
        await app.publisher.publish_many([Message({"id": 4}, ORDERS)])
        await done.wait()
        counters = app.listeners[0].counters
    print(f"  {counters.delivered} deliveries, {counters.duplicates} duplicates that no handler has seen.")


async def main(url: str) -> None:
    async with Wire(url) as wire:
        await publish_through_a_bad_wire(url, wire)
    print(f"In the queue: {(await state(url, ORDERS)).ready}.")
    print("One more order, and a consumer with a memory:")
    await consume(url)


with broker(ORDERS) as url:
    asyncio.run(main(url))
