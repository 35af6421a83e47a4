"""Processes that are killed by a message, or while they handle one: only that message is judged for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from leveret.testing.broker import Broker
from tests.processes import WAIT_S

COUNT = 20

# Handles messages one at a time and prints each body when its handler begins. Message 0 hangs.
MEMBER = """
import asyncio, sys
from leveret.client import App, Delivery

app = App(sys.argv[1])

@app.group_listener("orders", group="billing", prefetch=20, concurrency=1, max_reconsume=3, delays=[0.001])
async def take(delivery: Delivery) -> None:
    print(delivery.body.decode(), flush=True)
    if delivery.body == b"0":
        await asyncio.Event().wait()

asyncio.run(app.run())
"""

# Message 0 ends the process at once.
LISTENER = """
import asyncio, os, sys
from leveret.client import App, Delivery, Park, Retry

app = App(sys.argv[1])

@app.listener("orders", prefetch=20, concurrency=1, retry=Retry(3, initial_s=0.001), recoverer=Park())
async def take(delivery: Delivery) -> None:
    print(delivery.body.decode(), flush=True)
    if delivery.body == b"0":
        os._exit(9)
    if delivery.body == b"19":
        print("last", flush=True)

asyncio.run(app.run())
"""


@contextmanager
def running(program: str, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        assert process.stdout is not None
        process.stdout.close()


def lines(process: subprocess.Popen[str], until: str) -> list[str]:
    """Return what the process prints up to this line, or until it ends; it is killed if it takes too long."""
    assert process.stdout is not None
    found = []
    too_late = threading.Timer(WAIT_S, process.kill)
    too_late.start()
    for line in process.stdout:
        found.append(line.strip())
        if found[-1] == until:
            break
    too_late.cancel()
    return found


def prepare(broker: Broker, arguments: dict[str, Any]) -> None:
    """Declare the queue or stream `orders` and publish the messages to it."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments=arguments)
    for number in range(COUNT):
        channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    connection.close()


def parked(broker: Broker, queue: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Return bodies and headers of what is in the queue."""
    channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[1].headers))
    return found


def test_members_that_are_killed_dead_letter_only_what_they_had_begun(leveret_broker: Broker) -> None:
    prepare(leveret_broker, {"x-queue-type": "stream"})
    groups = leveret_broker.server.broker.vhosts["/"].groups
    for _ in range(4):
        with running(MEMBER, leveret_broker.url) as member:
            assert lines(member, "0") == ["0"]
            leveret_broker.wait_until(lambda: next(iter(groups)).in_flight == COUNT, "all are prefetched")
        leveret_broker.wait_until(lambda: not next(iter(groups)).in_flight, "the member is gone")
    with running(MEMBER, leveret_broker.url) as member:
        assert lines(member, "19") == [str(number) for number in range(1, COUNT)]
    [(body, headers)] = parked(leveret_broker, "%DLQ%billing")
    assert (body, headers["x-attempts"]) == (b"0", 4)


def test_a_message_that_kills_its_process_is_parked_after_its_attempts(leveret_broker: Broker) -> None:
    prepare(leveret_broker, {})
    handled: list[str] = []
    for _ in range(8):
        with running(LISTENER, leveret_broker.url) as listener:
            handled += lines(listener, "last")
        if handled[-1] == "last":
            break
        leveret_broker.wait_until_unacked("orders", 0)
    assert handled == ["0"] * 3 + [str(number) for number in range(1, COUNT)] + ["last"]
    leveret_broker.wait_until_depth("orders.parked", 1)
    [(body, headers)] = parked(leveret_broker, "orders.parked")
    assert (body, headers["x-failed-attempts"]) == (b"0", 3)
    assert headers["x-exception-type"] == "leveret.client.errors.AttemptsUsedUp"
