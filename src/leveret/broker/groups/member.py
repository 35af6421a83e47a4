"""A member of a group: one `basic.consume` with `x-group`.

The member has the credit; in each partition that serves it, a further `Consumer` represents it. Any AMQP
client can be a member: an ack is progress, a nack with requeue returns a message, one without dead-letters
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from leveret.broker.canonical import Value
from leveret.broker.queues.consumer import NO_ARGUMENTS, Consumer, Receiver, Source


class Member(Consumer):
    """`member.id` is its name for operators."""

    __slots__ = ("since_us",)

    def __init__(
        self,
        channel: Receiver,
        group: Source,
        tag: str,
        *,
        prefetch: int,
        marks_begun: bool,
        arguments: Mapping[str, Value] = NO_ARGUMENTS,
    ) -> None:
        super().__init__(channel, group, tag, prefetch=prefetch, marks_begun=marks_begun, arguments=arguments)
        self.since_us = group.broker.turn_us

    @property
    def id(self) -> str:
        return self.label.decode("utf-8", "replace")
