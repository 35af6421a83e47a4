"""Links between a message that died and its dead letters, in both directions.

A dead letter of a group names stream and offset of its origin. A dead letter of a queue has only `x-death`:
the message with the same id and body that was appended when its origin was settled is the copy. The rule: a
link that is not certain is not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.canonical import to_text
from leveret.broker.groups.group import DEAD_LETTERS
from leveret.broker.queues.death_headers import DEATHS
from leveret.broker.views.peeked import properties_of

if TYPE_CHECKING:
    from leveret.broker.vhosts.destination import Destination
    from leveret.broker.views.readers import Reader, Steps
    from leveret.storage.records import Record

_STREAM, _OFFSET, _GROUP = "x-stream", "x-stream-offset", "x-group"
_QUEUES_MAX: Final = 16
_SCANNED_MAX: Final = 4_096
"""Number of messages that are searched in each queue for a copy."""
_AT_ONCE: Final = 64
_TRANSACTION_US: Final = 20_000
"""Longest time from the append of copies to the entry of their origin's settlement."""


def copies_of(
    reader: Reader, offset: int, record: Record | None, died_us: int
) -> Steps[list[dict[str, object]]]:
    """Return where the dead letters of a message are, which died at this time."""
    found: list[dict[str, object]] = []
    matches = _matcher(reader, offset, record)
    if matches is None:
        return found
    for queue in list(_targets(reader, record))[:_QUEUES_MAX]:
        copies: list[Record] = []
        scanned, stop = 0, queue.log.first_at(died_us + 1)
        while stop > queue.log.first and scanned < _SCANNED_MAX and not queue.deleted:
            start = max(queue.log.first, stop - _AT_ONCE)
            records = queue.log.read([(start, stop)])
            copies += filter(matches, records)
            scanned, stop = scanned + _AT_ONCE, start
            if records and records[0].time_us < died_us - _TRANSACTION_US:
                break
            yield
        # All copies of the transaction that settled the origin have one time, and no later one is searched.
        latest_us = max((copy.time_us for copy in copies), default=0)
        alike = [copy.offset for copy in copies if copy.time_us == latest_us]
        if len(alike) == 1 and latest_us >= died_us - _TRANSACTION_US:
            found.append({"vhost": reader.vhost.name, "queue": queue.name, "offset": alike[0]})
    return found


def origin_of(record: Record) -> dict[str, object] | None:
    """Return where a dead letter comes from; None for a message that has not died."""
    headers = _headers(record)
    stream, offset = headers.get(_STREAM), headers.get(_OFFSET)
    death = _last_death(headers)
    if death is None:
        return None
    reason = death.get("reason")
    if isinstance(stream, str) and isinstance(offset, int):
        return {"queue": stream, "offset": offset, "group": headers.get(_GROUP), "reason": reason}
    return {"queue": death.get("queue"), "offset": None, "group": None, "reason": reason}


def _matcher(reader: Reader, offset: int, record: Record | None) -> Callable[[Record], bool] | None:
    """Return a function that recognises the copies, or None if they can't be recognised."""
    name = reader.queue.name
    if reader.group is not None:
        wanted = (name, offset, reader.group)
        return lambda copy: tuple(map(_headers(copy).get, (_STREAM, _OFFSET, _GROUP))) == wanted
    if record is None:
        return None
    message_id, body = properties_of(record).get("message_id"), bytes(record.body)

    def matches(copy: Record) -> bool:
        if len(copy.body) != len(body):
            return False
        death = _last_death(_headers(copy))
        is_from_here = death is not None and death.get("queue") == name
        return is_from_here and properties_of(copy).get("message_id") == message_id and copy.body == body

    return matches


def _targets(reader: Reader, record: Record | None) -> Sequence[Destination]:
    """Return the queues that dead letters are routed to now."""
    vhost, settings = reader.vhost, reader.queue.settings
    if reader.group is not None:
        letters = vhost.queues.get(DEAD_LETTERS + reader.group)
        return [] if letters is None else [letters]
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
    if exchange is None or record is None or exchange not in vhost.exchanges:
        return []
    keys = [to_text(record.routing_key) if key is None else key]
    return list(vhost.route_on(exchange, keys, record.header))


def _headers(record: Record) -> dict[str, Any]:
    headers = properties_of(record).get("headers")
    return headers if isinstance(headers, dict) else {}


def _last_death(headers: dict[str, Any]) -> dict[str, Any] | None:
    deaths = headers.get(DEATHS)
    death = deaths[0] if isinstance(deaths, list) and deaths else None
    return death if isinstance(death, dict) else None
