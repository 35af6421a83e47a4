"""Giving a delivery back to Leveret with more to say than a nack can: when, why, whether it counts.

A publish to the default exchange with a reserved routing key names the delivery by its tag and says the rest
in headers; the broker stores no message for it (docs/guide/retries.md, "Come back when I say"). Only for
brokers that announce the capability. Whether and when a delivery goes back is left to those who call; the
rule here: it is crossed off the ledger in the same breath. In the same way Leveret is told that a handler
begins with a delivery (`mark_begun`): what is lost before that does not count as an attempt.
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
"""What a broker announces that takes deliveries back with a delay."""
BEGUN_MARKS: Final = "begun_marks"
"""What a broker announces that counts an attempt when its handler begins."""
BEGUN_ARGUMENT: Final = "x-begun-marks"
"""The argument of `basic.consume` by which a consumer promises to mark what it has begun."""
ERROR: Final = "x-error"
"""What went wrong; a group's dead letter says so too."""
_ERROR_BYTES_MAX: Final = 255


def give_back(
    delivery: Delivery,
    *,
    delay_ms: int | None,
    counted: bool = True,
    requeue: bool = True,
    error: BaseException | None = None,
) -> Settled:
    """A nack of it. `delay_ms` None leaves the delay to where it came from; without `requeue` it is a dead
    letter."""
    came = delivery.ledger.settled_otherwise(delivery)
    if came is Settled.SENT:
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
    return came


def mark_begun(deliveries: Sequence[Delivery]) -> None:
    """Takes note that handlers begin with these deliveries of one channel, and tells a broker that counts it.

    A handler may end this process in its first line. So the marks, and the acks before them, are written
    before this returns where that matters or costs little: for what was delivered before, and once in a
    millisecond. Otherwise they leave at the end of the turn, without those that are done
    by then: a write for each call of a handler that does nothing would cost nine tenths of the throughput.
    """
    ledger = deliveries[0].ledger
    marked = deliveries[0].source.marks_begun and ledger.alive
    suspected = False
    for delivery in deliveries:
        if marked and not delivery.begun:
            ledger.begin(delivery)
            suspected = suspected or delivery.wire_redelivered
        delivery.begun = True
    if marked:
        ledger.write_marks(at_once=suspected)


def settle_in_group(delivery: Delivery, decision: Decision, error: BaseException | None) -> Settled:
    """In a group people look at what went wrong: whatever is not done says so."""
    if decision is Decision.ACK:
        return delivery.ledger.ack(delivery)
    return give_back(delivery, delay_ms=None, requeue=decision is Decision.REQUEUE, error=error)


def _text(error: BaseException) -> str:
    """What a table can hold of it."""
    return describe(error).encode("utf-8", "backslashreplace")[:_ERROR_BYTES_MAX].decode("utf-8", "ignore")
