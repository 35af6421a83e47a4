"""The queue of one run of `bench.client`: declared and filled before it, checked and deleted after it.

It is handled with the raw client of this folder, from outside the measured process. After a run that
publishes every message must be in the queue, after one that consumes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.client_raw import fill
from bench.peer import Client
from bench.servers import Server

QUEUE = "queue"


class Miscounted(Exception):
    """The queue does not hold what it must hold after the run."""


@contextmanager
def queue_for(server: Server, task: str, messages: int) -> Iterator[str]:
    """The name of a durable queue that is ready for the task."""
    operator = Client(server.host, server.port)
    operator.declare_queue(QUEUE)
    try:
        if task == "consume":
            fill(server.host, server.port, queue=QUEUE, messages=messages)
        yield QUEUE
        expected = messages if task == "publish" else 0
        if (found := operator.depth(QUEUE)) != expected:
            raise Miscounted(f"{found} messages in the queue after the run, not {expected}")
    finally:
        operator.delete_queue(QUEUE)
        operator.close()
