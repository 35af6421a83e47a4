"""Direct replies: the pseudo-queue `amq.rabbitmq.reply-to`, consumed on the channel that publishes requests.

A broker sends replies to the channel that published the request. It refuses a request with 406 if that
channel does not consume the pseudo-queue. So a `Sender` calls `consume` for each channel that it opens,
before it publishes there. Replies are neither acked nor stored: when a channel ends, its replies are lost.
Matching replies to requests is left to `Requester`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leveret.client import consumer_methods
from leveret.client.acks import Ledger
from leveret.client.channel import Channel
from leveret.client.codecs import Codecs
from leveret.client.delivery import Delivery, Reader, Source

REPLY_TO: Final = "amq.rabbitmq.reply-to"


@dataclass(slots=True)
class Replies:
    """`Replies(codecs, received=..., moved=...)`: takes replies on each channel of a publisher."""

    codecs: Codecs
    received: Callable[[list[Delivery]], None]
    """Called with replies."""
    moved: Callable[[], None]
    """Called when another channel takes the replies."""

    async def consume(self, channel: Channel) -> None:
        """Take replies on this channel from now on."""
        ledger = Ledger(channel, stale=_not_needed, no_ack=True)
        reader = Reader(Source(ledger, REPLY_TO, self.codecs))
        channel.on_deliveries = lambda messages: self.received(reader.read(messages))
        tag = f"leveret.{secrets.token_hex(6)}"
        await channel.call(consumer_methods.consume(REPLY_TO, tag, no_ack=True))
        self.moved()


def _not_needed(delivery: Delivery) -> None:
    """Replies are not settled."""
