"""Requeues with more details than a nack has: the delay, the error, whether the attempt counts.

A publish to the default exchange with a reserved routing key names the delivery by its tag, and has the
details in its headers. The broker stores no message for it (docs/guide/retries.md, "Come back when I say").
This works only with brokers that announce the capability. The rule: the delivery is crossed off its ledger
when the publish is written. Another such publish marks that a handler begins with a delivery (`mark_begun`):
a delivery that is lost before that does not count as an attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leveret.amqp.tables import Value
from leveret.client.acks import Settled
from leveret.client.callbacks import describe
from leveret.client.decisions import Decision
from leveret.client.delivery import Delivery
from leveret.client.requeue_frames import requeue_frames

CAPABILITY: Final = "delayed_requeue"
"""The capability of a broker that requeues deliveries with a delay."""
BEGUN_MARKS: Final = "begun_marks"
"""The capability of a broker that counts an attempt when its handler begins."""
BEGUN_ARGUMENT: Final = "x-begun-marks"
"""The argument of `basic.consume` by which a consumer promises to mark each delivery that it begins."""
ERROR: Final = "x-error"
"""The error of the last attempt; a group's dead letter has it too."""
_ERROR_BYTES_MAX: Final = 255


def give_back(
    delivery: Delivery,
    *,
    delay_ms: int | None,
    counted: bool = True,
    requeue: bool = True,
    error: BaseException | None = None,
) -> Settled:
    """Nack a delivery. With `delay_ms` None, its queue or group sets the delay. Without `requeue`, it is
    dead-lettered."""
    settled = delivery.ledger.settled_otherwise(delivery)
    if settled is Settled.SENT:
        headers: dict[str, Value] = {"x-delivery-tag": delivery.tag}
        if delay_ms is not None:
            headers["x-delay"] = delay_ms
        if not counted:
            headers["x-counted"] = False
        if not requeue:
            headers["x-requeue"] = False
        if error is not None:
            headers[ERROR] = _text(error)
        channel = delivery.ledger.channel
        channel.session.send(requeue_frames(channel.number, headers))
    return settled


def mark_begun(deliveries: Sequence[Delivery]) -> None:
    """Note that handlers begin with these deliveries of one channel, and tell a broker that counts attempts.

    A handler may end this process in its first line. So the marks, and the acks before them, are written
    before this returns for redelivered messages, and otherwise once in a millisecond. All other marks are
    written at the end of the turn, except for deliveries that are settled by then: a write for each call of a
    handler that does nothing would cost nine tenths of the throughput.
    """
    ledger = deliveries[0].ledger
    has_marks = deliveries[0].source.marks_begun and ledger.alive
    has_redelivered = False
    for delivery in deliveries:
        if has_marks and not delivery.begun:
            ledger.begin(delivery)
            has_redelivered = has_redelivered or delivery.wire_redelivered
        delivery.begun = True
    if has_marks:
        ledger.write_marks(at_once=has_redelivered)


def settle_in_group(delivery: Delivery, decision: Decision, error: BaseException | None) -> Settled:
    """Settle a group's delivery. A requeue or a dead letter carries its error, for operators to see."""
    if decision is Decision.ACK:
        return delivery.ledger.ack(delivery)
    return give_back(delivery, delay_ms=None, requeue=decision is Decision.REQUEUE, error=error)


def _text(error: BaseException) -> str:
    """Return an error's text, cut to what a table can hold."""
    return describe(error).encode("utf-8", "backslashreplace")[:_ERROR_BYTES_MAX].decode("utf-8", "ignore")
