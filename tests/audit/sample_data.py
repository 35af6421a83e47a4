"""The data of a real broker after some use, with thousands of messages.

`orders` is audited: the first half is consumed and acked one by one, some messages are rejected to `dead`,
one is in flight, the rest is ready. All messages of `brief` expire. `plain` is not audited.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from leveret.testing.broker import Broker
from tests.semantics.client import Channel, Client

MESSAGES = 2000
AT_ONCE = 250
CONSUMED = 1000
REJECTED = (100, 300, 500)
REQUEUED = (7, 8)
EXPIRED = 5
RETURNED = 3
AUDITED = {"x-audit-window": 3_600_000}


@dataclass(frozen=True)
class SampleData:
    """Two data directories: one as if the broker had been killed, one after it was stopped."""

    killed: Path
    stopped: Path
    held: int
    """The offset of the message in flight when the broker was killed."""


def body_of(number: int) -> str:
    return f"order {number:06d}."


def make(place: Path) -> SampleData:
    data = place / "data"
    with Broker(data) as broker:
        client = Client(broker.port)
        channel = client.channel().confirm_select()
        _declare(channel)
        for first in range(0, MESSAGES, AT_ONCE):
            channel.publish_confirmed("orders", *map(body_of, range(first, first + AT_ONCE)))
        channel.publish_confirmed("plain", "one", "two")
        _consume(client.channel())
        channel.publish_confirmed("brief", *["old"] * EXPIRED)
        broker.wait_until_depth("dead", len(REJECTED) + EXPIRED)
        for _ in range(RETURNED):
            channel.publish("nowhere", "m", exchange="checked", mandatory=True)
        channel.quiet()
        broker.call(broker.server.broker.store.checkpoint)
        channel.publish_confirmed("orders", body_of(MESSAGES))
        holder = client.channel()
        holder.qos(1)
        holder.consume("orders", "holder")
        broker.wait_until_unacked("orders", 1)
        broker.call(broker.server.broker.store.sync)
        shutil.copytree(data, place / "killed")
        client.vanish()
        broker.wait_until_unacked("orders", 0)
    return SampleData(place / "killed", data, CONSUMED)


def _declare(channel: Channel) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("orders", arguments={**AUDITED, **dead})
    channel.declare("dead", arguments=AUDITED)
    channel.declare("brief", arguments={**AUDITED, **dead, "x-message-ttl": 1})
    channel.declare("plain")
    channel.exchange("checked")


def _consume(channel: Channel) -> None:
    """Consume one message at a time, so that each gets journal entries of its own."""
    for _ in range(CONSUMED + len(REQUEUED)):
        got = channel.get("orders")
        assert got is not None
        number = int(got.text[6:12])
        if number in REJECTED:
            channel.nack(got.tag, requeue=False)
        elif number in REQUEUED and not got.redelivered:
            channel.nack(got.tag)
        else:
            channel.ack(got.tag)
    channel.quiet()
