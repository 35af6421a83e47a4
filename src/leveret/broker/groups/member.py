"""A member of a group: one `basic.consume` with `x-group`.

It has the credit; in every partition that it may be served from a seat stands for it. Any AMQP client can be
one: an ack is progress, a nack with requeue sends back, one without makes a dead letter.
"""

from __future__ import annotations

from leveret.broker.queues.consumer import Consumer, Receiver, Source


class Member(Consumer):
    """`member.id` names it to people."""

    __slots__ = ("since_us",)

    def __init__(
        self, channel: Receiver, group: Source, tag: str, *, prefetch: int, marks_begun: bool
    ) -> None:
        super().__init__(channel, group, tag, prefetch=prefetch, marks_begun=marks_begun)
        self.since_us = group.broker.turn_us

    @property
    def id(self) -> str:
        return self.label.decode("utf-8", "replace")
