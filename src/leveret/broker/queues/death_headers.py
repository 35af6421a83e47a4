"""The headers of a dead letter about its deaths: `x-death` and its companions, as RabbitMQ writes them.

Owns the rewriting of a content header when a message becomes a dead letter, and the rule that ends cycles.
When messages die and where dead letters go is left to the queue and the virtual host. The rule: `x-death` has
one entry per queue and reason, the most recent death first. A repeated death keeps the entry of the first one
and raises its count. (RabbitMQ 3.10 puts the newest first as well, but reorders the others at each death; its
manual describes the order used here.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Final

from leveret.broker.canonical import Timestamp, Value, headers_of, peek, with_headers
from leveret.broker.queues.erlang_terms import comparable

DEATHS: Final = "x-death"
CARBON_COPY: Final = "CC"
COUNT_MAX: Final = (1 << 63) - 1
"""Largest value of the field: a client may have written an `x-death` of its own."""

Death = dict[str, Value]


class Reason(StrEnum):
    """Why a message left a queue without being consumed."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


def dead_letter_header(
    header: bytes,
    *,
    queue: str,
    reason: Reason,
    time_s: int,
    exchange: str,
    routing_keys: Sequence[str],
    keep_cc: bool = True,
) -> bytes:
    """Return the content header of the dead letter of a message that died in `queue`.

    `exchange` and `routing_keys` are those the message was published with. Of the keys only the first is
    used: further keys are read from the CC header, and keys from a BCC header stay secret. `keep_cc` is false
    when the queue has a dead-letter routing key, which replaces the CC header as well.
    """
    headers = headers_of(header)
    keys: list[Value] = [routing_keys[0], *carbon_copies(headers)]
    death: Death = {
        "count": 1,
        "reason": reason.value,
        "queue": queue,
        "time": Timestamp(time_s),
        "exchange": exchange,
        "routing-keys": keys,
    }
    expiration = peek(header).expiration
    if expiration is not None:
        death["original-expiration"] = expiration.decode("utf-8", "surrogateescape")
    last: dict[str, Value] = {"reason": reason.value, "queue": queue, "exchange": exchange}
    changes = {f"x-last-death-{field}": value for field, value in last.items()}
    if DEATHS not in headers:
        changes |= {f"x-first-death-{field}": value for field, value in last.items()}
    changes[DEATHS] = _counted(death, _recorded(headers))
    return with_headers(header, changes, () if keep_cc else (CARBON_COPY,), drop_expiration=True)


def is_cycle(header: bytes, *, queue: str, reason: Reason) -> bool:
    """Return whether a dead letter routed to `queue` would close a cycle that contains no reject.

    `header` is the result of `dead_letter_header`, and `reason` its argument. Each queue that the dead letter
    is routed to is checked: queues that close a cycle do not get it, the others do.
    """
    if reason is Reason.REJECTED:
        return False
    for death in _recorded(headers_of(header)):
        if death.get("reason") == Reason.REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False


def carbon_copies(headers: dict[str, Value]) -> list[str]:
    """Return the additional routing keys in a CC header."""
    keys = headers.get(CARBON_COPY)
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def _recorded(headers: dict[str, Value]) -> list[Death]:
    """Return the deaths so far, without entries of another form that a client has written."""
    deaths = headers.get(DEATHS)
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def _counted(death: Death, earlier: Iterable[Death]) -> list[Value]:
    """Return `death`, merged with the earlier entry of its queue and reason, before all other entries."""
    entries = _merged(earlier)
    before = entries.pop(_key(death), None)
    if before is not None:
        count = before.get("count")
        present_count = count if isinstance(count, int) else 0
        death = {**before, "count": min(present_count + 1, COUNT_MAX)}
    return [death, *entries.values()]


def _merged(deaths: Iterable[Death]) -> dict[Hashable, Death]:
    """Merge the deaths into one entry for each queue and reason, the first one, in their order.

    RabbitMQ before 3.6 wrote an entry without a count for each death. Where several of these are merged, the
    count is their number, as in RabbitMQ.
    """
    groups: dict[Hashable, list[Death]] = {}
    for death in deaths:
        groups.setdefault(_key(death), []).append(death)
    return {
        key: group[0] if len(group) == 1 or "count" in group[0] else {**group[0], "count": len(group)}
        for key, group in groups.items()
    }


def _key(death: Death) -> Hashable:
    return comparable(death.get("queue")), comparable(death.get("reason"))
