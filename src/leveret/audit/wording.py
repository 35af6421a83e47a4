"""The words of an audit's results: the verdict, and the form of numbers, times and names.

`terminal` and `report` share these pure functions, so they use one wording; each of them owns its layout. The
rule: the verdict claims no more than `Findings.holds` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from leveret.audit.consumer_names import name_of
from leveret.audit.findings import Advice, DeadLetters, Findings, Hole, Latency, MessageFound, QueueAccount

Tone: TypeAlias = Literal["well", "attention", "lost", "neutral"]

DONE: Final = "acked"
_TONES: Final[dict[str, Tone]] = {
    DONE: "well",
    "rejected": "attention",
    "dead lettered": "attention",
    "expired": "attention",
    "dropped": "attention",
    "sent to rejects": "attention",
    "returned": "attention",
    "damaged": "lost",
    "lost": "lost",
}
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_CONTROL_PICTURES: Final = 0x2400
PERCENTILES: Final = ("p50", "p95", "p99")

Place: TypeAlias = QueueAccount | MessageFound | Hole | Latency | DeadLetters | Advice
"""Findings that have a virtual host, a queue and a reader."""


class Stage(NamedTuple):
    """A stage on the way of a message, with the field of `Latency` that has its times."""

    name: str
    field: str

    def of(self, latency: Latency) -> tuple[float | None, float | None, float | None]:
        percentiles: tuple[float | None, float | None, float | None] = getattr(latency, self.field)
        return percentiles


STAGES: Final = (
    Stage("publish to confirm", "confirm_ms"),
    Stage("publish to first delivery", "delivery_ms"),
    Stage("publish to settlement", "settle_ms"),
)


class Slowest(NamedTuple):
    """The stretch of time in which a queue had its highest p99 of a stage."""

    latency: Latency
    stage: Stage
    percentiles: tuple[float | None, float | None, float | None]


def tone(outcome: str) -> Tone:
    """Return whether an outcome is good, needs attention, or is a loss."""
    return _TONES.get(outcome, "neutral")


# verdict


def verdict(findings: Findings) -> str:
    """Return the verdict as one sentence."""
    own = [account for account in findings.queues if not account.reader]
    published = sum(account.published for account in own)
    if not findings.holds:
        return _problems(findings)
    if not published:
        return "There is no message to account for."
    confirmed = sum(account.confirmed for account in own)
    queues = sum(account.published > 0 for account in own)
    to_queues = f" to {queues:,} queues" if queues > 1 else ""
    figures = f"{published:,} published{to_queues}, {confirmed:,} confirmed, none lost, none twice"
    return f"Every message is accounted for: {figures}."


def _problems(findings: Findings) -> str:
    lost, doubled, damaged = findings.lost_count, findings.doubled_count, len(findings.damage)
    wrong = []
    if lost:
        wrong.append(f"{counted(lost, 'message')} {'is' if lost == 1 else 'are'} lost")
    if doubled:
        subject = f"{doubled:,}" if lost else counted(doubled, "message")
        wrong.append(f"{subject} {'is' if doubled == 1 else 'are'} doubled")
    if not wrong:
        wrong.append("No message is known to be lost or doubled")
    if damaged:
        wrong.append(f"{counted(damaged, 'file')} could not be read")
    return f"{_joined(wrong, last='but' if not (lost or doubled) else 'and')}."


def _joined(parts: Sequence[str], *, last: str) -> str:
    """
    >>> _joined(["3 are lost", "1 is doubled"], last="and"), _joined(["a", "b", "c"], last="and")
    ('3 are lost and 1 is doubled', 'a, b and c')
    """
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])}{',' if last == 'but' else ''} {last} {parts[-1]}"


def reservation(findings: Findings) -> str:
    """Return what limits the verdict; empty if nothing does."""
    own = [account for account in findings.queues if not account.reader]
    not_audited = sum(not account.audited for account in own)
    if not not_audited:
        return ""
    return (
        f"{not_audited:,} of {counted(len(own), 'queue')} {'has' if not_audited == 1 else 'have'} no audit "
        "window: messages settled there are soon forgotten and then missing in this account. "
        "The queue argument x-audit-window keeps them."
    )


# figures


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "message"), counted(1200, "message")
    ('1 message', '1,200 messages')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(time_ms: float | None) -> str:
    """
    >>> [duration(time_ms) for time_ms in (None, 0.42, 7.25, 850, 2_000, 12_300)]
    ['–', '0.42 ms', '7.2 ms', '850 ms', '2 s', '12.3 s']
    >>> [duration(time_ms) for time_ms in (185_000, 300_000, 7_500_000, 266_400_000)]
    ['3 min 5 s', '5 min', '2 h 5 min', '3 d 2 h']
    """
    if time_ms is None:
        return "–"
    time_ms = max(0.0, time_ms)
    if 0 < time_ms < 0.005:
        return "< 0.01 ms"
    if time_ms < 999.5:
        digits = 2 if 0 < time_ms < 0.995 else 1 if 0 < time_ms < 9.95 else 0
        return f"{time_ms:.{digits}f} ms"
    if time_ms < 59_950:
        return f"{time_ms / 1000:.{1 if time_ms % 1000 else 0}f} s"
    seconds = round(time_ms / 1000)
    if seconds < _HOUR_S:
        return _two_units(seconds // _MINUTE_S, "min", seconds % _MINUTE_S, "s")
    if seconds < _DAY_S:
        return _two_units(seconds // _HOUR_S, "h", seconds % _HOUR_S // _MINUTE_S, "min")
    return _two_units(seconds // _DAY_S, "d", seconds % _DAY_S // _HOUR_S, "h")


def _two_units(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large:,} {unit} {small} {smaller}" if small else f"{large:,} {unit}"


def share(part: int, whole: int) -> str:
    """Return a percentage; only the whole is written as 100 %, and only zero as 0 %.

    >>> share(1, 4), share(1, 1_000_000), share(999_999, 1_000_000), share(0, 5), share(5, 5)
    ('25.0 %', '< 0.1 %', '> 99.9 %', '0 %', '100 %')
    """
    if part <= 0 or part >= whole:
        return "0 %" if part <= 0 else "100 %"
    percent = 100 * part / whole
    if percent < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if percent > 99.9 else f"{percent:.1f} %"


def in_utc(at: datetime) -> datetime:
    """Return a time in UTC; a time without a zone is taken as UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def moment(at: datetime | None) -> str:
    """
    >>> moment(datetime(2026, 9, 15, 9, 0)), moment(None)
    ('2026-09-15 09:00:00', '–')
    """
    return "–" if at is None else in_utc(at).strftime("%Y-%m-%d %H:%M:%S")


def age(since: datetime | None, taken: datetime) -> str:
    """Return the time from `since` to the audit."""
    return "–" if since is None else duration((in_utc(taken) - in_utc(since)).total_seconds() * 1000)


def offsets(hole: Hole) -> str:
    """
    >>> from leveret.audit.findings import Hole
    >>> place = dict(vhost="/", queue="q", reader="", state="ready", held_by="", since=None, deliveries=0)
    >>> offsets(Hole(start=7, stop=8, **place)), offsets(Hole(start=7, stop=1200, **place))
    ('7', '7 to 1,199')
    """
    return f"{hole.start:,}" if hole.stop - hole.start == 1 else f"{hole.start:,} to {hole.stop - 1:,}"


def gain(advice: Advice) -> str:
    return "as fast as now" if advice.gain < 1.05 else f"{advice.gain:.1f} × as fast"


# names


def plain(name: str) -> str:
    """Return a name chosen by a client, with a visible character for each that could not be seen or written.

    >>> plain("a\\nb\\x1b[31m\\udcff")
    'a␊b␛[31m\N{REPLACEMENT CHARACTER}'
    """
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _visible(char) for char in name)


def _visible(character: str) -> str:
    code = ord(character)
    return chr(_CONTROL_PICTURES + code) if code < ord(" ") else "\N{REPLACEMENT CHARACTER}"


def shortened(name: str, limit: int) -> str:
    """Return a name of at most `limit` characters: the middle of a longer one is left out.

    >>> shortened("a-rather-long-name", 10), shortened("short", 10)
    ('a-rat…name', 'short')
    """
    if len(name) <= limit:
        return name
    end = (limit - 1) // 2
    return f"{name[: limit - 1 - end]}…{name[len(name) - end :]}"


class Names:
    """Names of queues, groups and exchanges, with their virtual host only if there are several."""

    def __init__(self, findings: Findings) -> None:
        hosts = {account.vhost for account in findings.queues}
        self._with_host = len(hosts) > 1

    def queue(self, place: Place) -> str:
        """`orders`; `orders.0, group billing`; `shop: orders`."""
        group = f", group {plain(place.reader)}" if place.reader else ""
        return f"{self.thing(place.vhost, place.queue)}{group}"

    def end(self, vhost: str, kind: str, name: str) -> str:
        """Return the name of one end of a flow; outcomes have no virtual host."""
        if kind == "returned":
            return "returned"
        if kind == "ended":
            return plain(name)
        shown = self.thing(vhost, name or ("default exchange" if kind == "exchange" else "no name"))
        return f"group {shown}" if kind == "group" else shown

    def thing(self, vhost: str, name: str) -> str:
        return f"{plain(vhost)}: {plain(name)}" if self._with_host and vhost else plain(name)


# holders, missed deadlines, slow stretches


def holder(hole: Hole) -> str:
    return consumer(hole.held_by) or ("nobody" if hole.state == "ready" else "not known")


def consumer(label: str) -> str:
    """Return the name of a consumer as it is shown, from its label."""
    return plain(name_of(label))


def missed(findings: Findings) -> list[QueueAccount]:
    """Return the accounts with missed deadlines, the one with most first."""
    return sorted((account for account in findings.queues if account.late), key=lambda account: -account.late)


def slowest(findings: Findings) -> list[Slowest]:
    """Return the slowest stretch of each queue and stage, the slowest first."""
    worst: dict[tuple[str, str, str, Stage], Slowest] = {}
    for slow in _stages(findings):
        key = (slow.latency.vhost, slow.latency.queue, slow.latency.reader, slow.stage)
        if key not in worst or _p99(slow) > _p99(worst[key]):
            worst[key] = slow
    return sorted(worst.values(), key=_p99, reverse=True)


def _stages(findings: Findings) -> Iterator[Slowest]:
    for latency in findings.latencies:
        for stage in STAGES:
            percentiles = stage.of(latency)
            if percentiles[-1] is not None:
                yield Slowest(latency, stage, percentiles)


def _p99(slow: Slowest) -> float:
    return slow.percentiles[-1] or 0.0
