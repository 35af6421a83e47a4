"""Dead-lettering: a message that dies is settled, and copied to the dead-letter exchange if there is one.

The copies and the settlement of the original are one transaction, one frame of the write-ahead log: at every
moment the message is in its queue or in the queues of its copies, never in neither. The headers of dead
letters are left to `death_headers`. If nothing can be appended (a full disk), the message stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from leveret.broker.atomic_changes import Feed, Work
from leveret.broker.canonical import headers_of, to_bytes, to_text
from leveret.broker.core import Core
from leveret.broker.counters import Counters
from leveret.broker.queues import death_headers
from leveret.broker.queues.death_headers import Reason
from leveret.broker.queues.delivery_rules import DeliveryRules
from leveret.broker.record_flags import EXPIRES
from leveret.broker.vhosts.destination import Destination
from leveret.storage.errors import BadRequest, WriteFailed
from leveret.storage.journal import Outcome
from leveret.storage.log import Log
from leveret.storage.offset_set import Range
from leveret.storage.records import Message, Record

_AT_ONCE = 1024
_SMALL_BYTES = 64 << 10
_WITHOUT_COPY = {
    Reason.REJECTED: Outcome.REJECTED,
    Reason.EXPIRED: Outcome.EXPIRED,
    Reason.MAXLEN: Outcome.DROPPED,
    Reason.DELIVERY_LIMIT: Outcome.DROPPED,
}


class DeadLetterFeed(Feed, Protocol):
    """A feed whose messages may be dead-lettered: a deliverer."""

    rules: DeliveryRules

    @property
    def broker(self) -> Core: ...

    @property
    def log(self) -> Log: ...

    @property
    def counters(self) -> Counters: ...


def dead_letter(
    feed: DeadLetterFeed,
    ranges: Sequence[Range],
    reason: Reason,
    *,
    in_flight: bool,
    work: Work | None = None,
    who: bytes = b"",
    why: bytes = b"",
    attempted: bool = True,
) -> bool:
    """Settle messages that died, and append their dead letters; return False if that could not be written.

    After a failed write the messages become ready or stay so, and the feed runs once writing works.
    """
    pieces = list(_pieces(feed, ranges))
    for position, piece in enumerate(pieces):
        part = work or Work(feed.broker)
        copied = _append_copies(part, feed, piece, reason, why=why, attempted=attempted)
        outcome = Outcome.DEAD_LETTERED if copied else _WITHOUT_COPY[reason]
        if in_flight:
            part.settle(feed, [piece], outcome, who=who, why=reason.value.encode())
        else:
            part.drop(feed, [piece], outcome, why=reason.value.encode())
        _count(feed, reason, piece[1] - piece[0], copied)
        if work is not None:
            continue
        try:
            part.commit()
        except (WriteFailed, BadRequest):
            feed.broker.ledger.stall(feed)
            if in_flight:
                back = Work(feed.broker)
                back.give_back(feed, pieces[position:], counted=False)
                back.commit()
            return False
    return True


def _pieces(feed: DeadLetterFeed, ranges: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges to dead-letter in one transaction each; large messages come one by one."""
    mean_bytes = feed.log.size_bytes // max(1, feed.log.next - feed.log.first)
    at_once = _AT_ONCE if mean_bytes < _SMALL_BYTES else 1
    for start, stop in ranges:
        for first in range(start, stop, at_once):
            yield first, min(stop, first + at_once)


def _append_copies(
    work: Work, feed: DeadLetterFeed, range_: Range, reason: Reason, *, why: bytes, attempted: bool
) -> int:
    """Append the dead letters of messages; return how many of the messages have any."""
    rules = feed.rules
    copied = 0
    if rules.leaves_dead_letters():
        for record in feed.log.read([range_]):
            copies = rules.dead_letters_of(record, reason, why=why, attempted=attempted)
            for target, copy in copies:
                work.append(target, [copy])
            copied += bool(copies)
    return copied


def _count(feed: DeadLetterFeed, reason: Reason, count: int, copied: int) -> None:
    feed.broker.counters.deaths[reason.value] += count
    for counters in (feed.counters, feed.broker.counters):
        counters.dead_lettered += copied
        if reason is Reason.EXPIRED:
            counters.expired += count
        elif reason is not Reason.REJECTED:
            counters.dropped += count


def dead_letter_refused(queue: Destination, messages: Sequence[Message], reason: Reason) -> None:
    """Append dead letters of messages that the queue refused (`reject-publish-dlx`)."""
    if queue.settings.dead_letter_exchange is None:
        return
    now_us = queue.broker.now_us()
    for message in messages:
        record = Record(0, now_us, *message)
        for target, copy in route(queue, record, reason):
            target.append([copy])


def route(queue: Destination, record: Record, reason: Reason) -> list[tuple[Destination, Message]]:
    """Return the dead letters of a message with their destinations, except where they close a cycle."""
    exchange = queue.settings.dead_letter_exchange
    assert exchange is not None
    if exchange not in queue.vhost.exchanges:
        return []
    own_key = to_text(record.routing_key)
    new_key = queue.settings.dead_letter_routing_key
    keys = (
        [own_key, *death_headers.carbon_copies(headers_of(record.header))] if new_key is None else [new_key]
    )
    header = death_headers.dead_letter_header(
        record.header,
        queue=queue.name,
        reason=reason,
        time_s=queue.broker.now_us() // 1_000_000,
        exchange=to_text(record.exchange),
        routing_keys=[own_key],
        keep_cc=new_key is None,
    )
    targets = queue.vhost.route_on(exchange, keys, header)
    letters = []
    for target in targets:
        if death_headers.is_cycle(header, queue=target.name, reason=reason):
            continue
        flags = record.flags & ~EXPIRES
        message = Message(to_bytes(exchange), to_bytes(keys[0]), header, record.body, flags, record.priority)
        letters.append((target, message))
    return letters
