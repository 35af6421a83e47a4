"""Methods of clients on a channel: one file per class of the protocol, one function per method.

A function gets the channel and the decoded method, and raises an `AmqpError` or a `BrokerError` to refuse it.
`HANDLERS` lists all of them. Publishes and settlements are handled in `connection`.
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
