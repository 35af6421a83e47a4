"""Messages at offsets, looked at without touching them: no message is taken, and none counts as delivered.

Filters compare the routing key, headers and fields of a JSON body with texts, or search them with RE2. The
rules: a hidden row of a batch that is not committed is never shown; the bytes of an answer and the messages
that a request reads are bounded; and a step reads one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from leveret.broker.canonical import MalformedHeader, Value, decode, to_text
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import message_sizes
from leveret.broker.views.name_filters import name_filter
from leveret.broker.views.readers import HIDDEN, SETTLED, Reader, Steps
from leveret.storage.offset_ranges import first_of

if TYPE_CHECKING:
    from leveret.broker.access.accounts import User
    from leveret.storage.offset_set import OffsetSet, Range
    from leveret.storage.records import Record

COUNT: Final = 20
COUNT_MAX: Final = 500
FILTERS_MAX: Final = 16
SCANNED_MAX: Final = 10_000
"""Number of messages that one request reads at most."""
BYTES_MAX: Final = 16 << 20
"""Bytes of bodies in one answer; one larger message is shown alone."""
_READ_AT_ONCE: Final = 64
_READ_BYTES: Final = 256 << 10
_JSON_BYTES_MAX: Final = 1 << 20
"""Larger bodies are not searched for JSON fields: parsing takes 10 ms for each MiB."""
_SEARCHED_MAX: Final = 255
"""Length of a value up to which an expression searches: names of this length take 3 ms at most."""
_MISSING: Final = object()


class Seen(NamedTuple):
    """A message of the log, with its state for a reader: ready, in flight, delayed, settled."""

    offset: int
    time_us: int
    state: str
    returns: int
    redelivered: bool
    exchange: str
    key: str
    properties: Mapping[str, Value]
    body: bytes


class Peeked(NamedTuple):
    messages: list[Seen]
    scanned: int
    next: int | None
    """The offset at which another request continues; None at the end."""


class Filters(NamedTuple):
    """`Filters({"region": "eu"}, {"customer.id": "7"}, key="orders.new")`; all of them must match."""

    headers: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}
    """Texts by path: `customer.id` is the field `id` of the object in the field `customer`."""
    key: str | None = None
    message_id: str | None = None
    states: Sequence[str] = ()
    """The states to show; by default all but `settled` for a queue, and all for a group."""
    regex: bool = False

    def compiled(self) -> Callable[[Record], bool]:
        """Return the filter of records; raise for an invalid expression."""
        key = None if self.key is None else _text_filter(self.key, regex=self.regex)
        headers = {name: _text_filter(text, regex=self.regex) for name, text in self.headers.items()}
        fields = {path: _text_filter(text, regex=self.regex) for path, text in self.fields.items()}

        def matches(record: Record) -> bool:
            if key is not None and not key(to_text(record.routing_key)):
                return False
            if headers or self.message_id is not None:
                properties = properties_of(record)
                if self.message_id is not None and properties.get("message_id") != self.message_id:
                    return False
                found = properties.get("headers")
                table = found if isinstance(found, dict) else {}
                if not all(holds(_text(table.get(name, _MISSING))) for name, holds in headers.items()):
                    return False
            return not fields or _has_fields(record.body, fields)

        return matches


def check_may_read(reader: Reader, user: User) -> None:
    """Raise unless the user may get messages of the queue: see `consuming.get`."""
    user.check("read", reader.vhost.name, "queue", reader.queue.name)
    reader.queue.check_access(None)


def properties_of(record: Record) -> Mapping[str, Value]:
    """Return the properties of a message; none if a client has sent a header that can't be read."""
    try:
        return decode(record.header)
    except (MalformedHeader, ValueError):
        return {}


def peeked(
    reader: Reader, filters: Filters, *, start: int | None = None, count: int = COUNT
) -> Steps[Peeked]:
    """Return up to `count` messages from the offset `start` on, by default from the lowest unsettled one."""
    matches, states = filters.compiled(), filters.states
    shows_settled = SETTLED in states if states else reader.partition is not None
    position = reader.cursor.settled.low if start is None else start
    messages: list[Seen] = []
    scanned = shown_bytes = 0
    for record, hidden in _records(reader, position, settled=shows_settled):
        if record is None:
            yield
            continue
        is_over = shown_bytes + len(record.body) > BYTES_MAX and shown_bytes > 0
        if len(messages) == count or scanned == SCANNED_MAX or is_over:
            return Peeked(messages, scanned, record.offset)
        scanned += 1
        state = reader.state(record.offset, hidden)
        if state != HIDDEN and (not states or state in states) and matches(record):
            messages.append(_seen(reader, record, state))
            shown_bytes += len(record.body)
        yield
        reader.check()
    return Peeked(messages, scanned, None)


def _records(reader: Reader, start: int, *, settled: bool) -> Iterator[tuple[Record | None, OffsetSet]]:
    """Yield the messages from an offset on with the hidden offsets, and None after each read of none."""
    position = start
    while position < (stop := reader.end):
        log, hidden = reader.queue.log, reader.hidden()
        if settled:
            position = max(position, log.first)
            ranges: Iterable[Range] = [(position, stop)] if position < stop else []
        else:
            ranges = reader.cursor.settled.unsettled_within(position, stop)
        near = first_of(ranges, _READ_AT_ONCE)
        if not near:
            return
        near = first_of(near, message_sizes.fitting(log, near, _READ_AT_ONCE, _READ_BYTES))
        if not near:
            return
        position = near[-1][1]
        found = log.read(near)
        for record in found:
            yield record, hidden
        if not found:
            yield None, hidden


def _seen(reader: Reader, record: Record, state: str) -> Seen:
    returns = reader.cursor.returns
    return Seen(
        record.offset,
        record.time_us,
        state,
        returns.count(record.offset),
        returns.is_redelivered(record.offset),
        to_text(record.exchange),
        to_text(record.routing_key),
        properties_of(record),
        bytes(record.body),
    )


# filters


def _text_filter(wanted: str, *, regex: bool) -> Callable[[str | None], bool]:
    """Return a function that says whether a value matches; None stands for a missing value."""
    if not regex:
        return lambda text: text == wanted
    try:
        search = name_filter(wanted, regex=True)
    except PreconditionFailed:
        raise PreconditionFailed(
            f"'{wanted}' is not a regular expression of RE2 (https://github.com/google/re2/wiki/Syntax)"
        ) from None
    return lambda text: text is not None and search(text[:_SEARCHED_MAX])


def _has_fields(body: bytes, fields: Mapping[str, Callable[[str | None], bool]]) -> bool:
    if len(body) > _JSON_BYTES_MAX:
        return False
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return all(holds(_text(_field(content, path))) for path, holds in fields.items())


def _field(content: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(content, dict) and name in content:
            content = content[name]
        elif isinstance(content, list) and name.isascii() and name.isdecimal() and len(name) < 10:
            content = content[int(name)] if int(name) < len(content) else _MISSING
        else:
            return _MISSING
    return content


def _text(value: Any) -> str | None:
    """Return a value as JSON writes it, without the quotes of a text; None if it is missing.

    >>> _text("eu"), _text(7), _text(True), _text(None)
    ('eu', '7', 'true', 'null')
    """
    if value is _MISSING:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return to_text(bytes(value))
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value) if isinstance(value, int | float) else None
