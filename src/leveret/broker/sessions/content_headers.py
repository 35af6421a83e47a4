"""The meaning of a content header for the broker: flags, priority, CC and BCC copies.

This module decides which headers are refused, and which must be read for every message. `publishing` and
`row_routing` route the messages. The rule: unless a header is `SPECIAL`, its meaning depends on its bytes
alone, so the meaning may be cached by these bytes.
"""

from __future__ import annotations

from typing import Final

from leveret.broker import canonical
from leveret.broker.access.accounts import User
from leveret.broker.canonical import Value, to_bytes
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import direct_replies, producer_sequences
from leveret.broker.queues.arguments import parse_expiration
from leveret.broker.queues.erlang_terms import type_name
from leveret.broker.record_flags import EXPIRES
from leveret.storage.records import PERSISTENT

SPECIAL: Final = -1
"""A header that must be read for every message: it has copies, a user ID, or asks for a direct reply."""
_REMEMBERED_MAX: Final = 4096
_REMEMBERED_BYTES_MAX: Final = 256


def header_meaning(seen: dict[bytes, int], header: bytes) -> int:
    """Return the flags (bits 0 to 7) and the priority (above) of a record, or `SPECIAL`; `seen` caches it."""
    shape = producer_sequences.shape_of(header)
    if shape and (known := seen.get(shape)) is not None:
        return known
    peek = canonical.peek(header)
    named = None
    if peek.headers is not None:
        named = producer_sequences.leading_sequence(header, *peek.headers)
        if named is None or named[2] != peek.headers[1]:
            # Later it would be too late to refuse a malformed header.
            canonical.headers_of(header)
    check_delivery_mode(peek.delivery_mode)
    if (
        peek.user_id is not None
        or direct_replies.NAME_BYTES in header
        or b"\x02CC" in header
        or b"BCC" in header
    ):
        return SPECIAL
    meaning = (PERSISTENT if peek.persistent else 0) | peek.priority << 8
    if peek.expiration is not None:
        parse_expiration(peek.expiration)
        meaning |= EXPIRES
    # A header with a producer's sequence number occurs once, but its shape occurs again.
    key = header if named is None else shape
    if (
        len(header) <= _REMEMBERED_BYTES_MAX
        and key
        and (named is None or producer_sequences.is_like_others(header))
    ):
        if len(seen) >= _REMEMBERED_MAX:
            seen.clear()
        seen[key] = meaning
    return meaning


def checked_meaning(user: User, header: bytes) -> int:
    """Return the flags and priority of a `SPECIAL` header; raise if its user ID is not the user's."""
    peek = canonical.peek(header)
    check_delivery_mode(peek.delivery_mode)
    if peek.user_id is not None:
        _check_user(user, peek.user_id)
    flags = PERSISTENT if peek.persistent else 0
    if peek.expiration is not None:
        parse_expiration(peek.expiration)
        flags |= EXPIRES
    return flags | peek.priority << 8


def copies(key: str, header: bytes) -> tuple[list[str], bytes]:
    """Return all routing keys of a message, and its header without the BCC keys."""
    headers = canonical.headers_of(header)
    keys = [key]
    for name in ("CC", "BCC"):
        if name in headers:
            keys += _keys_of(name, headers[name])
    if "BCC" in headers:
        header = canonical.with_headers(header, {}, remove=("BCC",))
    return keys, header


def _keys_of(name: str, value: Value) -> list[str]:
    if not isinstance(value, list):
        kind = type_name(value)
        raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return [key for key in value if isinstance(key, str)]


def check_delivery_mode(mode: int | None) -> None:
    """Raise unless a message may have this delivery mode."""
    if mode is not None and mode not in (1, 2):
        raise PreconditionFailed(f"invalid message: {{delivery_mode_unknown,{mode}}}")


def _check_user(user: User, user_id: bytes) -> None:
    if user_id != to_bytes(user.name) and "impersonator" not in user.tags:
        raise PreconditionFailed(
            f"user_id property set to '{user_id.decode('utf-8', 'replace')}' but authenticated user was "
            f"'{user.name}'"
        )
