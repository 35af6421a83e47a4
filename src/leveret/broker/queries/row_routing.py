"""Routing of a batch's rows: checked and routed like publishes, but all of them or none.

The rule: a row that may not be published is an error for the whole write. `staged_batches` stores the rows.
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
"""Class and weight, the first bytes of a content header; the size of the body follows, then flags."""
_SIZE_AT: Final = 4
_FLAGS_AT: Final = 12


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options for the publishing of a stage's rows."""

    user: User
    mandatory: bool
    unroutable: str | None
    """The exchange for rows that are routed to no queue."""
    timeout_us: int


def route_rows(vhost: Topology, rows: Sequence[Row], options: RowOptions) -> dict[Destination, list[Message]]:
    """Return the messages by queue; raise for the first row that may not be published."""
    try:
        return _messages_by_queue(vhost, rows, options)
    except MalformedHeader as error:
        raise Malformed(error.sentence) from None


def _messages_by_queue(
    vhost: Topology, rows: Sequence[Row], options: RowOptions
) -> dict[Destination, list[Message]]:
    routes: dict[tuple[bytes, bytes], list[Destination]] = {}
    messages_by_queue: dict[Destination, list[Message]] = {}
    seen_headers, limits = vhost.broker.seen_headers, vhost.broker.limits
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
        meaning = header_meaning(seen_headers, header)
        queues = routes.get((exchange, key))
        if queues is None or meaning == SPECIAL:
            queues, header, meaning, is_reusable = _resolve(vhost, exchange, key, header, meaning, options)
            if is_reusable:
                routes[exchange, key] = queues
        if not queues:
            queues = _route_unroutable(vhost, exchange, key, header, options)
        message = Message(exchange, key, header, body, meaning & 0xFF, meaning >> 8)
        for queue in queues:
            messages_by_queue.setdefault(queue, []).append(message)
    return messages_by_queue


def _resolve(
    vhost: Topology, exchange_name: bytes, key: bytes, header: bytes, meaning: int, options: RowOptions
) -> tuple[list[Destination], bytes, int, bool]:
    """Return a row's queues, its header as stored, the header's meaning, and whether the route is reusable.

    A reusable route also holds for other rows with this exchange and routing key.
    """
    name = to_text(exchange_name)
    options.user.check("write", vhost.name, "exchange", name)
    exchange = vhost.target(name)
    options.user.check_topic("write", vhost.name, exchange, to_text(key))
    if not name and direct_replies.is_reply_key(to_text(key)):
        raise PreconditionFailed("a direct reply can't be a row of a batch")
    keys = [to_text(key)]
    special = meaning == SPECIAL
    if special:
        meaning = checked_meaning(options.user, header)
        keys, header = copies(to_text(key), header)
    by_headers = vhost.looks_at_headers(exchange)
    return vhost.route_message(exchange, keys, header), header, meaning, not (special or by_headers)


def _route_unroutable(
    vhost: Topology, exchange: bytes, key: bytes, header: bytes, options: RowOptions
) -> list[Destination]:
    """Return the queues of an unroutable row, through the exchange for such rows.

    Raise `QueryRefused` if that exchange leads to no queue, or if there is none and rows are mandatory.
    """
    if options.unroutable is not None:
        queues, *_ = _resolve(vhost, to_bytes(options.unroutable), key, header, 0, options)
        if queues:
            return queues
    elif not options.mandatory:
        return []
    route_text = f"exchange '{to_text(exchange)}' with routing key '{to_text(key)}'"
    unroutable_text = f", nor to exchange '{options.unroutable}'" if options.unroutable is not None else ""
    raise QueryRefused(
        "unroutable",
        f"a row can't be routed: {route_text} in vhost '{vhost.name}' leads to no queue{unroutable_text}",
        hint="Bind a queue, give an exchange for such rows (unroutableExchange), or say mandatory=false.",
    )
