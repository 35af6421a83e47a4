"""Methods that several modules of the client send to consume a queue: prefetch, consume, declare."""

from __future__ import annotations

from collections.abc import Mapping

from pamqp import commands

from leveret.amqp.methods import make
from leveret.amqp.tables import Value


def qos(prefetch: int) -> commands.Basic.Qos:
    return make(commands.Basic.Qos, prefetch_size=0, prefetch_count=prefetch, global_=False)


def consume(
    queue: str,
    tag: str,
    *,
    no_ack: bool = False,
    exclusive: bool = False,
    arguments: Mapping[str, Value] | None = None,
) -> commands.Basic.Consume:
    return make(
        commands.Basic.Consume,
        ticket=0,
        queue=queue,
        consumer_tag=tag,
        no_local=False,
        no_ack=no_ack,
        exclusive=exclusive,
        nowait=False,
        arguments=dict(arguments or {}),
    )


def declare_queue(
    queue: str, arguments: Mapping[str, Value] | None = None, *, passive: bool = False
) -> commands.Queue.Declare:
    """Make the declaration of a durable queue that any connection may use. `passive` only asks for it."""
    return make(
        commands.Queue.Declare,
        ticket=0,
        queue=queue,
        passive=passive,
        durable=not passive,
        exclusive=False,
        auto_delete=False,
        nowait=False,
        arguments=dict(arguments or {}),
    )
