"""Rates in JSON as RabbitMQ has them: `message_stats` objects, and `…_details` beside a number.

    ranges = ranges_of(request, now_us=broker.now_us())
    message_stats(queue.counters, OF_QUEUE, ranges)        # {"publish": 7, "publish_details": {"rate": 1.4}}
    detailed("messages", 3, history, ("ready", "unacked"), ranges.lengths)

Owns the names, and the query parameters that ask for samples: `msg_rates`, `data_rates`, `lengths` and
`node_stats`, each with `_age` and `_incr` in seconds. The numbers are left to `broker.history`. The rule: a
group of numbers is shown when one of them is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from starlette.requests import Request

from leveret.fronts.http.request_bodies import BadRequest

_SAMPLES_MAX: Final = 500

Group: TypeAlias = Mapping[str, tuple[str, ...]]
"""Figures of counters by the name of their sum in JSON."""

PUBLISHES: Final[Group] = {
    "publish": ("published",),
    "confirm": ("confirmed",),
    "return_unroutable": ("returned",),
    "drop_unroutable": ("unroutable",),
}
DELIVERIES: Final[Group] = {
    "ack": ("acked",),
    "deliver": ("delivered",),
    "deliver_get": ("delivered", "delivered_auto_ack", "got", "got_auto_ack"),
    "deliver_no_ack": ("delivered_auto_ack",),
    "get": ("got",),
    "get_empty": ("got_empty",),
    "get_no_ack": ("got_auto_ack",),
    "redeliver": ("redelivered",),
}
OF_CHANNEL: Final = (PUBLISHES, DELIVERIES)
"""The groups of a channel, and of a virtual host."""
OF_QUEUE: Final[tuple[Group, ...]] = ({"publish": ("published",)}, DELIVERIES)
OF_EXCHANGE: Final[tuple[Group, ...]] = ({"publish_in": ("published",), "publish_out": ("routed",)},)


class Past(Protocol):
    """The part of `broker.history.History` that is shown."""

    def rate(self, *names: str) -> float: ...

    def samples(
        self, names: Sequence[str], *, age_s: int, incr_s: int, now_us: int
    ) -> list[tuple[int, int]]: ...


class Counted(Protocol):
    """Counters with their history."""

    @property
    def history(self) -> Past | None: ...


class Range(NamedTuple):
    """Samples that a query asks for."""

    age_s: int
    incr_s: int
    now_us: int


class Ranges(NamedTuple):
    """By kind of number: the samples that a query asks for, or None."""

    msg_rates: Range | None = None
    data_rates: Range | None = None
    lengths: Range | None = None
    node_stats: Range | None = None


def ranges_of(request: Request, *, now_us: int) -> Ranges:
    """Return the samples that a query asks for; raise if they are too many."""
    return Ranges(*(_range_of(request, prefix, now_us) for prefix in Ranges._fields))


def _range_of(request: Request, prefix: str, now_us: int) -> Range | None:
    given = [request.query_params.get(f"{prefix}_{part}", "") for part in ("age", "incr")]
    if not all(text.removeprefix("-").isdecimal() and len(text) < 18 for text in given):
        return None
    age_s, incr_s = map(int, given)
    if age_s <= 0 or incr_s <= 0 or age_s // incr_s > _SAMPLES_MAX:
        raise BadRequest(f"Invalid range parameters: age {age_s}, incr {incr_s}")
    return Range(age_s, incr_s, now_us)


def message_stats(counters: Counted, groups: Sequence[Group], range_: Range | None) -> dict[str, object]:
    """Return the numbers of messages that went through an object, with their rates; empty if none did."""
    return grouped(counters, groups, counters.history, range_)


def grouped(
    counters: object, groups: Sequence[Group], past: Past | None, range_: Range | None
) -> dict[str, object]:
    """Return the sums of counters, with rates from another history than their own."""
    stats: dict[str, object] = {}
    for group in groups:
        sums = {name: sum(getattr(counters, part) for part in parts) for name, parts in group.items()}
        if any(sums.values()):
            for name, value in sums.items():
                stats |= detailed(name, value, past, group[name], range_)
    return stats


def detailed(
    name: str, value: int, past: Past | None, parts: Sequence[str], range_: Range | None
) -> dict[str, object]:
    """Return a number under its name and, under `…_details`, its rate and the samples that are asked for.

    `parts` are the names in the history whose sum the number is.

    >>> detailed("ack", 7, None, ("acked",), None)
    {'ack': 7, 'ack_details': {'rate': 0.0}}
    """
    return {name: value, f"{name}_details": details(past, parts, range_)}


def details(past: Past | None, parts: Sequence[str], range_: Range | None) -> dict[str, object]:
    """Return the rate of a number and the samples that are asked for."""
    found: dict[str, object] = {"rate": 0.0 if past is None else past.rate(*parts)}
    if range_ is None:
        return found
    samples = [] if past is None else past.samples(parts, **range_._asdict())
    found["samples"] = [{"sample": value, "timestamp": time_us // 1000} for time_us, value in samples]
    if samples:
        (last_us, last), (first_us, first) = samples[0], samples[-1]
        found["avg_rate"] = (last - first) * 1_000_000 / (last_us - first_us) if last_us > first_us else 0.0
        found["avg"] = sum(value for _, value in samples) / len(samples)
    return found
