"""Consumers of one source: who may be served next, and how much.

Owns credit (prefetch), priorities, round robin, exclusivity and the single active consumer. Which messages
are handed out is the queue's business, how they become frames the channel's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.canonical import to_bytes
from leveret.broker.errors import AccessRefused

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
        "has_own_timeout",
        "label",
        "marks_begun",
        "no_ack",
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
        has_own_timeout: bool = False,
        marks_begun: bool = False,
        account: Consumer | None = None,
    ) -> None:
        """`account` has the credit, where a consumer reads from several places. `marks_begun`: it tells when
        it begins with a delivery, and one that it loses before that does not count."""
        self.account = self if account is None else account
        self.marks_begun = marks_begun
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
        self.has_own_timeout = has_own_timeout
        """Whether the timeout is the consumer's own and not that of its queue."""
        self.waited: deque[Waited] = deque()
        """What was delivered when, oldest first: see `deadlines`."""
        self.waited_max = 0
        """So many of them, and those that are settled are thrown out."""
        self.blocked = False
        """It was passed over because it held all it may: with room again, it joins the end of the line."""
        self.outstanding = 0
        self.label = channel.label(tag)
        """For the journal: who took a message."""

    @property
    def is_getter(self) -> bool:
        return not self.tag

    @property
    def credit(self) -> int:
        """How many messages it may be sent now."""
        channel = self.channel
        return self.room if channel.can_deliver and self.account not in channel.unannounced else 0

    @property
    def window(self) -> int:
        """How many unsettled messages it may hold in all."""
        return min(self.prefetch or UNLIMITED, self.channel.prefetch or UNLIMITED)

    @property
    def room(self) -> int:
        """How many more it may hold."""
        if self.no_ack:  # takes nothing of a shared limit, but waits while that is reached, as in RabbitMQ
            return UNLIMITED if self.channel.room else 0
        account = self.account
        room = account.prefetch - account.outstanding if account.prefetch else UNLIMITED
        return max(0, min(room, self.channel.room))


class Consumers:
    """The consumers of a queue, in the order in which they are served.

    A thousand of them cost no more for each message than a few: those that hold all they may stand aside
    until they have settled something, and of the others no more are asked than there are messages. Whoever
    has its account elsewhere stays in line: what it settles there makes room here.
    """

    def __init__(self, *, single_active: bool) -> None:
        self._single_active = single_active
        self._all: dict[Consumer, None] = {}
        """In the order in which they came."""
        self._lines: dict[int, OrderedDict[Consumer, None]] = {}
        """By priority, the highest first: whoever was served last is last."""
        self._aside: dict[Channel, dict[Consumer, None]] = {}
        """Those that are blocked."""
        self.active: Consumer | None = None
        """With a single active consumer: the one."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._all)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._all

    @property
    def exclusive(self) -> Consumer | None:
        first = next(iter(self._all), None)  # which is alone, if it is one
        return first if first is not None and first.exclusive else None

    def add(self, consumer: Consumer) -> None:
        """Raises when there is an exclusive one, or the new one wants to be that and is not alone."""
        if (consumer.exclusive and (self._all or self._single_active)) or self.exclusive:
            raise AccessRefused(f"{consumer.source} in exclusive use")
        self._all[consumer] = None
        self._line_up(consumer)
        if self._single_active and self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> bool:
        """False when it was not there. The next in line becomes the active one."""
        if consumer not in self._all:
            return False
        del self._all[consumer]
        if consumer.blocked:
            self._step_back(consumer)
        else:
            self._leave_line(consumer)
        if consumer is self.active:
            self.active = next((each for line in self._lines.values() for each in line), None)
        return True

    def clear(self) -> list[Consumer]:
        """All of them, in the order in which they came."""
        gone = list(self._all)
        for consumer in gone:
            self.remove(consumer)
        return gone

    def next_with_credit(self, wanted: int = UNLIMITED) -> list[tuple[Consumer, int]]:
        """Consumers of the highest priority that has credit, with how much, in the order of their turn.

        For so many messages no more of them are wanted.
        """
        if self._single_active:
            credit = self.active.credit if self.active else 0
            return [(self.active, credit)] if self.active and credit else []
        found: list[tuple[Consumer, int]] = []
        passed_over: list[Consumer] = []
        for line in self._lines.values():
            for consumer in line:
                credit = consumer.credit
                if credit:
                    found.append((consumer, credit))
                    if len(found) >= wanted:
                        break
                elif not found and not consumer.room and consumer.account is consumer:
                    passed_over.append(consumer)
            if found:
                break
        for consumer in passed_over:
            self._step_aside(consumer)
        return found

    @property
    def have_room(self) -> bool:
        """Whether one that may be served has room, be its connection ready for more or not."""
        if self._single_active:
            return self.active is not None and self.active.room > 0
        return any(consumer.room for line in self._lines.values() for consumer in line)

    def window_is_within(self, messages: int) -> bool:
        """Return whether all consumers together may hold at most so many unsettled messages."""
        for consumer in self._all:
            messages -= UNLIMITED if consumer.no_ack else consumer.account.window
            if messages < 0:
                return False
        return True

    def unblock(self, channel: Channel) -> None:
        """Consumers of this channel may have room again: they join the end of the line, in their order."""
        for consumer in list(self._aside.get(channel, ())):
            if consumer.room:
                self._step_back(consumer)
                self._line_up(consumer)

    def served(self, consumer: Consumer) -> None:
        """It has had its turn: it goes behind the others of its priority."""
        self._lines[consumer.priority].move_to_end(consumer)

    def _line_up(self, consumer: Consumer) -> None:
        line = self._lines.get(consumer.priority)
        if line is None:
            line = self._lines[consumer.priority] = OrderedDict()
            self._lines = dict(sorted(self._lines.items(), reverse=True))
        line[consumer] = None

    def _leave_line(self, consumer: Consumer) -> None:
        line = self._lines[consumer.priority]
        del line[consumer]
        if not line:
            del self._lines[consumer.priority]

    def _step_aside(self, consumer: Consumer) -> None:
        self._leave_line(consumer)
        self._aside.setdefault(consumer.channel, {})[consumer] = None
        consumer.blocked = True

    def _step_back(self, consumer: Consumer) -> None:
        """It is aside no more."""
        aside = self._aside[consumer.channel]
        del aside[consumer]
        if not aside:
            del self._aside[consumer.channel]
        consumer.blocked = False
