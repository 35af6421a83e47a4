"""A consumer dies with messages in hand: what it had comes back, and some of it was done already.

Unacked messages go back to the queue when their connection ends, and say that they are *redelivered*: they
may have been processed, nobody knows. A worker that remembers what it has done, in a file that outlives it,
turns "may have" into "was" or "was not".
"""

import asyncio
import multiprocessing
import tempfile
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from playground import WAIT_S, broker, state, wait_until

from leveret.client import (
    App,
    Connection,
    Consumer,
    Delivery,
    Message,
    Publisher,
    Queue,
    SqliteSeen,
    Topology,
)

ORDERS = "consumer_dies.orders"


def first_worker(url: str, memory: str, parent: Pipe) -> None:
    """Takes three messages, has done one of them, and gets no further."""

    async def work() -> None:
        seen = SqliteSeen(memory)
        async with Connection(url) as connection, Consumer(connection, ORDERS, prefetch=3) as consumer:
            in_hand = [await consumer.take() for _ in range(3)]
            first = in_hand[0]
            assert first is not None
            assert first.message_id is not None
            await seen.remember([first.message_id])
            parent.send(f"has 3 orders in hand, and has charged order {first.value['id']}")
            await asyncio.sleep(WAIT_S)  # it is killed here, before its ack

    asyncio.run(work())


async def second_worker(url: str, memory: str) -> None:
    seen = SqliteSeen(memory)
    app = App(url)
    done = asyncio.Event()

    @app.listener(ORDERS, idempotence=seen)
    async def charge(order: dict[str, int], delivery: Delivery) -> None:
        print(f"  charges order {order['id']} (redelivered: {delivery.redelivered})")
        if order["id"] == 5:
            done.set()

    async with app, asyncio.timeout(WAIT_S):
        await done.wait()
        counters = app.listeners[0].counters
    print(f"  {counters.delivered} deliveries, {counters.duplicates} of them acked without a call.")
    await seen.close()


async def main(url: str, memory: str) -> None:
    topology = Topology(Queue(ORDERS))
    async with Connection(url, topology=topology) as connection, Publisher(connection) as publisher:
        for receipt in await publisher.publish_many(Message({"id": n}, ORDERS) for n in range(1, 6)):
            receipt.check()
    print(f"In the queue: {(await state(url, ORDERS)).ready}.")
    told, tell = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=first_worker, args=(url, memory, tell))
    process.start()
    assert await asyncio.to_thread(told.poll, WAIT_S), "the worker says nothing"
    print(f"The first worker {told.recv()}. It is killed.")
    process.kill()
    process.join()
    await wait_until(url, ORDERS, consumers=0)
    print(f"In the queue: {(await state(url, ORDERS)).ready}.")
    print("The second worker:")
    await second_worker(url, memory)
    print(f"In the queue: {(await state(url, ORDERS)).ready}.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, broker(ORDERS) as url:
        asyncio.run(main(url, str(Path(directory, "orders.seen.db"))))
