"""A requeue with a delay of the consumer's choice, asked for with a publish that is none.

AMQP's nack has no room for a delay. A publish to the default exchange with the routing key of a
pseudo-queue, `amq.leveret.requeue`, names a delivery of its own channel (`x-delivery-tag`) and a delay
(`x-delay`, in milliseconds; the queue's or the group's own without it), and is a nack(requeue=true) of that
delivery: no message, nothing routed, nothing returned. With `x-counted: false` it does not count as a try:
nobody had begun with it. `x-error` says what went wrong, for those who look at a group or its dead letters;
with `x-requeue: false` it is a nack(requeue=false) that says so. With `x-begun: true` nothing is given back:
the consumer begins with the delivery, and from then on it counts as tried (decision 30). What becomes of the
delivery is left to `settling` and the queue; read here is only what is asked for. The rule: the answer of a
channel in confirm mode says that the requeue is durable, and because a requeue can't be undone, it is never a
nack. A mark is answered at once: nobody waits for it.
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
WHY_BYTES_MAX: Final = 255
_TAG_MAX: Final = (1 << 63) - 1
_NAMES: Final = b"\x00" + bytes([len(KEY)]) + KEY.encode()
"""How the exchange and the routing key stand in a basic.publish, behind its ids and a reserved number."""
_NAMES_AT: Final = 6


def is_request(publish: bytes) -> bool:
    """Whether a basic.publish asks for a requeue."""
    return publish.startswith(_NAMES, _NAMES_AT)


def requeue(channel: Channel, contents: Iterable[tuple[bytes, bytes]]) -> None:
    """Does what the messages ask for, now or when the transaction commits; their bodies say nothing."""
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
                _give_back(channel, tag, headers)
            if channel.owed.confirms is not None:
                channel.owed.expect(1, broker.store.ticket, done=True)
    finally:
        settling.begin(channel, begun)


def _give_back(channel: Channel, tag: int, headers: dict[str, Value]) -> None:
    """A nack of the delivery, as the headers say."""
    delay_ms = _number(headers, "x-delay", 0, DELAY_MS_MAX) if "x-delay" in headers else None
    verdict = Verdict.REJECT if headers.get("x-requeue") is False else Verdict.REQUEUE
    why = headers.get("x-error")
    reason = to_bytes(why)[:WHY_BYTES_MAX] if isinstance(why, str) else b""
    wish = Wish(delay_ms, headers.get("x-counted") is not False, reason)
    settling.settle(channel, [Tags(tag, tag)], verdict, wish=wish)


def _number(headers: dict[str, Value], name: str, least: int, most: int) -> int:
    value = headers.get(name)
    found = f"is of type {type_name(value)}" if name in headers else "is missing"
    if isinstance(value, int) and is_integer(value):
        if least <= value <= most:
            return value
        found = f"is {value}"
    raise PreconditionFailed(
        f"a publish to '{KEY}' needs the header '{name}', an integer from {least} to {most}; it {found}"
    )
