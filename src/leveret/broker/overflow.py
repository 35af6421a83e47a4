"""Length limits: `x-max-length`, `x-max-length-bytes`, and what `x-overflow` does when they are reached.

Only ready messages count; of bytes, also what is delayed, because it takes as much room. With drop-head the
oldest go (to the dead letters, reason maxlen) once deliveries have had their chance; with reject-publish new
ones are refused, which the channel turns into a nack. Others wait while messages are buried: so a turn drops
no more than its share, and while the next turns drop the rest, a queue has and shows more than its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from leveret.broker import deadletters, weighing
from leveret.broker.deaths import Reason
from leveret.storage.offset_ranges import first_of
from leveret.storage.offsets import Range
from leveret.storage.records import Message

if TYPE_CHECKING:
    from leveret.broker.channel import Channel
    from leveret.broker.queue import Queue

TURN_MESSAGES_MAX: Final = 2048
"""So many are dropped from the head in one turn: about what a client can publish in it. A dead letter takes
65 us, so that others wait an eighth of a second; a million of them took a minute, in which nobody was heard.
"""
EACH_BYTES: Final = 16 << 10
"""Of larger ones so many bytes count as a message: a turn copies 32 MiB of them, or one."""
_AT_ONCE = 1024
_READ_BYTES = 8 << 20


def refuses(queue: Queue) -> bool:
    """Whether the queue refuses publishes when it is full."""
    return queue.settings.refuses_publishes


def admit(queue: Queue, messages: Sequence[Message], channel: Channel) -> set[int]:
    """Appends what there is room for, while consumers make more; returns which were refused."""
    refused: set[int] = set()
    position = 0
    while position < len(messages):
        if queue.knows(messages[position]):
            queue.broker.counters.deduplicated += 1
            position += 1
            continue
        if not _room(queue, messages[position]):
            queue.run()
        count = min(_room(queue, messages[position]), len(messages) - position)
        if count:
            queue.broker.append_at_once(queue, messages[position : position + count], channel)
            position += count
        elif queue.settings.max_length_bytes is None:
            rest = {at for at in range(position, len(messages)) if not queue.knows(messages[at])}
            queue.broker.counters.deduplicated += len(messages) - position - len(rest)
            return refused | rest
        else:  # a smaller one may fit
            refused.add(position)
            position += 1
    return refused


def has_room(queue: Queue, count: int, size_bytes: int) -> bool:
    """Whether one that refuses takes so many messages at once, with bodies of this size."""
    limit, limit_bytes = queue.settings.max_length, queue.settings.max_length_bytes
    if limit is not None and queue.ready + count > limit:
        return False
    return limit_bytes is None or queue.waiting_bytes + size_bytes <= limit_bytes


def trim(queue: Queue) -> bool:
    """Drops from the head what is over the limit, within the turn's share; whether there was something."""
    trimmed, most = False, 1
    while queue.trim_left > 0 and (over := _over(queue, most)):
        ranges, cost = over
        if not deadletters.bury(queue, ranges, Reason.MAXLEN, in_flight=False):
            break
        queue.trim_left -= cost
        trimmed, most = True, min(2 * most, _AT_ONCE)
    return trimmed


def more_came(queue: Queue, messages: Sequence[Message]) -> None:
    """As many more go, or a queue that is behind would grow for as long as many are published."""
    if queue.is_overlong:
        raise_share(queue, messages)


def raise_share(queue: Queue, messages: Sequence[Message]) -> None:
    """Let the turn drop so many messages more: a method must not see what these are too much."""
    if queue.settings.is_limited:
        queue.trim_left += _cost(len(messages), sum(len(message.body) for message in messages))


def leave_rest(queue: Queue) -> None:
    """The queue's turn is over: what is still too much is left to the next one.

    A queue that could not write waits until that works, and is run then.
    """
    queue.is_overlong = any(_excess(queue))
    queue.trim_left = TURN_MESSAGES_MAX
    if queue.is_overlong and not queue.broker.is_stalled(queue):
        queue.broker.wake_later(queue)


def body_bytes(queue: Queue, ranges: Sequence[Range]) -> int:
    """Few are read, as others will be soon; of many, or of large ones, only the sizes."""
    log, count = queue.log, sum(stop - start for start, stop in ranges)
    share = _READ_BYTES // max(1, len(ranges))
    if count > _AT_ONCE or any(stop - start > 1 and log.reach(start, share) < stop for start, stop in ranges):
        return sum(brief.body_bytes for brief in log.briefs(ranges))
    return sum(len(record.body) for record in log.read(ranges))


def count_waiting_bytes(queue: Queue) -> int:
    """After a restart: reads what is ready or delayed, a piece at a time."""
    total, waiting = 0, queue.cursor.waiting
    for start, stop in (*waiting.ready_ranges(), *waiting.delayed_ranges()):
        for piece in range(start, stop, _AT_ONCE):
            total += body_bytes(queue, [(piece, min(stop, piece + _AT_ONCE))])
    return total


def _room(queue: Queue, message: Message) -> int:
    """How many messages can be appended now, beginning with this one; where bytes count, one at a time."""
    limit, limit_bytes = queue.settings.max_length, queue.settings.max_length_bytes
    room = max(0, limit - queue.ready) if limit is not None else _AT_ONCE
    if limit_bytes is None:
        return room
    return min(room, int(queue.waiting_bytes + len(message.body) <= limit_bytes))


def _excess(queue: Queue) -> tuple[int, int]:
    """How many messages, and how many bytes, are too much, and can be dropped."""
    if not queue.ready or queue.settings.overflow != "drop-head":
        return 0, 0
    limit, limit_bytes = queue.settings.max_length, queue.settings.max_length_bytes
    count = 0 if limit is None else queue.ready - limit
    size_bytes = 0 if limit_bytes is None else queue.waiting_bytes - limit_bytes
    return max(0, count), max(0, size_bytes)


def _over(queue: Queue, most: int) -> tuple[list[Range], int] | None:
    """What must go from the head next, and how much of the turn's share that takes.

    Where bytes are too many, at most `most`, and with fewer bytes, until only one has to go: behind that one
    an empty message stays.
    """
    count, size_bytes = _excess(queue)
    if not count and not size_bytes:
        return None
    left, left_bytes = queue.trim_left, queue.trim_left * EACH_BYTES
    at_once = min(count, left, _AT_ONCE) if count else min(most, left)
    if at_once == 1 or (count and not queue.has_letters()):  # nobody need look at them
        return first_of(queue.cursor.waiting.ready_ranges(), at_once), at_once
    return _head(queue, at_once, left_bytes if count else min(size_bytes - 1, left_bytes))


def _head(queue: Queue, count: int, max_bytes: int) -> tuple[list[Range], int]:
    """The next so many, or fewer that have no more bytes together, but one at least; what they take."""
    count = weighing.within(queue.log, queue.cursor.waiting.ready_ranges(), count, max_bytes)
    ranges = first_of(queue.cursor.waiting.ready_ranges(), count)
    return ranges, _cost(count, sum(brief.body_bytes for brief in queue.log.briefs(ranges)))


def _cost(count: int, size_bytes: int) -> int:
    return max(count, size_bytes // EACH_BYTES)
