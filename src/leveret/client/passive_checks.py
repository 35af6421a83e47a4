"""Questions to the broker that change nothing: what exists, how many messages are ready, who may publish."""

from __future__ import annotations

from typing import Final

from pamqp import commands

from leveret.amqp import methods, properties
from leveret.amqp.errors import NotImplemented_
from leveret.amqp.frames import HEADER, frame
from leveret.amqp.methods import make
from leveret.client.channel import Channel
from leveret.client.consumer_methods import declare_queue

_KEEP_NONE: Final = properties.encode({"headers": {"x-recent-history-no-store": True}}, 0)
WITHOUT_TRANSACTIONS: Final = NotImplemented_.code
"""The code with which a broker without transactions closes the connection."""


def is_there_an_exchange(name: str) -> commands.Exchange.Declare:
    """Make the method that asks for an exchange. A broker without it closes the channel with 404."""
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
    """Publish a message in a transaction and roll it back.

    The broker closes the channel with 403 if the user lacks the permission, and with 404 if the exchange is
    missing. A broker without transactions closes the connection with `WITHOUT_TRANSACTIONS`. RabbitMQ routes
    the message before the rollback, so its header asks an exchange that keeps recent messages to keep none.
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
    """Return how many messages of a queue are ready. A missing queue raises `ChannelClosed` with 404."""
    declared = await channel.call(declare_queue(queue, passive=True))
    assert isinstance(declared, commands.Queue.DeclareOk)
    return declared.message_count or 0
