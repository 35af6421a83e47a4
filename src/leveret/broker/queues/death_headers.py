"""What a dead letter says of its deaths: the header `x-death` and its companions, as RabbitMQ writes them.

Owns the rewriting of a message's content header when it leaves a queue as a dead letter, and the rule that
ends cycles. When messages die, where dead letters go and under which key is left to the queue and the virtual
host. The rule: `x-death` has one entry per queue and reason, the most recent death first; an entry that dies
again keeps what it says of its first time and counts one more. (RabbitMQ 3.10 puts the newest first as well,
but turns the others round at each death; its manual says what is done here.)
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
"""What the field holds: a client may have written an `x-death` of its own."""

Death = dict[str, Value]


class Reason(StrEnum):
    """Why a message left a queue without being consumed."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


def bury(
    header: bytes,
    *,
    queue: str,
    reason: Reason,
    time_s: int,
    exchange: str,
    routing_keys: Sequence[str],
    keep_cc: bool = True,
) -> bytes:
    """The content header of the dead letter of a message that died in `queue`.

    `exchange` and `routing_keys` are those the message was published with: of the keys the first counts, what
    a CC header adds is read there, and what a BCC header added stays a secret. `keep_cc` is false when the
    queue has a dead-letter routing key: it replaces the CC header as well.
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
    changes = {f"x-last-death-{what}": value for what, value in last.items()}
    if DEATHS not in headers:
        changes |= {f"x-first-death-{what}": value for what, value in last.items()}
    changes[DEATHS] = _counted(death, _recorded(headers))
    return with_headers(header, changes, () if keep_cc else (CARBON_COPY,), drop_expiration=True)


def is_cycle(header: bytes, *, queue: str, reason: Reason) -> bool:
    """Would a dead letter that is routed to `queue` go round without anybody having rejected it?

    `header` is what `bury` made, `reason` the one it was given. To be asked for each queue the dead letter
    is routed to: those that close a cycle don't get it, the others do.
    """
    if reason is Reason.REJECTED:
        return False
    since: list[Death] = []
    for death in _recorded(headers_of(header)):
        since.append(death)
        if death.get("queue") == queue:
            return all(one.get("reason") != Reason.REJECTED for one in since)
    return False


def carbon_copies(headers: dict[str, Value]) -> list[str]:
    """The further routing keys that a CC header names."""
    keys = headers.get(CARBON_COPY)
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def _recorded(headers: dict[str, Value]) -> list[Death]:
    """The deaths so far; what a client has put there in another form is dropped."""
    deaths = headers.get(DEATHS)
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def _counted(death: Death, earlier: Iterable[Death]) -> list[Value]:
    """`death` first, joined with the entry of the same queue and reason, then the others in their order."""
    entries = _merged(earlier)
    before = entries.pop(_key(death), None)
    if before is not None:
        count = before.get("count")
        times = count if isinstance(count, int) else 0
        death = {**before, "count": min(times + 1, COUNT_MAX)}
    return [death, *entries.values()]


def _merged(deaths: Iterable[Death]) -> dict[Hashable, Death]:
    """One entry for each queue and reason: the first one, in the order of these.

    RabbitMQ before 3.6 wrote an entry without a count for each death. Where several of them are merged, the
    count is how many there were, as in RabbitMQ.
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
