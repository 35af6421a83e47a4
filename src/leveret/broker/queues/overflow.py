"""Length limits: `x-max-length`, `x-max-length-bytes`, and the action of `x-overflow` when they are reached.

The limit of messages counts ready messages; the limit of bytes also counts delayed ones. With drop-head the
oldest messages are dropped or dead-lettered (reason maxlen), after deliveries were made. With reject-publish
new messages are refused, which the channel answers with a nack. Each turn drops a bounded share, because
other clients wait meanwhile; until later turns drop the rest, a queue may hold and show more than its limit.
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
"""Messages dropped from the head in one turn, about as many as a client can publish in a turn.

A dead letter takes 65 us, so other clients wait an eighth of a second. Without this bound, dead-lettering a
million messages blocked the broker for a minute.
"""
BYTES_PER_MESSAGE: Final = 16 << 10
"""Bytes that count as one message in `TURN_MESSAGES_MAX`: a turn copies 32 MiB, or one larger message."""
_AT_ONCE = 1024
_READ_BYTES = 8 << 20


class LengthLimit(Account):
    """The length limit of a queue, and the bytes that wait in it.

    `admit` is for queues that refuse publishes, `trim` for those that drop their oldest messages.
    """

    def __init__(self, queue: Destination, deliverer: Deliverer) -> None:
        self._queue = queue
        self._deliverer = deliverer
        self._broker = queue.broker
        self._left = TURN_MESSAGES_MAX
        """Messages that may still be dropped from the head in this turn."""
        self._is_overlong = False
        """Whether the last turn left messages over the limit."""
        self._counts_bytes = False
        self.waiting_bytes = 0
        """Bytes of the ready and delayed bodies; kept only if the queue has a limit of bytes."""
        self.settings_changed()

    def settings_changed(self) -> None:
        counts_bytes = self._queue.settings.max_length_bytes is not None
        if counts_bytes and not self._counts_bytes:
            self.waiting_bytes = self.count_waiting_bytes()
        self._counts_bytes = counts_bytes

    # waiting bytes

    def bytes_of(self, ranges: Sequence[Range]) -> int:
        """Return the size of these bodies if the queue has a limit of bytes; else 0.

        Few small messages are read whole, because they are soon needed; otherwise only their sizes are read.
        """
        return self._body_bytes(ranges) if self._counts_bytes else 0

    def arrived(self, messages: Sequence[Message]) -> None:
        """Count appended messages; a queue that is over its limit may drop as many more."""
        if self._counts_bytes:
            self.waiting_bytes += sum(len(message.body) for message in messages)
        if self._is_overlong:
            self.expect(messages)

    def dropped(self, size_bytes: int) -> None:
        self.waiting_bytes -= size_bytes

    def shown(self, size_bytes: int) -> None:
        self.waiting_bytes += size_bytes

    def returned(self, size_bytes: int) -> None:
        """Count requeued messages, and drop messages over the limit before any consumer is served."""
        self.waiting_bytes += size_bytes
        self.trim()

    def taken(self, records: Sequence[Record]) -> None:
        if self._counts_bytes:
            self.waiting_bytes -= sum(len(record.body) for record in records)

    def count_waiting_bytes(self) -> int:
        """Return the bytes of ready and delayed bodies, read piece by piece after a restart."""
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
            return sum(summary.body_bytes for summary in log.summaries(ranges))
        return sum(len(record.body) for record in log.read(ranges))

    # reject-publish: refuse new messages

    def admit(self, messages: Sequence[Message], append: Callable[[Sequence[Message]], None]) -> set[int]:
        """Append messages while there is room, and let consumers make room; return the positions refused."""
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
                unknown = {
                    index for index in range(position, len(messages)) if not queue.knows(messages[index])
                }
                counters.deduplicated += len(messages) - position - len(unknown)
                return refused | unknown
            else:
                # A later, smaller message may fit.
                refused.add(position)
                position += 1
        return refused

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Return whether there is room for `count` more messages with bodies of `size_bytes` in all."""
        settings = self._queue.settings
        if settings.max_length is not None and self._queue.ready + count > settings.max_length:
            return False
        limit_bytes = settings.max_length_bytes
        return limit_bytes is None or self.waiting_bytes + size_bytes <= limit_bytes

    def _room(self, message: Message) -> int:
        """Return how many messages can be appended now, from this one on; with a limit of bytes 0 or 1."""
        settings = self._queue.settings
        room = _AT_ONCE
        if settings.max_length is not None:
            room = max(0, settings.max_length - self._queue.ready)
        if settings.max_length_bytes is None:
            return room
        return min(room, int(self.waiting_bytes + len(message.body) <= settings.max_length_bytes))

    # drop-head: drop the oldest messages

    def trim(self) -> bool:
        """Drop messages over the limit from the head, within the turn's share; return whether any were."""
        trimmed, max_count = False, 1
        while self._left > 0 and (next_drop := self._next_drop(max_count)):
            ranges, cost = next_drop
            if not dead_letters.dead_letter(self._deliverer, ranges, Reason.MAXLEN, in_flight=False):
                break
            self._left -= cost
            trimmed, max_count = True, min(2 * max_count, _AT_ONCE)
        return trimmed

    def expect(self, messages: Sequence[Message]) -> None:
        """Raise the turn's share by the messages that a client is about to append."""
        self._left += _cost(len(messages), sum(len(message.body) for message in messages))

    def end_turn(self) -> None:
        """End the queue's turn; messages still over the limit are left to the next turn.

        A queue that could not write runs again when writing works.
        """
        self._is_overlong = any(self._excess())
        self._left = TURN_MESSAGES_MAX
        if self._is_overlong and not self._broker.ledger.is_stalled(self._deliverer):
            self._broker.wake_later(self._deliverer)

    def _excess(self) -> tuple[int, int]:
        """Return how many messages and how many bytes are over the limit and can be dropped."""
        settings, ready = self._queue.settings, self._queue.ready
        if not ready or settings.overflow != "drop-head":
            return 0, 0
        limit, limit_bytes = settings.max_length, settings.max_length_bytes
        count = 0 if limit is None else ready - limit
        size_bytes = 0 if limit_bytes is None else self.waiting_bytes - limit_bytes
        return max(0, count), max(0, size_bytes)

    def _next_drop(self, max_count: int) -> tuple[list[Range], int] | None:
        """Return the ranges to drop next, and their cost in the turn's share; None if there are none.

        Over the limit of bytes, these are up to `max_count` messages with fewer bytes than the excess, or one
        message. No more is dropped than needed: an empty message at the new head stays.
        """
        count, size_bytes = self._excess()
        if not count and not size_bytes:
            return None
        share, share_bytes = self._left, self._left * BYTES_PER_MESSAGE
        at_once = min(count, share, _AT_ONCE) if count else min(max_count, share)
        # A single message, or messages without dead letters, need not be read.
        if at_once == 1 or (count and not self._deliverer.rules.leaves_dead_letters()):
            return first_of(self._queue.cursor.waiting.ready_ranges(), at_once), at_once
        return self._head(at_once, share_bytes if count else min(size_bytes - 1, share_bytes))

    def _head(self, count: int, max_bytes: int) -> tuple[list[Range], int]:
        """Return the next `count` messages, or fewer within `max_bytes` but at least one, and their cost."""
        waiting, log = self._queue.cursor.waiting, self._queue.log
        count = message_sizes.fitting(log, waiting.ready_ranges(), count, max_bytes)
        ranges = first_of(waiting.ready_ranges(), count)
        return ranges, _cost(count, sum(summary.body_bytes for summary in log.summaries(ranges)))


def _cost(count: int, size_bytes: int) -> int:
    return max(count, size_bytes // BYTES_PER_MESSAGE)
