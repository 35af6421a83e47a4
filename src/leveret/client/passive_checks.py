"""Questions that change nothing: whether a queue or an exchange is there, how much is in it, may I write."""

from __future__ import annotations

from typing import Final

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.errors import NotImplemented_
from leveret.amqp.frames import HEADER, frame
from leveret.amqp.methods import make
from leveret.client.channel import Channel

_KEEP_NONE: Final = properties.encode({"headers": {"x-recent-history-no-store": True}}, 0)
WITHOUT_TRANSACTIONS: Final = NotImplemented_.code
"""The code with which a broker closes the connection that has none."""


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


async def try_publishing(channel: Channel, exchange: str, routing_key: str) -> None:
    """A message in a transaction that is rolled back: a right that is missing closes the channel with 403.

    An exchange that is missing closes it with 404. See also `WITHOUT_TRANSACTIONS`. RabbitMQ asks an exchange
    for its queues before the rollback: one that keeps the last messages is told to keep none.
    """
    publish = make(
        commands.Basic.Publish,
        ticket=0,
        exchange=exchange,
        routing_key=routing_key,
        mandatory=False,
        immediate=False,
    )
    await channel.call(make(commands.Tx.Select))
    channel.session.send(methods.frame(channel.number, publish) + frame(HEADER, channel.number, _KEEP_NONE))
    await channel.call(make(commands.Tx.Rollback))


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
