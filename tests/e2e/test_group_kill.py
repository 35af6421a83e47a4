"""The example that consumer groups are for, with real processes: 2101 hangs, 2102 to 2200 are done, all die.

Where progress is one number, the lowest that is not done, one hundred messages come again. Here it is one.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.e2e.serving import Serving
from tests.processes import WAIT_S

FIRST, STOP = 2101, 2201
MEMBER = """
import sys, pika

url, count, hung = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=count)
arguments = {"x-group": "billing", "x-group-start": hung, "x-group-consume-timeout": 0}
for method, properties, body in channel.consume("orders", arguments=arguments):
    offset = properties.headers["x-stream-offset"]
    if offset != hung:
        channel.basic_ack(method.delivery_tag)
    if method.delivery_tag == count:
        break
channel.basic_publish("", "elsewhere", b"", pika.BasicProperties(delivery_mode=2))
# Confirmed, so it is on disk, and the acks before it are too.
print("done", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def member(url: str) -> Iterator[subprocess.Popen[str]]:
    """Takes a hundred messages, settles all but the first, and hangs."""
    command = [sys.executable, "-c", MEMBER, url, str(STOP - FIRST), str(FIRST)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def take_until(
    channel: pika.adapters.blocking_connection.BlockingChannel, last: int
) -> list[tuple[int, bool]]:
    """Offsets that a new member gets, up to this one, and whether they say that they come again."""
    found = []
    channel.basic_qos(prefetch_count=500)
    arguments = {"x-group": "billing"}
    for method, properties, _ in channel.consume("orders", arguments=arguments, inactivity_timeout=WAIT_S):
        assert method is not None, f"{last} did not come, but {found}"
        found.append((properties.headers["x-stream-offset"], method.redelivered))
        channel.basic_ack(method.delivery_tag)
        if found[-1][0] == last:
            return found
    raise AssertionError("the broker cancelled")


@pytest.mark.timeout(180)
def test_of_a_hundred_messages_the_one_that_hung_comes_again(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("elsewhere", durable=True)
        for offset in range(STOP):
            channel.basic_publish("", "orders", b"%d" % offset)
        channel.confirm_delivery()
        channel.basic_publish("", "elsewhere", b"")
        with member(server.url) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            server.kill()
    with Serving(tmp_path / "data") as server:
        channel = pika.BlockingConnection(pika.URLParameters(server.url)).channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"after all that")
        assert channel.queue_declare("orders", passive=True).method.message_count == STOP + 1
        again, new = take_until(channel, end_of(server))
        assert again == (FIRST, True)
        assert not new[1]


def end_of(server: Serving) -> int:
    """The offset of the last message: after a crash numbering goes on above what was reserved."""
    channel = pika.BlockingConnection(pika.URLParameters(server.url)).channel()
    channel.basic_qos(prefetch_count=1)
    for _, properties, _ in channel.consume(
        "orders", arguments={"x-stream-offset": "last"}, inactivity_timeout=WAIT_S
    ):
        return int(properties.headers["x-stream-offset"])
    raise AssertionError("there is no last message")
