"""Where the rows of a batch go: checked and routed like any publish, and all of them or none.

What a stage does with them is left to `stages`. The rule: a row that may not be published is an error for the
whole write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leveret.broker.access.accounts import User
from leveret.broker.canonical import MalformedHeader, to_bytes, to_text
from leveret.broker.errors import Malformed, PreconditionFailed, QueryRefused
from leveret.broker.queues import direct_replies
from leveret.broker.sessions.content_headers import SPECIAL, checked_meaning, copies, header_meaning
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.topology import Topology
from leveret.storage.records import Message

Row = tuple[bytes, bytes, bytes, bytes]
"""Exchange, routing key, content header, body."""

_CONTENT: Final = b"\x00\x3c\x00\x00"
"""What a content header begins with: class and weight; the size of the body follows, then flags."""
_SIZE_AT: Final = 4
_FLAGS_AT: Final = 12


@dataclass(frozen=True, slots=True)
class Terms:
    """How the rows of a stage are published."""

    user: User
    mandatory: bool
    unroutable: str | None
    """The exchange for what no queue takes."""
    timeout_us: int


def route_rows(vhost: Topology, rows: Sequence[Row], terms: Terms) -> dict[Destination, list[Message]]:
    """Return the messages by the queues they go to; raise for the first row that may not be published."""
    try:
        return _queues_of(vhost, rows, terms)
    except MalformedHeader as error:
        raise Malformed(error.sentence) from None


def _queues_of(vhost: Topology, rows: Sequence[Row], terms: Terms) -> dict[Destination, list[Message]]:
    known: dict[tuple[bytes, bytes], list[Destination]] = {}
    found: dict[Destination, list[Message]] = {}
    seen, limits = vhost.broker.seen_headers, vhost.broker.limits
    header_max = limits.content_header_max_bytes
    for exchange, key, header, body in rows:
        if header[:_SIZE_AT] != _CONTENT or int.from_bytes(header[_SIZE_AT:_FLAGS_AT]) != len(body):
            raise PreconditionFailed("a row's content header does not belong to its body")
        if len(header) > header_max:
            raise PreconditionFailed(
                f"a row's properties take {len(header)} bytes: a frame has room for {header_max}"
            )
        if len(body) > limits.message_max_bytes:
            raise PreconditionFailed(
                f"message size {len(body)} is larger than configured max size {limits.message_max_bytes}"
            )
        meaning = header_meaning(seen, header)
        queues = known.get((exchange, key))
        if queues is None or meaning == SPECIAL:
            queues, header, meaning, lasting = _resolve(vhost, exchange, key, header, meaning, terms)
            if lasting:
                known[exchange, key] = queues
        if not queues:
            queues = _instead(vhost, exchange, key, header, terms)
        message = Message(exchange, key, header, body, meaning & 0xFF, meaning >> 8)
        for queue in queues:
            found.setdefault(queue, []).append(message)
    return found


def _resolve(
    vhost: Topology, exchange_name: bytes, key: bytes, header: bytes, meaning: int, terms: Terms
) -> tuple[list[Destination], bytes, int, bool]:
    """Where it goes; its header as it is kept, and what that means; whether all like it go there."""
    name = to_text(exchange_name)
    terms.user.check("write", vhost.name, "exchange", name)
    exchange = vhost.target(name)
    if not name and direct_replies.is_reply_key(to_text(key)):
        raise PreconditionFailed("a direct reply can't be a row of a batch")
    keys = [to_text(key)]
    special = meaning == SPECIAL
    if special:
        meaning = checked_meaning(terms.user, header)
        keys, header = copies(to_text(key), header)
    by_headers = vhost.looks_at_headers(exchange)
    return vhost.route_message(exchange, keys, header), header, meaning, not (special or by_headers)


def _instead(vhost: Topology, exchange: bytes, key: bytes, header: bytes, terms: Terms) -> list[Destination]:
    """Nobody takes a row: where it goes then."""
    if terms.unroutable is not None:
        queues, *_ = _resolve(vhost, to_bytes(terms.unroutable), key, header, 0, terms)
        if queues:
            return queues
    elif not terms.mandatory:
        return []
    where = f"exchange '{to_text(exchange)}' with routing key '{to_text(key)}'"
    beside = f", nor to exchange '{terms.unroutable}'" if terms.unroutable is not None else ""
    raise QueryRefused(
        "unroutable",
        f"a row can't be routed: {where} in vhost '{vhost.name}' leads to no queue{beside}",
        hint="Bind a queue, give an exchange for such rows (unroutableExchange), or say mandatory=false.",
    )
