"""Fields that methods of several classes have: tables of arguments, and names that may be empty."""

from __future__ import annotations

from typing import Any, cast

from leveret.amqp.tables import Value
from leveret.broker.errors import NotFound
from leveret.fronts.amqp.channel import AmqpChannel


def table_of(method: Any) -> dict[str, Value]:
    """Return a method's arguments; pamqp's type for them is not ours."""
    return cast(dict[str, Value], method.arguments)


def named(channel: AmqpChannel, name: str) -> str:
    """Return the name of a queue; an empty one stands for the queue that the channel declared last."""
    if not name and not channel.last_queue:
        raise NotFound("no previously declared queue")
    return name or channel.last_queue
