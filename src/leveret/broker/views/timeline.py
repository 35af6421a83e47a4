"""A message's timeline: everything that the store still knows about one message, in order, with times.

The events come from the journals of the cursors over the log: the queue's own, and for a stream those of its
groups. The message itself, if it is still in the log, names its publisher and the queues it died in. Journals
are read backwards from their ends, as far as the time of the publish. The rule: nothing is guessed; a fact
that the store does not keep is in `unknown`, with what to set so that it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.broker.canonical import to_text
from leveret.broker.errors import NotFound
from leveret.broker.views.dead_letter_copies import copies_of, origin_of
from leveret.broker.views.peeked import properties_of
from leveret.broker.views.readers import (
    DELAYED,
    HIDDEN,
    LEASED,
    SETTLED,
    Reader,
    Steps,
    delivery_of,
    holder_of,
    lease_of,
    reader_of,
    reason_of,
)
from leveret.storage.journal import Attempt, Entry, Kind, Outcome, Promise
from leveret.storage.well_known_names import ABORTED, STAGE

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.storage.cursor import Cursor
    from leveret.storage.records import Record

JsonObject: TypeAlias = dict[str, object]

GROUPS_MAX: Final = 20
"""Number of groups of a stream whose journals are read."""
ENTRIES_MAX: Final = 500_000
"""Number of entries that are read of one journal: 5 us each."""
EVENTS_MAX: Final = 1_000
"""Number of events of one journal in an answer: the last ones."""
_AT_ONCE: Final = 128
_QUERY: Final = "query "
_PROMISES: Final = {
    Promise.SAFE: "confirmed",
    Promise.NONE: "stored_as_transient",
    Promise.FOUND_SAFE: "found_after_restart",
}
_WITHOUT_EFFECT: Final = {"before_start": ("before_start",), "settled": ("broker_restarted",)}
"""Entries that change nothing after others: a cursor writes its start twice, and a restart is for all."""
_AUDIT: Final = "declare the queue durable, with x-audit-window"
_FORGETS: Final = "Without an audit window, entries are deleted early."


class _Past:
    """The events of one journal about one message, as they are read from the last to the first."""

    def __init__(self, reader: Reader, offset: int) -> None:
        self.reader = reader
        self.offset = offset
        self.events: list[JsonObject] = []
        """The last event first."""
        self.published: Entry | None = None
        """The entry that says when the message was published."""
        self.died: Entry | None = None
        """The entry of the message's dead-lettering."""
        self.since_us: int | None = None
        """Time of the first entry that was read, if the journal has no earlier ones or no more were read."""
        self.is_whole = True

    def add(self, entry: Entry) -> None:
        event = _event(entry, self.offset, self.reader)
        if event is not None and len(self.events) < EVENTS_MAX:
            self.events.append(event)
        if entry.kind is Kind.SYNCED and not entry.who and _has(entry, self.offset):
            self.published = entry
        is_death = entry.kind is Kind.SETTLED and entry.outcome == Outcome.DEAD_LETTERED
        if is_death and self.died is None and _has(entry, self.offset):
            self.died = entry

    def in_order(self) -> list[JsonObject]:
        """Return the events, the first one first, with the names of consumers that were noted later."""
        events: list[JsonObject] = []
        for event in reversed(self.events):
            if event["event"] == "named":
                last = events[-1] if events else {}
                if last.get("event") == "delivered" and not last["consumer"]:
                    last["consumer"] = event["consumer"]
                else:
                    events.append({**event, "event": "delivered"})
            elif not (events and event["event"] in _WITHOUT_EFFECT.get(str(events[-1]["event"]), ())):
                events.append(event)
        return events


def timeline(broker: Broker, reader: Reader, offset: int) -> Steps[JsonObject]:
    """Return the timeline of the message at an offset; raise `NotFound` beyond the end."""
    log, queue = reader.queue.log, reader.queue
    if offset >= log.next:
        raise NotFound(f"no offset {offset} in {queue}, which ends at {log.next}")
    # A row of a batch that is not committed is nobody's business yet.
    record = None if offset in reader.hidden() else log.read_one(offset)
    pasts = []
    for each in _readers(broker, reader):
        past = yield from _read(each, offset, None if record is None else record.time_us)
        pasts.append(past)
    copies: list[JsonObject] = []
    for past in pasts:
        if past.died is not None:
            copies += yield from copies_of(past.reader, offset, record, past.died.time_us)
    reader.check()
    published = _published(record, pasts)
    events = sorted(
        (event for past in pasts for event in past.in_order()), key=lambda event: int(str(event["time_us"]))
    )
    events = [*([] if published is None else [published]), *events]
    return {
        "vhost": queue.vhost.name,
        "queue": queue.name,
        "offset": offset,
        "message": None if record is None else _message(record),
        "now_ms": broker.now_us() // 1000,
        "now": [_present(broker, past) for past in pasts],
        "events": [_in_ms(event) for event in events],
        "origin": None if record is None else origin_of(record),
        "copies": copies,
        "known_since_ms": _known_since_ms(pasts, broker.now_us()),
        "unknown": list(_unknown(record, published, pasts, events, copies)),
    }


def _readers(broker: Broker, reader: Reader) -> list[Reader]:
    """Return the queue's own reader, and that of the group that was asked for, or those of all groups."""
    vhost, name = reader.vhost.name, reader.queue.name
    if reader.partition is not None:
        return [reader_of(broker, vhost, name), reader]
    groups = reader.groups[:GROUPS_MAX]
    return [reader, *(reader_of(broker, vhost, name, group=group) for group in dict.fromkeys(groups))]


def _read(reader: Reader, offset: int, published_us: int | None) -> Steps[_Past]:
    """Read a journal backwards: to the message's publish, to its beginning, or `ENTRIES_MAX` entries."""
    past, journal = _Past(reader, offset), reader.cursor.journal
    first = journal.first if published_us is None else journal.first_at(published_us)
    lowest = max(first, journal.first, journal.next - ENTRIES_MAX)
    stop = journal.next
    while stop > lowest and past.published is None:
        start = max(lowest, journal.first, stop - _AT_ONCE)
        entries = reader.cursor.entries(start, stop) if start < stop else []
        for entry in reversed(entries):
            past.add(entry)
        if entries:
            past.since_us = entries[0].time_us
        stop = start
        yield
        reader.check()
    # Entries of before the publish are of no interest.
    is_older_kept = published_us is not None and journal.first < first
    past.is_whole = past.published is not None or (lowest == first and (is_older_kept or not journal.first))
    return past


# events


def _has(entry: Entry, offset: int) -> bool:
    return any(start <= offset < stop for start, stop in entry.ranges)


def _event(entry: Entry, offset: int, reader: Reader) -> JsonObject | None:
    """Return the event that an entry tells of a message, or None."""
    told = _TOLD.get(entry.kind)
    if told is None or not _has(entry, offset):
        if entry.kind is not Kind.SOUGHT or not entry.ranges:
            return None
        told = _sought_back
    facts = told(entry)
    if facts is None:
        return None
    group = {} if reader.group is None else {"group": reader.group}
    return {"time_us": entry.time_us, "event": facts.pop("event"), **group, **facts}


def _delivered(entry: Entry) -> JsonObject:
    event = "begun" if entry.outcome == Attempt.BEGUN else "delivered"
    return {"event": event, "consumer": to_text(entry.who)}


def _settled(entry: Entry) -> JsonObject:
    outcome = Outcome(entry.outcome).name.lower()
    by, why = to_text(entry.who), to_text(entry.why)
    if by == ABORTED:
        return {"event": "aborted", "by": "the batch was not committed"}
    return {"event": "settled", "outcome": outcome, "by": by or None, "reason": why or None}


def _returned(entry: Entry) -> JsonObject:
    return {
        "event": "requeued",
        "counted": bool(entry.outcome),
        "reason": to_text(entry.why) or None,
        "by": to_text(entry.who) or None,
        "delayed_until_ms": entry.not_before_us // 1000 or None,
    }


def _synced(entry: Entry) -> JsonObject:
    if entry.who:
        return {"event": "named", "consumer": to_text(entry.who)}
    return {"event": _PROMISES[Promise(entry.outcome)]}


def _leased(entry: Entry) -> JsonObject:
    who = to_text(entry.who)
    if who.startswith(STAGE):
        query, _, batch = who.removeprefix(STAGE).rpartition(" ")
        return {"event": "written_hidden", "query": query, "batch": batch}
    return {"event": "leased", "query": who.removeprefix(_QUERY)}


def _released(entry: Entry) -> JsonObject:
    return {"event": "released", "by": to_text(entry.who) or None}


def _sought(entry: Entry) -> JsonObject:
    return {
        "event": "skipped_by_seek",
        "reason": to_text(entry.why) or None,
        "by": to_text(entry.who) or None,
    }


def _sought_back(entry: Entry) -> JsonObject:
    """Return the event of a message at or above the offset that a seek continues from."""
    return {**_sought(entry), "event": "ready_by_seek"}


def _named(event: str) -> Callable[[Entry], JsonObject]:
    return lambda entry: {
        "event": event,
        "by": to_text(entry.who) or None,
        "reason": to_text(entry.why) or None,
    }


_TOLD: Final[Mapping[Kind, Callable[[Entry], JsonObject | None]]] = {
    Kind.STARTED: lambda entry: {"event": "before_start"},
    Kind.DELIVERED: _delivered,
    Kind.SETTLED: _settled,
    Kind.RETURNED: _returned,
    Kind.SYNCED: _synced,
    Kind.REOPENED: lambda entry: {"event": "broker_restarted"},
    Kind.LEASED: _leased,
    Kind.RELEASED: _released,
    Kind.SOUGHT: _sought,
    Kind.RECALLED: _named("recalled"),
    Kind.MISSED: _named("deadline_missed"),
    Kind.WITHHELD: lambda entry: {"event": "withheld"},
}


def _in_ms(event: JsonObject) -> JsonObject:
    time_us = int(str(event["time_us"]))
    return {"time_ms": time_us // 1000, **{name: event[name] for name in event if name != "time_us"}}


# the message


def _message(record: Record) -> JsonObject:
    return {
        "exchange": to_text(record.exchange),
        "routing_key": to_text(record.routing_key),
        "properties": properties_of(record),
        "payload_bytes": len(record.body),
    }


def _published(record: Record | None, pasts: list[_Past]) -> JsonObject | None:
    """Return when and by whom the message was published, from the message or from the audit's entry."""
    if record is not None:
        properties = properties_of(record)
        return {
            "time_us": record.time_us,
            "event": "published",
            "exchange": to_text(record.exchange),
            "routing_key": to_text(record.routing_key),
            "user": properties.get("user_id"),
            "app": properties.get("app_id"),
        }
    entry = next((past.published for past in pasts if past.published is not None), None)
    if entry is None or not entry.not_before_us:
        return None
    return {"time_us": entry.not_before_us, "event": "published", "exchange": to_text(entry.why)}


def _present(broker: Broker, past: _Past) -> JsonObject:
    """Return the present state for one reader."""
    reader, offset = past.reader, past.offset
    cursor: Cursor = reader.cursor
    state = reader.state(offset, reader.hidden())
    present: JsonObject = {
        "group": reader.group,
        "state": state,
        "returns": cursor.returns.count(offset),
        "reason": reason_of(cursor, offset),
    }
    run = delivery_of(broker, reader, offset)
    if run is not None:
        present |= {"holder": holder_of(run.holder)._asdict(), "since_ms": run.since_us // 1000}
    if state == DELAYED:
        ends = (event["delayed_until_ms"] for event in past.events if event["event"] == "requeued")
        present["due_ms"] = next(ends, None)
    if state == LEASED:
        present["lease"] = lease_of(reader, offset)
    return present


# what is not known


def _known_since_ms(pasts: list[_Past], now_us: int) -> int | None:
    """Return the time since which all journals are known; None if the whole life of the message is."""
    since = [now_us if past.since_us is None else past.since_us for past in pasts if not past.is_whole]
    return max(since) // 1000 if since else None


def _unknown(
    record: Record | None,
    published: JsonObject | None,
    pasts: list[_Past],
    events: list[JsonObject],
    copies: list[JsonObject],
) -> Iterator[JsonObject]:
    """Yield the facts that the store does not keep, each with the setting that would make it do so."""
    own = pasts[0]
    audited = own.reader.cursor.audited
    if own.reader.state(own.offset, own.reader.hidden()) == HIDDEN:
        yield _fact("message", "It belongs to a batch that is not committed.", "wait for the commit")
    elif record is None:
        hint = "declare the queue with x-audit-window and x-audit-bodies"
        yield _fact("message", "The message is no longer in the log.", hint)
    if published is None:
        yield _fact("published", "Neither the message nor its entry is kept.", _AUDIT)
    elif not published.get("user"):
        hint = "publish with the property user_id, which the broker checks"
        yield _fact("publisher", "The message does not name the user who published it.", hint)
    if own.published is None and own.reader.queue.trail is None:
        yield _fact("confirmed", "The queue keeps no account of confirms.", _AUDIT)
    if not all(past.is_whole for past in pasts):
        why = "Earlier entries are deleted, or there are too many to read." if audited else _FORGETS
        yield _fact("history", why, "set a longer x-audit-window" if audited else _AUDIT)
    if any(event["event"] == "delivered" and not event["consumer"] for event in events):
        yield _fact("consumer", "Which of several consumers got a delivery is not kept.", _AUDIT)
    if any(event["event"] == "leased" for event in events):
        yield _fact("batch", "Numbers of earlier leases are not kept.", "see now.lease for the present one")
    died = [past for past in pasts if past.died is not None]
    if died and not copies:
        yield _fact(
            "copies",
            "The dead letter could not be told from others, or is gone.",
            "publish with a unique message_id",
        )
    for past in pasts:
        is_settled = past.reader.state(past.offset, past.reader.hidden()) == SETTLED
        if is_settled and not any(event["event"] in _ENDS for event in past.events):
            yield _fact("settled", "How and when it was settled is no longer kept.", _AUDIT)


_ENDS: Final = ("settled", "aborted", "before_start", "skipped_by_seek")


def _fact(fact: str, why: str, hint: str) -> dict[str, Any]:
    return {"fact": fact, "why": why, "hint": hint}
