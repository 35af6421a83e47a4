"""Declarations that declare nothing: whether a queue or an exchange is there, and how much is in it."""

from __future__ import annotations

from pamqp import commands

from leveret.amqp.methods import make
from leveret.client.channel import Channel


def is_there_an_exchange(name: str) -> commands.Exchange.Declare:
    """The method that asks; a broker without it closes the channel with 404."""
    return make(
        commands.Exchange.Declare,
        ticket=0,
        exchange=name,
        exchange_type="direct",
        passive=True,
        durable=False,
        auto_delete=False,
        internal=False,
        nowait=False,
        arguments={},
    )


async def depth(channel: Channel, queue: str) -> int:
    """How many messages are ready in a queue; `ChannelClosed` with 404 if there is none."""
    look = make(
        commands.Queue.Declare,
        ticket=0,
        queue=queue,
        passive=True,
        durable=False,
        exclusive=False,
        auto_delete=False,
        nowait=False,
        arguments={},
    )
    found = await channel.call(look)
    assert isinstance(found, commands.Queue.DeclareOk)
    return found.message_count or 0
