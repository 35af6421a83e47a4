"""The consumers of one source: who may be served next, and how much each gets.

Owns priorities, round robin, exclusivity, the single active consumer, and limits that consumers of a channel
share. Which messages are handed out is left to the source, how they look on the wire to the channel.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence

from leveret.broker.errors import AccessRefused
from leveret.broker.queues.consumer import UNLIMITED, Consumer, Receiver
from leveret.storage.records import Record


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
        self._aside: dict[Receiver, dict[Consumer, None]] = {}
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

    def unblock(self, channel: Receiver) -> None:
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


def shared_credit(chosen: Sequence[tuple[Consumer, int]]) -> int:
    """How many messages they may be sent together: consumers of a channel may share a limit."""
    if any(consumer.no_ack for consumer, _ in chosen):
        # one by one where a consumer with acks may use up a limit that one without acks waits for
        limited = any(consumer.channel.prefetch and not consumer.no_ack for consumer, _ in chosen)
        return 1 if limited else UNLIMITED
    by_channel: dict[Receiver, int] = {}
    for consumer, credit in chosen:
        by_channel[consumer.channel] = by_channel.get(consumer.channel, 0) + credit
    return sum(min(credit, channel.room) for channel, credit in by_channel.items())


def in_turns(
    chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record], *, whole: bool
) -> Iterable[tuple[Consumer, list[Record]]]:
    """Who gets which records, in turns, for as long as there is credit.

    `whole` gives each consumer all of its share at once, ending with whoever had the last turn; where
    consumers share a channel, on which deliveries must keep the order of the queue, records come one by one.
    """
    turns = deque(chosen)
    room = {consumer.channel: consumer.channel.room for consumer, _ in chosen}
    shares: dict[Consumer, list[Record]] = {}
    singles: list[tuple[Consumer, list[Record]]] = []
    for record in records:
        consumer, credit = turns.popleft()
        while not (consumer.no_ack or room[consumer.channel]):
            consumer, credit = turns.popleft()
        if not consumer.no_ack:
            room[consumer.channel] -= 1
        if whole:
            share = shares.pop(consumer, [])
            share.append(record)
            shares[consumer] = share
        else:
            singles.append((consumer, [record]))
        if credit > 1:
            turns.append((consumer, credit - 1))
    return shares.items() if whole else singles
