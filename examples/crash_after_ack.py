"""Crash after ack: the consumer says that it has the message, and dies before it has done anything with it.

The broker forgets a message that is acked. A consumer that acks first and works then loses what it was
working on. A listener of the toolkit acks when its handler has returned: what a killed process had in hand
comes back, and says that it was delivered before.
"""

import asyncio
import multiprocessing
from multiprocessing.connection import Connection as Pipe

from playground import WAIT_S, broker, channel_of, state, wait_until

from leveret.client import App, Connection, Consumer, Delivery, Publisher, Queue, Topology

ORDERS = "crash_after_ack.orders"


def acks_first(url: str, parent: Pipe) -> None:
    """A process that acks, then works."""

    async def work() -> None:
        async with Connection(url) as connection, Consumer(connection, ORDERS) as consumer:
            async for delivery in consumer:
                await delivery.ack()
                async with channel_of(connection):
                    pass  # opened and closed: what the broker has answered to that came after the ack
                parent.send("has acked, and begins to work")
                await asyncio.sleep(WAIT_S)  # the work; it is killed here

    asyncio.run(work())


def returns_first(url: str, parent: Pipe) -> None:
    """A process that works, then acks: what `ack="auto"` does, which is what a listener does by itself."""
    app = App(url)

    @app.listener(ORDERS)
    async def take(order: dict[str, int]) -> None:
        parent.send("has the order, and begins to work")
        await asyncio.sleep(WAIT_S)  # the work; it is killed here

    asyncio.run(app.run())


async def kill_in_the_middle(url: str, worker: object) -> None:
    """Publishes an order, lets a process take it, and kills the process with SIGKILL."""
    topology = Topology(Queue(ORDERS))
    async with Connection(url, topology=topology) as connection, Publisher(connection) as publisher:
        (await publisher.publish({"id": 1}, ORDERS)).check()
    told, tell = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(url, tell))
    process.start()
    assert await asyncio.to_thread(told.poll, WAIT_S), "the worker says nothing"
    print(f"  The worker {told.recv()}. It is killed.")
    process.kill()
    process.join()
    await wait_until(url, ORDERS, consumers=0)


async def main(url: str) -> None:
    print("A worker that acks first:")
    await kill_in_the_middle(url, acks_first)
    print(f"  In the queue: {(await state(url, ORDERS)).ready}. Nobody has processed the order: it is lost.")
    print("A listener, which acks after the handler has returned:")
    await kill_in_the_middle(url, returns_first)
    print(f"  In the queue: {(await state(url, ORDERS)).ready}.")
    async with Connection(url) as connection, Consumer(connection, ORDERS) as consumer:
        delivery: Delivery | None = await consumer.take(WAIT_S)
        assert delivery is not None
        print(f"  The next worker gets {delivery.value}, redelivered: {delivery.redelivered}.")
        await delivery.ack()


if __name__ == "__main__":
    with broker(ORDERS) as url:
        asyncio.run(main(url))
