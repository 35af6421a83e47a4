"""Requeues with a delay that the consumer chooses, requested with a special publish.

AMQP's nack has no field for a delay. So a publish to the default exchange with the routing key
`amq.leveret.requeue` settles a delivery of its own channel. Nothing is stored or routed. Its headers:

    x-delivery-tag    the delivery
    x-delay           milliseconds; without it, the delay of the queue or the group holds
    x-counted: false  the delivery does not count as an attempt
    x-error           the reason, shown by the group and in dead letters
    x-requeue: false  reject the delivery, as nack(requeue=false) does
    x-begun: true     settle nothing; the delivery begins and counts as an attempt (decision 30)

This module only reads the request; `settling` and the queue do the work. The rule: in confirm mode, a confirm
means that the requeue is durable. It is never a nack, because a requeue can't be undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from leveret.amqp.names import to_bytes
from leveret.amqp.properties import headers_of
from leveret.amqp.tables import Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.consumer import Wish
from leveret.broker.queues.erlang_terms import is_integer, type_name
from leveret.broker.sessions import settling
from leveret.broker.sessions.settlement import Tags, Verdict

if TYPE_CHECKING:
    from leveret.broker.sessions.channel import Channel

KEY: Final = "amq.leveret.requeue"
DELAY_MS_MAX: Final = 0xFFFF_FFFF
"""49 days: what RabbitMQ's plugin for delayed messages allows."""
REASON_BYTES_MAX: Final = 255
_TAG_MAX: Final = (1 << 63) - 1
_NAMES: Final = b"\x00" + bytes([len(KEY)]) + KEY.encode()
"""Exchange and routing key as encoded in basic.publish, after the two ids and a reserved number."""
_NAMES_POSITION: Final = 6


def is_request(publish: bytes) -> bool:
    """Return whether a basic.publish requests a requeue."""
    return publish.startswith(_NAMES, _NAMES_POSITION)


def requeue(channel: Channel, contents: Iterable[tuple[bytes, bytes]]) -> None:
    """Carry out requests, now or when the transaction commits; message bodies are ignored."""
    broker = channel.broker
    broker.flush()
    begun: set[int] = set()
    try:
        for header, _ in contents:
            headers = headers_of(header)
            tag = _number(headers, "x-delivery-tag", 0, _TAG_MAX)
            if headers.get("x-begun") is True:
                begun.add(tag)
            else:
                _settle(channel, tag, headers)
            if channel.owed.confirms is not None:
                channel.owed.expect(1, broker.store.ticket, done=True)
    finally:
        settling.begin(channel, begun)


def _settle(channel: Channel, tag: int, headers: dict[str, Value]) -> None:
    """Requeue or reject the delivery as the headers request."""
    delay_ms = _number(headers, "x-delay", 0, DELAY_MS_MAX) if "x-delay" in headers else None
    verdict = Verdict.REJECT if headers.get("x-requeue") is False else Verdict.REQUEUE
    error = headers.get("x-error")
    reason = to_bytes(error)[:REASON_BYTES_MAX] if isinstance(error, str) else b""
    wish = Wish(delay_ms, headers.get("x-counted") is not False, reason)
    settling.settle(channel, [Tags(tag, tag)], verdict, wish=wish)


def _number(headers: dict[str, Value], name: str, least: int, most: int) -> int:
    value = headers.get(name)
    problem = f"is of type {type_name(value)}" if name in headers else "is missing"
    if isinstance(value, int) and is_integer(value):
        if least <= value <= most:
            return value
        problem = f"is {value}"
    raise PreconditionFailed(
        f"a publish to '{KEY}' needs the header '{name}', an integer from {least} to {most}; it {problem}"
    )
