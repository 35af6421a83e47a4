"""How many bytes are handed to a channel at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leveret.broker.queues.consumer import Consumer
from leveret.broker.queues.deliverer import TURN_BYTES
from leveret.broker.sessions import channel as broker_channel
from leveret.storage.records import BATCH_BYTES_MAX, Record
from leveret.testing.broker import Broker
from tests.semantics.client import Channel

LARGE = "x" * 100_000


def small_then_large(channel: Channel, queue: str) -> None:
    """Many small ones, so that many are handed out at once, and behind them what fills the memory."""
    channel.confirm_select()
    for _ in range(6000):
        channel.publish(queue, "small")
    for _ in range(80):
        channel.publish(queue, LARGE)
    channel.confirmed(6080)


def handed_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are handed to a channel at once."""
    sizes: list[int] = []
    deliver = broker_channel.Channel.deliver

    def watched(self: broker_channel.Channel, consumer: Consumer, records: Sequence[Record]) -> int:
        sizes.append(sum(len(record.body) for record in records))
        return deliver(self, consumer, records)

    monkeypatch.setattr(broker_channel.Channel, "deliver", watched)
    return sizes


@pytest.mark.parametrize("flushed", [False, True], ids=["in memory", "in segments"])
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_large_messages_behind_small_ones_are_not_handed_out_all_at_once(
    channel: Channel, broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str, flushed: bool
) -> None:
    channel.declare("q", arguments={"x-queue-type": kind})
    small_then_large(channel, "q")
    if flushed:
        log = broker.server.broker.vhosts["/"].queues["q"].log
        broker.call(lambda: broker.server.broker.store.flush(log))
    sizes = handed_out(monkeypatch)
    if kind == "stream":
        channel.qos(10_000)
        channel.consume("q", arguments={"x-stream-offset": "first"})
    else:
        channel.consume("q", no_ack=True)
    assert sum(map(len, channel.texts(6080))) == sum(sizes) == 6000 * len("small") + 80 * len(LARGE)
    assert max(sizes) <= TURN_BYTES + BATCH_BYTES_MAX
