"""Length limits: `x-max-length`, `x-max-length-bytes`, and what `x-overflow` does when they are reached.

Only ready messages count; of bytes, also what is delayed, because it takes as much room. With drop-head the
oldest go (to the dead letters, reason maxlen) once deliveries have had their chance; with reject-publish new
ones are refused, which the channel turns into a nack. Others wait while messages are buried: so a turn drops
no more than its share, and while the next turns drop the rest, a queue has and shows more than its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from leveret.broker.queues import dead_letters, message_sizes
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.vhosts.destination import Account, Destination
from leveret.storage.offset_ranges import first_of
from leveret.storage.offset_set import Range
from leveret.storage.records import Message, Record

TURN_MESSAGES_MAX: Final = 2048
"""So many are dropped from the head in one turn: about what a client can publish in it. A dead letter takes
65 us, so that others wait an eighth of a second; a million of them took a minute, in which nobody was heard.
"""
EACH_BYTES: Final = 16 << 10
"""Of larger ones so many bytes count as a message: a turn copies 32 MiB of them, or one."""
_AT_ONCE = 1024
_READ_BYTES = 8 << 20


class LengthLimit(Account):
    """What a queue with a length limit has; a queue without one has none of it.

    `admit` is for queues that refuse publishes, `trim` for those that drop their oldest messages.
    """

    def __init__(self, queue: Destination, deliverer: Deliverer) -> None:
        self._queue = queue
        self._deliverer = deliverer
        self._broker = queue.broker
        self._left = TURN_MESSAGES_MAX
        """How many may still be dropped from the head in this turn."""
        self._is_overlong = False
        """Whether more was over the limit than a turn could drop."""
        self._counts_bytes = False
        self.waiting_bytes = 0
        """Of the bodies that are ready or delayed; kept only where there is a limit of them."""
        self.settings_changed()

    def settings_changed(self) -> None:
        counts_bytes = self._queue.settings.max_length_bytes is not None
        if counts_bytes and not self._counts_bytes:
            self.waiting_bytes = self.count_waiting_bytes()
        self._counts_bytes = counts_bytes

    # the bytes that wait

    def bytes_of(self, ranges: Sequence[Range]) -> int:
        """Return the size of these bodies, where bytes are limited; else 0.

        Few are read, as others will be soon; of many, or of large ones, only the sizes.
        """
        return self._body_bytes(ranges) if self._counts_bytes else 0

    def arrived(self, messages: Sequence[Message]) -> None:
        """Messages have been appended: as many more go, or a queue that is behind would grow for ever."""
        if self._counts_bytes:
            self.waiting_bytes += sum(len(message.body) for message in messages)
        if self._is_overlong:
            self.expect(messages)

    def dropped(self, size_bytes: int) -> None:
        self.waiting_bytes -= size_bytes

    def shown(self, size_bytes: int) -> None:
        self.waiting_bytes += size_bytes

    def returned(self, size_bytes: int) -> None:
        """It may be too much; nobody is served before that is seen."""
        self.waiting_bytes += size_bytes
        self.trim()

    def taken(self, records: Sequence[Record]) -> None:
        if self._counts_bytes:
            self.waiting_bytes -= sum(len(record.body) for record in records)

    def count_waiting_bytes(self) -> int:
        """After a restart: reads what is ready or delayed, a piece at a time."""
        total, waiting = 0, self._queue.cursor.waiting
        for start, stop in (*waiting.ready_ranges(), *waiting.delayed_ranges()):
            for piece in range(start, stop, _AT_ONCE):
                total += self._body_bytes([(piece, min(stop, piece + _AT_ONCE))])
        return total

    def _body_bytes(self, ranges: Sequence[Range]) -> int:
        log, count = self._queue.log, sum(stop - start for start, stop in ranges)
        share = _READ_BYTES // max(1, len(ranges))
        if count > _AT_ONCE or any(
            stop - start > 1 and log.reach(start, share) < stop for start, stop in ranges
        ):
            return sum(brief.body_bytes for brief in log.summaries(ranges))
        return sum(len(record.body) for record in log.read(ranges))

    # where new messages are refused

    def admit(self, messages: Sequence[Message], append: Callable[[Sequence[Message]], None]) -> set[int]:
        """Appends what there is room for, while consumers make more; returns which were refused."""
        queue, counters = self._queue, self._broker.counters
        refused: set[int] = set()
        position = 0
        while position < len(messages):
            if queue.knows(messages[position]):
                counters.deduplicated += 1
                position += 1
                continue
            if not self._room(messages[position]):
                self._deliverer.run()
            count = min(self._room(messages[position]), len(messages) - position)
            if count:
                append(messages[position : position + count])
                position += count
            elif not self._counts_bytes:
                rest = {at for at in range(position, len(messages)) if not queue.knows(messages[at])}
                counters.deduplicated += len(messages) - position - len(rest)
                return refused | rest
            else:  # a smaller one may fit
                refused.add(position)
                position += 1
        return refused

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Whether a queue that refuses takes so many messages at once, with bodies of this size."""
        settings = self._queue.settings
        if settings.max_length is not None and self._queue.ready + count > settings.max_length:
            return False
        limit_bytes = settings.max_length_bytes
        return limit_bytes is None or self.waiting_bytes + size_bytes <= limit_bytes

    def _room(self, message: Message) -> int:
        """How many messages can be appended now, beginning with this one; by bytes, one at a time."""
        settings = self._queue.settings
        room = _AT_ONCE
        if settings.max_length is not None:
            room = max(0, settings.max_length - self._queue.ready)
        if settings.max_length_bytes is None:
            return room
        return min(room, int(self.waiting_bytes + len(message.body) <= settings.max_length_bytes))

    # where the oldest go

    def trim(self) -> bool:
        """Drops from the head what is over the limit, within the turn's share; whether something was."""
        trimmed, most = False, 1
        while self._left > 0 and (over := self._over(most)):
            ranges, cost = over
            if not dead_letters.bury(self._deliverer, ranges, Reason.MAXLEN, in_flight=False):
                break
            self._left -= cost
            trimmed, most = True, min(2 * most, _AT_ONCE)
        return trimmed

    def expect(self, messages: Sequence[Message]) -> None:
        """Let the turn drop so many messages more: a method must not see what these are too much."""
        self._left += _cost(len(messages), sum(len(message.body) for message in messages))

    def leave_rest(self) -> None:
        """The queue's turn is over: what is still too much is left to the next one.

        A queue that could not write waits until that works, and is run then.
        """
        self._is_overlong = any(self._excess())
        self._left = TURN_MESSAGES_MAX
        if self._is_overlong and not self._broker.ledger.is_stalled(self._deliverer):
            self._broker.wake_later(self._deliverer)

    def _excess(self) -> tuple[int, int]:
        """How many messages, and how many bytes, are too much, and can be dropped."""
        settings, ready = self._queue.settings, self._queue.ready
        if not ready or settings.overflow != "drop-head":
            return 0, 0
        limit, limit_bytes = settings.max_length, settings.max_length_bytes
        count = 0 if limit is None else ready - limit
        size_bytes = 0 if limit_bytes is None else self.waiting_bytes - limit_bytes
        return max(0, count), max(0, size_bytes)

    def _over(self, most: int) -> tuple[list[Range], int] | None:
        """What must go from the head next, and how much of the turn's share that takes.

        Where bytes are too many, at most `most`, and with fewer bytes, until only one has to go: behind that
        one an empty message stays.
        """
        count, size_bytes = self._excess()
        if not count and not size_bytes:
            return None
        left, left_bytes = self._left, self._left * EACH_BYTES
        at_once = min(count, left, _AT_ONCE) if count else min(most, left)
        if at_once == 1 or (count and not self._deliverer.rules.has_letters()):  # nobody need look at them
            return first_of(self._queue.cursor.waiting.ready_ranges(), at_once), at_once
        return self._head(at_once, left_bytes if count else min(size_bytes - 1, left_bytes))

    def _head(self, count: int, max_bytes: int) -> tuple[list[Range], int]:
        """The next so many, or fewer that have no more bytes together, but one at least; what they take."""
        waiting, log = self._queue.cursor.waiting, self._queue.log
        count = message_sizes.within(log, waiting.ready_ranges(), count, max_bytes)
        ranges = first_of(waiting.ready_ranges(), count)
        return ranges, _cost(count, sum(brief.body_bytes for brief in log.summaries(ranges)))


def _cost(count: int, size_bytes: int) -> int:
    return max(count, size_bytes // EACH_BYTES)
