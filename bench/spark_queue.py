"""The queue that `bench.spark` reads: filled over AMQP, as fast as the broker takes it, and a first lease.

Messages are 100 bytes, persistent, encoded once and sent as often as needed. `first_lease` makes the lease
that becomes the first batch of a query: a small one, because Spark starts processes in the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from bench.client_raw import publish_all, shape
from bench.frames import Load, make_load
from bench.peer import Client
from bench.servers import Server
from leveret.flight import actions
from leveret.spark.endpoint import find
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SourceOptions

QUEUE = "spark"
VHOST = "/"
WINDOW = 10_000
CHUNK = 250_000
LEASE_S = 3600.0


@cache
def load_of(queue: str, count: int) -> Load:
    return make_load(shape(queue), count)


def url_of(server: Server) -> str:
    return f"amqp://guest:guest@{server.host}:{server.port}/"


@contextmanager
def queue_on(server: Server, queue: str = QUEUE) -> Iterator[Client]:
    """A durable queue, empty, and a connection to look at it; deleted in the end."""
    operator = Client(server.host, server.port)
    operator.declare_queue(queue)
    try:
        yield operator
    finally:
        operator.delete_queue(queue)
        operator.close()


def fill(server: Server, messages: int, queue: str = QUEUE) -> None:
    """Returns when everything is confirmed."""
    while messages:
        count = min(messages, CHUNK)
        client = Client(server.host, server.port)
        client.confirm_select()
        publish_all(client, load_of(queue, count), WINDOW)
        client.close()
        messages -= count


def calls_to(url: str) -> Calls:
    return Calls(find(SourceOptions.parse({"url": url, "queue": QUEUE})))


def first_lease(server: Server, cursor: str, messages: int) -> None:
    name = (VHOST, QUEUE, cursor)
    with calls_to(url_of(server)) as calls:
        opened = calls.ask(actions.Open(*name, timeout_s=LEASE_S), actions.Opened)
        calls.ask(actions.Lease(*name, epoch=opened.epoch, start=0, max_messages=messages), actions.Leased)
