"""Acks, nacks and rejects of AMQP clients."""

from __future__ import annotations

from collections.abc import Sequence

from leveret.amqp.events import Settlement
from leveret.amqp.scanner import ACK
from leveret.broker.sessions import settling
from leveret.broker.sessions.settlement import Tags, Verdict
from leveret.fronts.amqp.channel import AmqpChannel


def settle(channel: AmqpChannel, events: Sequence[Settlement]) -> None:
    """Settle the deliveries of these events, which differ only in their tags."""
    first = events[0]
    refusal = Verdict.REQUEUE if first.requeue else Verdict.REJECT
    tags = [Tags(event.first, event.last, event.multiple) for event in events]
    settling.settle(channel.core, tags, Verdict.ACK if first.kind == ACK else refusal)
