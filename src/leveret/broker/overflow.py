"""Length limits: `x-max-length`, `x-max-length-bytes`, and what `x-overflow` does when they are reached.

Only ready messages count; of bytes, also what is delayed, because it takes as much room. With drop-head the
oldest go (to the dead letters, reason maxlen) once deliveries have had their chance; with reject-publish new
ones are refused, which the channel turns into a nack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker import deadletters
from leveret.broker.deaths import Reason
from leveret.storage.offsets import Range
from leveret.storage.records import Message

if TYPE_CHECKING:
    from leveret.broker.channel import Channel
    from leveret.broker.queue import Queue

_AT_ONCE = 1024
_READ_BYTES = 8 << 20


def refuses(queue: Queue) -> bool:
    """Whether the queue refuses publishes when it is full."""
    return queue.limited and queue.arguments.overflow != "drop-head"


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
        elif queue.arguments.max_length_bytes is None:
            rest = {at for at in range(position, len(messages)) if not queue.knows(messages[at])}
            queue.broker.counters.deduplicated += len(messages) - position - len(rest)
            return refused | rest
        else:  # a smaller one may fit
            refused.add(position)
            position += 1
    return refused


def has_room(queue: Queue, count: int, size_bytes: int) -> bool:
    """Whether one that refuses takes so many messages at once, with bodies of this size."""
    limit, limit_bytes = queue.arguments.max_length, queue.arguments.max_length_bytes
    if limit is not None and queue.ready + count > limit:
        return False
    return limit_bytes is None or queue.waiting_bytes + size_bytes <= limit_bytes


def trim(queue: Queue) -> bool:
    """Drops from the head what is over the limit; whether there was something."""
    trimmed = False
    if queue.arguments.overflow == "drop-head":
        while over := _over(queue):
            if not deadletters.bury(queue, over, Reason.MAXLEN, in_flight=False):
                break
            trimmed = True
    return trimmed


def body_bytes(queue: Queue, ranges: Sequence[Range]) -> int:
    """Few are read, as others will be soon; of many, or of large ones, only the sizes."""
    log, count = queue.log, sum(stop - start for start, stop in ranges)
    share = _READ_BYTES // max(1, len(ranges))
    if count > _AT_ONCE or any(stop - start > 1 and log.reach(start, share) < stop for start, stop in ranges):
        return sum(brief.body_bytes for brief in log.briefs(ranges))
    return sum(len(record.body) for record in log.read(ranges))


def count_waiting_bytes(queue: Queue) -> int:
    """After a restart: reads what is ready or delayed, a piece at a time."""
    total = 0
    for start, stop in (*queue.progress.ready_ranges(), *queue.progress.delayed.ranges()):
        for piece in range(start, stop, _AT_ONCE):
            total += body_bytes(queue, [(piece, min(stop, piece + _AT_ONCE))])
    return total


def _room(queue: Queue, message: Message) -> int:
    """How many messages can be appended now, beginning with this one; where bytes count, one at a time."""
    limit, limit_bytes = queue.arguments.max_length, queue.arguments.max_length_bytes
    room = max(0, limit - queue.ready) if limit is not None else _AT_ONCE
    if limit_bytes is None:
        return room
    return min(room, int(queue.waiting_bytes + len(message.body) <= limit_bytes))


def _over(queue: Queue) -> list[Range]:
    """What must go from the head, at most some at once."""
    limit, limit_bytes = queue.arguments.max_length, queue.arguments.max_length_bytes
    count = queue.ready - limit if limit is not None else 0
    if count <= 0 and not (limit_bytes is not None and queue.waiting_bytes > limit_bytes and queue.ready):
        return []
    count = min(max(count, 1), _AT_ONCE)
    found: list[Range] = []
    for start, stop in queue.progress.ready_ranges():
        found.append((start, min(stop, start + count)))
        count -= stop - start
        if count <= 0:
            break
    return found
