"""The consumers of one source: which of them are served next, and how many messages each gets.

Owns priorities, round robin, exclusivity, the single active consumer, and limits that consumers of one
channel share. The choice of messages is left to the source, delivery to the channel.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence

from leveret.broker.errors import AccessRefused
from leveret.broker.queues.consumer import UNLIMITED, Consumer, Receiver
from leveret.storage.records import Record


class Consumers:
    """The consumers of a source, in the order in which they are served.

    The cost per message does not grow with their number: consumers without credit leave the line until they
    have settled something, and no more consumers are asked than there are messages. A consumer whose credit
    is another consumer's `account` stays in line, because settlements elsewhere give it credit here.
    """

    def __init__(self, *, single_active: bool) -> None:
        self._single_active = single_active
        self._all: dict[Consumer, None] = {}
        """Keys: all consumers, in the order in which they were added."""
        self._lines: dict[int, OrderedDict[Consumer, None]] = {}
        """Consumers in line by priority, highest first; within a line the last one served is last."""
        self._blocked: dict[Receiver, dict[Consumer, None]] = {}
        """Consumers out of line for want of credit, by channel."""
        self.active: Consumer | None = None
        """The consumer that is served, if the source has a single active consumer."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._all)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._all

    @property
    def exclusive(self) -> Consumer | None:
        """The exclusive consumer, which is the only one, or None."""
        first = next(iter(self._all), None)
        return first if first is not None and first.exclusive else None

    def add(self, consumer: Consumer) -> None:
        """Add a consumer; raise `AccessRefused` if it or an earlier one is exclusive."""
        if (consumer.exclusive and (self._all or self._single_active)) or self.exclusive:
            raise AccessRefused(f"{consumer.source} in exclusive use")
        self._all[consumer] = None
        self._line_up(consumer)
        if self._single_active and self.active is None:
            self.active = consumer

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer; return False if it is unknown. The next in line becomes the active one."""
        if consumer not in self._all:
            return False
        del self._all[consumer]
        if consumer.blocked:
            self._unblock(consumer)
        else:
            self._leave_line(consumer)
        if consumer is self.active:
            self.active = next((other for line in self._lines.values() for other in line), None)
        return True

    def clear(self) -> list[Consumer]:
        """Remove and return all consumers, in the order in which they were added."""
        removed = list(self._all)
        for consumer in removed:
            self.remove(consumer)
        return removed

    def next_with_credit(self, wanted: int = UNLIMITED) -> list[tuple[Consumer, int]]:
        """Return the consumers with credit of the highest priority, each with its credit, in order of turn.

        `wanted` is the number of messages to deliver: no more consumers than that are returned.
        """
        if self._single_active:
            credit = self.active.credit if self.active else 0
            return [(self.active, credit)] if self.active and credit else []
        chosen: list[tuple[Consumer, int]] = []
        without_room: list[Consumer] = []
        for line in self._lines.values():
            for consumer in line:
                credit = consumer.credit
                if credit:
                    chosen.append((consumer, credit))
                    if len(chosen) >= wanted:
                        break
                elif not chosen and not consumer.room and consumer.account is consumer:
                    without_room.append(consumer)
            if chosen:
                break
        for consumer in without_room:
            self._block(consumer)
        return chosen

    @property
    def have_room(self) -> bool:
        """Whether a consumer that may be served has room, whether or not its connection is ready for more."""
        if self._single_active:
            return self.active is not None and self.active.room > 0
        return any(consumer.room for line in self._lines.values() for consumer in line)

    def window_is_within(self, messages: int) -> bool:
        """Return whether all consumers together may hold at most `messages` unsettled messages."""
        for consumer in self._all:
            messages -= UNLIMITED if consumer.no_ack else consumer.account.window
            if messages < 0:
                return False
        return True

    def unblock(self, channel: Receiver) -> None:
        """Put blocked consumers of this channel that have room again at the end of their lines."""
        for consumer in list(self._blocked.get(channel, ())):
            if consumer.room:
                self._unblock(consumer)
                self._line_up(consumer)

    def served(self, consumer: Consumer) -> None:
        """Move a consumer that was served behind the others of its priority."""
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

    def _block(self, consumer: Consumer) -> None:
        self._leave_line(consumer)
        self._blocked.setdefault(consumer.channel, {})[consumer] = None
        consumer.blocked = True

    def _unblock(self, consumer: Consumer) -> None:
        """Mark a consumer as no longer blocked; the caller puts it back in line."""
        blocked = self._blocked[consumer.channel]
        del blocked[consumer]
        if not blocked:
            del self._blocked[consumer.channel]
        consumer.blocked = False


def shared_credit(chosen: Sequence[tuple[Consumer, int]]) -> int:
    """Return how many messages the consumers may be sent together, where some share a limit."""
    if any(consumer.no_ack for consumer, _ in chosen):
        # One by one where a consumer with acks may use up a limit that a consumer without acks waits for.
        limited = any(consumer.channel.prefetch and not consumer.no_ack for consumer, _ in chosen)
        return 1 if limited else UNLIMITED
    by_channel: dict[Receiver, int] = {}
    for consumer, credit in chosen:
        by_channel[consumer.channel] = by_channel.get(consumer.channel, 0) + credit
    return sum(min(credit, channel.room) for channel, credit in by_channel.items())


def share_in_turns(
    chosen: Sequence[tuple[Consumer, int]], records: Sequence[Record], *, whole: bool
) -> Iterable[tuple[Consumer, list[Record]]]:
    """Share records out among consumers in turns, for as long as there is credit.

    With `whole` each consumer gets its share in one piece; the consumer that had the last turn comes last.
    Without `whole` records are handed out singly: consumers that share a channel must get them in the order
    of the queue.
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
