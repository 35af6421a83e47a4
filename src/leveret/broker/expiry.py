"""Time to live: of messages, by the queue or by their own expiration, and of queues that nobody uses.

A message expires at the head of its queue only, as in RabbitMQ: what stands behind a message that lives
longer waits, and is looked at when it is its turn. The time counts from when it entered the queue, also
across requeues and restarts. One timer per queue, for its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.broker import canonical, deadletters
from leveret.broker.arguments import parse_expiration
from leveret.broker.deaths import Reason
from leveret.broker.flags import EXPIRES, UNLIMITED
from leveret.storage.offset_ranges import first_of, ranges_of
from leveret.storage.offsets import Range
from leveret.storage.records import Record

if TYPE_CHECKING:
    from leveret.broker.queue import Queue

_LOOK_AHEAD = 256
_AT_ONCE = 1024
"""So many are buried in one turn."""


def due_us(queue: Queue, record: Record) -> int | None:
    """When a message expires; None if never."""
    ttl_ms = queue.settings.message_ttl_ms
    if record.flags & EXPIRES:
        own = canonical.peek(record.header).expiration
        own_ms = parse_expiration(own) if own is not None else None
        if own_ms is not None and (ttl_ms is None or own_ms < ttl_ms):
            ttl_ms = own_ms
    return None if ttl_ms is None else record.time_us + 1000 * ttl_ms


def drop_expired(queue: Queue, *, before_us: int) -> None:
    """Buries what is expired at the head, and sets the timer for the next."""
    look, buried = 1, 0
    while True:
        if buried >= _AT_ONCE:
            queue.broker.wake_later(queue)  # others have to do something in between
            return
        records = queue.log.read(_first(queue, look))
        if not records:
            queue.broker.timers.cancel((queue, "expiry"))
            if not queue.ready:
                elsewhere = bool(queue.cursor.in_flight or queue.delayed)
                queue.may_expire = queue.settings.message_ttl_ms is not None or elsewhere
            return
        expired = []
        for record in records:
            due = due_us(queue, record)
            if due is None or due >= before_us:
                if due is not None:
                    queue.broker.timers.set((queue, "expiry"), due, queue.wake)
                break
            expired.append(record.offset)
        done = _bury(queue, expired, in_flight=False)
        buried += len(expired)
        if not done or len(expired) < len(records):
            return
        look = _LOOK_AHEAD


def is_possible(queue: Queue, count: int) -> bool:
    """Whether one of the next so many messages may expire, ever."""
    if not queue.may_expire or queue.settings.message_ttl_ms is not None:
        return queue.may_expire
    return bool(queue.log.flags(_first(queue, count)).translate(None, UNLIMITED))


def bury_expired(queue: Queue, records: list[Record], *, before_us: int) -> list[Record]:
    """What of the records just taken is alive; the others are buried."""
    dead: list[int] = []
    alive = []
    for record in records:
        due = due_us(queue, record)
        if due is not None and due < before_us:
            dead.append(record.offset)
        else:
            alive.append(record)
    if dead:
        _bury(queue, dead, in_flight=True)
    return alive


def restart_disuse(queue: Queue) -> None:
    """A queue with `x-expires` was used just now: its time begins again."""
    expires_ms = queue.settings.expires_ms
    if expires_ms is None:
        return
    if queue.consumers:
        queue.broker.timers.cancel((queue, "disuse"))
    else:
        due = queue.broker.now_us() + 1000 * expires_ms
        queue.broker.timers.set((queue, "disuse"), due, lambda: _delete(queue))


def _bury(queue: Queue, expired: Sequence[int], *, in_flight: bool) -> bool:
    """In the order in which they would have been delivered; many at once, where that is the log's."""
    together = [(each, each + 1) for each in expired] if queue.prioritised else ranges_of(expired)
    return deadletters.bury(queue, together, Reason.EXPIRED, in_flight=in_flight)


def _delete(queue: Queue) -> None:
    if queue.is_held:
        restart_disuse(queue)
    else:
        queue.vhost.delete_queue(queue)


def _first(queue: Queue, count: int) -> Sequence[Range]:
    """The first ready offsets, in the order of delivery."""
    return first_of(queue.cursor.waiting.ready_ranges(), count)
