"""What a client can ask for on a channel: one file per class of the protocol, one function per method.

A function gets the channel and the decoded method and raises an `AmqpError` when it can't be done; `HANDLERS`
is the whole list. Publishes and settlements do not come this way: see `publishing` and `settling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.amqp.methods import Method
from leveret.fronts.amqp.channel import AmqpChannel
from leveret.fronts.amqp.methods import basic, channel, confirm, exchange, queue, tx

Handler = Callable[[AmqpChannel, Any], None]

HANDLERS: dict[type[Method], Handler] = {
    **channel.HANDLERS,
    **exchange.HANDLERS,
    **queue.HANDLERS,
    **basic.HANDLERS,
    **confirm.HANDLERS,
    **tx.HANDLERS,
}
