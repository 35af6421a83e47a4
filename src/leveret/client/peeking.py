"""Looking into a queue of Leveret: its ready messages are shown, and nothing about them changes.

Other brokers can't show a message without delivering it: `CAPABILITY` says whether the session's broker can.
The messages come on a channel of their own. When the connection is lost, looking ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.tables import Value
from leveret.client.acks import Ledger
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery, Reader, Source
from leveret.client.extra_consumers import qos
from leveret.client.passive_checks import depth
from leveret.client.session import Session

CAPABILITY: Final = "queue_peek"
ARGUMENTS: Final[Mapping[str, Value]] = {"x-peek": True}
_PREFETCH: Final = 500


async def peek(session: Session, queue: str, count: int) -> AsyncGenerator[list[Delivery]]:
    """Yield up to `count` ready messages of a queue in batches, in the order of delivery.

    There are fewer when somebody else takes messages meanwhile.
    """
    channel = await session.open_channel()
    ledger: Ledger[Delivery] = Ledger(channel, stale=lambda delivery: None)
    reader = Reader(Source(ledger, queue, Codecs()))
    came: list[Delivery] = []
    channel.on_deliveries = lambda messages: came.extend(reader.read(messages))
    try:
        await channel.call(qos(_PREFETCH))
        await channel.call(_consume(queue))
        # The broker answers in a turn of its own. After two turns without a message, none is left.
        quiet_turns = 0
        while count > 0 and quiet_turns < 2:
            await depth(channel, queue)
            batch = came[:count]
            came.clear()
            quiet_turns = 0 if batch else quiet_turns + 1
            count -= len(batch)
            if batch:
                yield batch
            for delivery in batch:
                ledger.ack(delivery)
            ledger.flush()
    finally:
        await channel.close()


def _consume(queue: str) -> commands.Basic.Consume:
    return make(
        commands.Basic.Consume,
        ticket=0,
        queue=queue,
        consumer_tag="",
        no_local=False,
        no_ack=False,
        exclusive=False,
        nowait=False,
        arguments=dict(ARGUMENTS),
    )
