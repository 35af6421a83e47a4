"""Consumers of one source: who may be served next, and how much.

Owns credit (prefetch), priorities, round robin, exclusivity and the single active consumer. Which messages
are handed out is the queue's business, how they become frames the channel's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.amqp.errors import AccessRefused
from leveret.amqp.names import to_bytes

if TYPE_CHECKING:
    from leveret.broker.channel import Channel
    from leveret.broker.deadlines import Waited
    from leveret.broker.feed import Source

UNLIMITED = 1 << 31


class Consumer:
    """A `basic.consume` that was not cancelled, or the getter that stands for a channel's `basic.get`s."""

    __slots__ = (
        "account",
        "blocked",
        "channel",
        "exclusive",
        "label",
        "no_ack",
        "number",
        "outstanding",
        "prefetch",
        "priority",
        "source",
        "tag",
        "tag_bytes",
        "timeout_us",
        "waited",
        "waited_max",
    )

    def __init__(
        self,
        channel: Channel,
        source: Source,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        prefetch: int = 0,
        priority: int = 0,
        timeout_us: int = 0,
        account: Consumer | None = None,
    ) -> None:
        """`account` has the credit, where a consumer reads from several places."""
        self.account = self if account is None else account
        self.channel = channel
        self.source = source
        self.tag = tag
        self.tag_bytes = to_bytes(tag)
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.priority = priority
        self.timeout_us = timeout_us
        """How long a delivery may stay unsettled; 0 for ever."""
        self.waited: deque[Waited] = deque()
        """What was delivered when, oldest first: see `deadlines`."""
        self.waited_max = 0
        """So many of them, and those that are settled are thrown out."""
        self.number = 0
        """Of its queue's consumers it was the so-and-so-many-th."""
        self.blocked = False
        """It was passed over for want of credit: when it has some again, it joins the end of the line."""
        self.outstanding = 0
        self.label = channel.label(tag)
        """For the journal: who took a message."""

    @property
    def is_getter(self) -> bool:
        return not self.tag

    @property
    def credit(self) -> int:
        """How many messages it may be sent now."""
        channel, account = self.channel, self.account
        if not channel.can_deliver or account in channel.unannounced:
            return 0
        if self.no_ack:
            return UNLIMITED
        credit = account.prefetch - account.outstanding if account.prefetch else UNLIMITED
        return max(0, min(credit, channel.room))


class Consumers:
    """The consumers of a queue, in the order in which they are served."""

    def __init__(self, *, single_active: bool) -> None:
        self._single_active = single_active
        self._waiting: list[Consumer] = []
        """Highest priority first; within a priority, whoever was served last is last."""
        self._added = 0
        self.active: Consumer | None = None
        """With a single active consumer: the one."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._waiting)

    @property
    def exclusive(self) -> Consumer | None:
        return next((each for each in self._waiting if each.exclusive), None)

    def add(self, consumer: Consumer) -> None:
        """Raises when there is an exclusive one, or the new one wants to be that and is not alone."""
        if (consumer.exclusive and (self._waiting or self._single_active)) or self.exclusive:
            raise AccessRefused(f"{consumer.source} in exclusive use")
        position = sum(each.priority >= consumer.priority for each in self._waiting)
        self._waiting.insert(position, consumer)
        self._added += 1
        consumer.number = self._added
        if self._single_active and self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> bool:
        """False when it was not there. The next in line becomes the active one."""
        if consumer not in self._waiting:
            return False
        self._waiting.remove(consumer)
        if consumer is self.active:
            self.active = self._waiting[0] if self._waiting else None
        return True

    def clear(self) -> list[Consumer]:
        """All of them, in the order in which they came."""
        gone, self._waiting, self.active = self._waiting, [], None
        return sorted(gone, key=lambda consumer: consumer.number)

    def next_with_credit(self) -> list[tuple[Consumer, int]]:
        """Consumers of the highest priority that has credit, with how much, in the order of their turn."""
        if self._single_active:
            credit = self.active.credit if self.active else 0
            return [(self.active, credit)] if self.active and credit else []
        found: list[tuple[Consumer, int]] = []
        for consumer in self._waiting:
            if found and consumer.priority != found[0][0].priority:
                break
            credit = consumer.credit
            if credit:
                found.append((consumer, credit))
            elif not found:
                consumer.blocked = True
        return found

    def unblock(self, channel: Channel) -> None:
        """Consumers of this channel may have credit again: they join the end of the line, in their order."""
        for consumer in [each for each in self._waiting if each.blocked and each.channel is channel]:
            if consumer.credit:
                consumer.blocked = False
                self.served(consumer)

    def served(self, consumer: Consumer) -> None:
        """It has had its turn: it goes behind the others of its priority."""
        if len(self._waiting) > 1:
            self._waiting.remove(consumer)
            position = sum(each.priority >= consumer.priority for each in self._waiting)
            self._waiting.insert(position, consumer)
