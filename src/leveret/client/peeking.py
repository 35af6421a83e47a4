"""Reading the ready messages of a Leveret queue without changing anything about them.

Other brokers can't show a message without delivering it. `CAPABILITY` tells whether the session's broker can.
The messages come on a separate channel. When the connection is lost, peeking ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from leveret.amqp.tables import Value
from leveret.client.acks import Ledger
from leveret.client.codecs import Codecs
from leveret.client.consumer_methods import consume, qos
from leveret.client.delivery import Delivery, Reader, Source
from leveret.client.passive_checks import depth
from leveret.client.session import Session

CAPABILITY: Final = "queue_peek"
ARGUMENTS: Final[Mapping[str, Value]] = {"x-peek": True}
_PREFETCH: Final = 500


async def peek(session: Session, queue: str, count: int) -> AsyncGenerator[list[Delivery]]:
    """Yield up to `count` ready messages of a queue in batches, in the order of delivery.

    There are fewer when other consumers take messages meanwhile.
    """
    channel = await session.open_channel()
    ledger: Ledger[Delivery] = Ledger(channel, stale=lambda delivery: None)
    reader = Reader(Source(ledger, queue, Codecs()))
    received: list[Delivery] = []
    channel.on_deliveries = lambda messages: received.extend(reader.read(messages))
    try:
        await channel.call(qos(_PREFETCH))
        await channel.call(consume(queue, "", arguments=ARGUMENTS))
        # The broker answers in a turn of its own. After two turns without a message, none is left.
        quiet_turns = 0
        while count > 0 and quiet_turns < 2:
            await depth(channel, queue)
            batch = received[:count]
            received.clear()
            quiet_turns = 0 if batch else quiet_turns + 1
            count -= len(batch)
            if batch:
                yield batch
            for delivery in batch:
                ledger.ack(delivery)
            ledger.flush()
    finally:
        await channel.close()
