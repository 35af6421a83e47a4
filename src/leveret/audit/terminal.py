"""The results of an audit for a terminal: the verdict, the queues, and what has something to say.

Owns what is said and how much of it: a list has at most `MOST_ROWS` rows here, the rest is in the report. How
a table looks on a screen of some width is left to who prints it (`cli.pages`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from leveret.audit.findings import Findings, MessageFound, QueueAccount
from leveret.audit.wording import (
    DONE,
    Names,
    age,
    consumer,
    counted,
    duration,
    gain,
    holder,
    missed,
    moment,
    offsets,
    plain,
    reservation,
    share,
    shortened,
    slowest,
    verdict,
)

MOST_ROWS: Final = 10
_NAME_LENGTH: Final = 40
_REASON_LENGTH: Final = 60

Row: TypeAlias = Sequence[str | int]


class Part(NamedTuple):
    """A sentence, a table perhaps, and what was left out of it.

    for part in summary(findings):
        page.line(part.title)
        if part.rows:
            page.table(part.columns, part.rows)
        if part.more:
            page.line(part.more)
    """

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    more: str = ""


def summary(findings: Findings) -> list[Part]:
    """What to print, in this order; the first one is the verdict."""
    names = Names(findings)
    parts = [Part(verdict(findings), more=reservation(findings))]
    if findings.queues:
        parts.append(_queues(findings, names))
    for section in _SECTIONS:
        parts.extend(section(findings, names))
    return parts


def _queues(findings: Findings, names: Names) -> Part:
    """Those in which something is wrong come first, then the largest."""
    order = sorted(findings.queues, key=lambda each: (-each.lost - each.doubled, -each.published))
    columns = ("queue", "published", "confirmed", "delivered", "done", "otherwise", "ready", "in flight")
    rows = [_queue(each, names) for each in order]
    return _cut("Queues and groups", (*columns, "lost", "doubled"), rows)


def _queue(account: QueueAccount, names: Names) -> Row:
    done = account.outcomes.get(DONE, 0)
    return (
        shortened(names.queue(account), _NAME_LENGTH),
        account.published,
        account.confirmed,
        account.delivered,
        done,
        sum(account.outcomes.values()) - done,
        "–" if account.is_kept else account.ready,
        account.in_flight,
        account.lost,
        account.doubled,
    )


def _lost(findings: Findings, names: Names) -> Iterator[Part]:
    for title, found, count in (
        ("Lost", findings.lost, findings.lost_count),
        ("Doubled", findings.doubled, findings.doubled_count),
    ):
        if count:
            rows = [_message(each, names) for each in found]
            columns = ("queue", "offset", "what", "published", "delivered to", "how")
            yield _cut(f"{title}: {counted(count, 'message')}", columns, rows, count)


def _loops(findings: Findings, names: Names) -> Iterator[Part]:
    if findings.loops:
        columns = ("queue", "offset", "what", "published", "last delivered to", "how")
        rows = [_message(each, names) for each in findings.loops]
        yield _cut("Redelivery loops", columns, rows, findings.loops_count)


def _message(found: MessageFound, names: Names) -> Row:
    return (
        shortened(names.queue(found), _NAME_LENGTH),
        found.offset,
        _short(found.what),
        moment(found.published),
        _short(consumer(found.delivered_to)),
        _short(found.outcome),
    )


def _holes(findings: Findings, names: Names) -> Iterator[Part]:
    if findings.holes:
        rows = [
            (
                shortened(names.queue(each), _NAME_LENGTH),
                offsets(each),
                each.state,
                shortened(holder(each), _NAME_LENGTH),
                moment(each.since),
                age(each.since, findings.taken),
                each.deliveries,
            )
            for each in findings.holes
        ]
        columns = ("queue", "offsets", "state", "held by", "since", "for", "deliveries")
        yield _cut("Holes: not settled though later messages are", columns, rows, findings.holes_count)


def _deadlines(findings: Findings, names: Names) -> Iterator[Part]:
    late = missed(findings)
    if late:
        rows = [
            (
                shortened(names.queue(each), _NAME_LENGTH),
                each.late,
                each.deliveries,
                share(each.late, each.deliveries),
            )
            for each in late
        ]
        yield _cut("Deadlines missed", ("queue", "too late", "of", "share"), rows)


def _dead_letters(findings: Findings, names: Names) -> Iterator[Part]:
    found = sorted(findings.dead_letters, key=lambda each: -each.messages)
    if found:
        rows = [
            (
                shortened(names.queue(each), _NAME_LENGTH),
                each.messages,
                _short(each.outcome),
                _short(each.reason, _REASON_LENGTH),
            )
            for each in found
        ]
        yield _cut("Dead letters", ("queue", "messages", "how", "reason"), rows)


def _returned(findings: Findings, names: Names) -> Iterator[Part]:
    found = sorted(findings.returned.items(), key=lambda each: -each[1])
    if found:
        rows = [(_short(name or "default exchange"), count) for name, count in found]
        yield _cut("Returned, because no queue took them", ("exchange", "messages"), rows)


def _times(findings: Findings, names: Names) -> Iterator[Part]:
    found = slowest(findings)
    if found:
        rows: list[Row] = [
            (
                shortened(names.queue(each.latency), _NAME_LENGTH),
                each.stage.name,
                *map(duration, each.percentiles),
                moment(each.latency.at),
            )
            for each in found
        ]
        title = f"The slowest {duration(findings.stretch_s * 1000)} of each queue"
        yield _cut(title, ("queue", "from", "p50", "p95", "p99", "beginning"), rows)


def _advice(findings: Findings, names: Names) -> Iterator[Part]:
    if findings.advice:
        most_gain = sorted(findings.advice, key=lambda each: -each.gain)
        rows = [
            (
                _short(each.consumer),
                shortened(names.queue(each), _NAME_LENGTH),
                each.prefetch,
                gain(each),
                plain(each.why),
            )
            for each in most_gain
        ]
        yield _cut("Advice on prefetch", ("consumer", "queue", "prefetch", "would be", "because"), rows)


def _damage(findings: Findings, names: Names) -> Iterator[Part]:
    if findings.damage:
        yield _cut("Damage", ("could not be read",), [(plain(each),) for each in findings.damage])


_SECTIONS: Final[tuple[Callable[[Findings, Names], Iterator[Part]], ...]] = (
    _lost,
    _damage,
    _holes,
    _loops,
    _deadlines,
    _dead_letters,
    _returned,
    _times,
    _advice,
)


def _cut(title: str, columns: Sequence[str], rows: Sequence[Row], count: int | None = None) -> Part:
    """`count`: how many there are, where `rows` are only some of them."""
    left = (len(rows) if count is None else count) - min(len(rows), MOST_ROWS)
    return Part(title, columns, rows[:MOST_ROWS], f"and {left:,} more in the report" if left > 0 else "")


def _short(name: str, limit: int = _NAME_LENGTH) -> str:
    return shortened(plain(name), limit) if name else "–"
