"""What methods of several classes share: arguments, empty queue names, answers that may be unwanted."""

from __future__ import annotations

from typing import Any, cast

from leveret.amqp.methods import Method
from leveret.amqp.tables import Value
from leveret.broker.errors import NotFound
from leveret.broker.operations.requester import Requester
from leveret.fronts.amqp.channel import AmqpChannel


def table_of(method: Any) -> dict[str, Value]:
    """Return a method's arguments with our type for tables instead of pamqp's."""
    return cast(dict[str, Value], method.arguments)


def queue_name(channel: AmqpChannel, name: str) -> str:
    """Return the name of a queue; an empty name means the queue declared last on the channel."""
    if not name and not channel.last_queue:
        raise NotFound("no previously declared queue")
    return name or channel.last_queue


def answer(channel: AmqpChannel, method: Any, reply: Method, *, defined: int = 0) -> None:
    """Send the reply once the definition is durable; with nowait, only wait for the definition."""
    if not method.nowait:
        channel.reply(reply, defined=defined)
    elif defined:
        channel.core.owed.await_definition(defined)


def requester(channel: AmqpChannel) -> Requester:
    """Return the channel's client, as operations know it."""
    return Requester(channel.session.user, channel.vhost, channel.session)


def in_turn() -> None:
    """Do nothing: operations begin a turn with this function, and a method is handled in one already."""
