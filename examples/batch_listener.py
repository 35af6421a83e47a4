"""A batch listener: many messages in one call, and each with a fate of its own.

A handler that writes to a database wants a hundred rows at a time. When one of them is bad, the others must
not be written a second time: the handler says which failed, and only those are tried again.
"""

import asyncio

from playground import WAIT_S, broker, state

from leveret.client import App, Batch, BatchFailed, Message, Park, Queue, Retry, Topology

ROWS, PARKED = "batch_listener.rows", "batch_listener.rows.parked"
RETRY = Retry(3, initial_s=0.1, multiplier=1)


async def main(url: str) -> None:
    app = App(url, topology=Topology(Queue(ROWS), Queue(PARKED)))
    written: list[int] = []
    all_written = asyncio.Event()
    refused = {6}  # the database refuses this row, the first time

    @app.listener(ROWS, batch=Batch(size=4, seconds=1.0), retry=RETRY, recoverer=Park())
    async def write(rows: list[dict[str, int]]) -> None:
        ids = [row["id"] for row in rows]
        print(f"called with {ids}")
        failed = {n: ValueError("refused") for n, each in enumerate(ids) if each in refused}
        written.extend(each for each in ids if each not in refused)
        refused.difference_update(ids)
        if len(written) == 8:
            all_written.set()
        if failed:
            print(f"  of these, {[ids[n] for n in failed]} failed")
            raise BatchFailed(failed)

    async with app, asyncio.timeout(WAIT_S):
        await app.publisher.publish_many([Message({"id": n}, ROWS) for n in range(1, 9)])
        await all_written.wait()
    print(f"Written, each once: {written}")
    print(f"In the queue: {(await state(url, ROWS)).ready}.")


with broker(ROWS, PARKED) as url:
    asyncio.run(main(url))
