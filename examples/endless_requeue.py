"""Endless requeue: exception, nack, requeue, exception, nack, requeue, ...

A consumer that requeues what fails gets it back at once, fails again, and neither it nor the broker does
anything else any more. The toolkit notices such a loop and slows it down; with a retry policy there is none,
because attempts are counted and end somewhere.
"""

import asyncio

from playground import broker, state, wait_until

from leveret.client import App, Connection, Consumer, Hooks, Park, Publisher, Queue, Retry, Topology

LOOP, ORDERS, PARKED = "endless_requeue.loop", "endless_requeue.orders", "endless_requeue.orders.parked"
TOPOLOGY = Topology(Queue(LOOP), Queue(ORDERS), Queue(PARKED))


def process(body: bytes) -> None:
    raise ValueError(f"{body.decode()} has no price")


async def the_problem(url: str) -> None:
    async with Connection(url, topology=TOPOLOGY) as connection:
        async with Publisher(connection) as publisher:
            (await publisher.publish(b"order 1", LOOP)).check()
            (await publisher.publish(b"order 2", ORDERS)).check()
        failures = 0
        async with Consumer(connection, LOOP) as consumer:
            async for delivery in consumer:
                try:
                    process(delivery.body)
                except ValueError:
                    failures += 1
                    await delivery.nack(requeue=True)
                if failures == 1000:
                    break
    print(f"By hand: {failures} deliveries, {failures} failures, without a pause.")
    print(f"In the queue: {(await state(url, LOOP)).ready}. It would go on like this for ever.")


class LoopsSeen(Hooks):
    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.enough = asyncio.Event()

    def noticed(self, event: str, fields: dict[str, object]) -> None:
        if event == "redelivery_loop" and not self.enough.is_set():
            print(f"  {event}: requeued {fields['count']} times in a row, waits {fields['pause_s']} s now")
            self.left -= 1
            if not self.left:
                self.enough.set()


async def without_a_policy(url: str) -> None:
    print("A listener without a retry policy requeues too, but:")
    loops = LoopsSeen(wanted=3)
    app = App(url, hooks=loops)

    @app.listener(LOOP)
    async def take(body: bytes) -> None:
        process(body)

    async with app, asyncio.timeout(20):
        await loops.enough.wait()


async def with_a_policy(url: str) -> None:
    print("With retry=Retry(3) and recoverer=Park():")
    app = App(url)

    @app.listener(ORDERS, retry=Retry(3, initial_s=0.1), recoverer=Park())
    async def take(body: bytes) -> None:
        print("  tried")
        process(body)

    async with app:
        await wait_until(url, PARKED, ready=1)
    print(f"In the queue: {(await state(url, ORDERS)).ready}; parked: {(await state(url, PARKED)).ready}.")


async def main(url: str) -> None:
    await the_problem(url)
    await without_a_policy(url)
    await with_a_policy(url)


with broker(LOOP, ORDERS, PARKED) as url:
    asyncio.run(main(url))
