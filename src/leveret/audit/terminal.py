"""The results of an audit for a terminal: the verdict, the queues, and every list that is not empty.

This module owns what is printed and how much: a list has at most `ROWS_MAX` rows, and the report has the
rest. The caller lays out the tables (`cli.tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from leveret.audit.findings import Findings, MessageFound, QueueAccount
from leveret.audit.wording import (
    DONE,
    PERCENTILES,
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

ROWS_MAX: Final = 10
_NAME_LENGTH: Final = 40
_REASON_LENGTH: Final = 60

Row: TypeAlias = Sequence[str | int]


class Part(NamedTuple):
    """A title, a table if it has rows, and a sentence about rows that were left out.

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
    """Return what to print, in this order; the first part is the verdict."""
    names = Names(findings)
    lists = [
        _queues(findings, names),
        _messages("Lost", findings.lost, findings.lost_count, names),
        _messages("Doubled", findings.doubled, findings.doubled_count, names),
        _cut("Damage", ("could not be read",), [(plain(sentence),) for sentence in findings.damage]),
        _holes(findings, names),
        _loops(findings, names),
        _deadlines(findings, names),
        _dead_letters(findings, names),
        _returned(findings),
        _slowest(findings, names),
        _advice(findings, names),
    ]
    verdict_part = Part(verdict(findings), more=reservation(findings))
    return [verdict_part, *(part for part in lists if part.rows or part.more)]


def _queues(findings: Findings, names: Names) -> Part:
    """Return the table of queues: those with lost or doubled messages come first, then the largest."""
    order = sorted(findings.queues, key=lambda account: (-account.lost - account.doubled, -account.published))
    columns = ("queue", "published", "confirmed", "delivered", "done", "otherwise", "ready", "in flight")
    rows = [_queue(account, names) for account in order]
    return _cut("Queues and groups", (*columns, "lost", "doubled"), rows)


def _queue(account: QueueAccount, names: Names) -> Row:
    done = account.outcomes.get(DONE, 0)
    return (
        _short(names.queue(account)),
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


def _messages(title: str, messages: Sequence[MessageFound], count: int, names: Names) -> Part:
    columns = ("queue", "offset", "what", "published", "delivered to", "how")
    rows = [_message(message, names) for message in messages]
    return _cut(f"{title}: {counted(count, 'message')}", columns, rows, count)


def _loops(findings: Findings, names: Names) -> Part:
    columns = ("queue", "offset", "what", "published", "last delivered to", "how")
    rows = [_message(message, names) for message in findings.loops]
    return _cut("Redelivery loops", columns, rows, findings.loops_count)


def _message(message: MessageFound, names: Names) -> Row:
    return (
        _short(names.queue(message)),
        message.offset,
        _short(message.what),
        moment(message.published),
        _short(consumer(message.delivered_to)),
        _short(message.outcome),
    )


def _holes(findings: Findings, names: Names) -> Part:
    rows = [
        (
            _short(names.queue(hole)),
            offsets(hole),
            hole.state,
            _short(holder(hole)),
            moment(hole.since),
            age(hole.since, findings.taken),
            hole.deliveries,
        )
        for hole in findings.holes
    ]
    columns = ("queue", "offsets", "state", "held by", "since", "for", "deliveries")
    return _cut("Holes: not settled although later messages are", columns, rows, findings.holes_count)


def _deadlines(findings: Findings, names: Names) -> Part:
    rows = [
        (
            _short(names.queue(account)),
            account.late,
            account.deliveries,
            share(account.late, account.deliveries),
        )
        for account in missed(findings)
    ]
    return _cut("Deadlines missed", ("queue", "too late", "of", "share"), rows)


def _dead_letters(findings: Findings, names: Names) -> Part:
    rows = [
        (
            _short(names.queue(group)),
            group.messages,
            _short(group.outcome),
            _short(group.reason, _REASON_LENGTH),
        )
        for group in sorted(findings.dead_letters, key=lambda group: -group.messages)
    ]
    return _cut("Dead letters", ("queue", "messages", "how", "reason"), rows)


def _returned(findings: Findings) -> Part:
    by_exchange = sorted(findings.returned.items(), key=lambda item: -item[1])
    rows = [(_short(name or "default exchange"), count) for name, count in by_exchange]
    return _cut("Returned, because no queue took them", ("exchange", "messages"), rows)


def _slowest(findings: Findings, names: Names) -> Part:
    rows: list[Row] = [
        (
            _short(names.queue(slow.latency)),
            slow.stage.name,
            *map(duration, slow.percentiles),
            moment(slow.latency.at),
        )
        for slow in slowest(findings)
    ]
    title = f"The slowest {duration(findings.stretch_s * 1000)} of each queue"
    return _cut(title, ("queue", "from", *PERCENTILES, "beginning"), rows)


def _advice(findings: Findings, names: Names) -> Part:
    rows = [
        (
            _short(advice.consumer),
            _short(names.queue(advice)),
            advice.prefetch,
            gain(advice),
            plain(advice.why),
        )
        for advice in sorted(findings.advice, key=lambda advice: -advice.gain)
    ]
    return _cut("Advice on prefetch", ("consumer", "queue", "prefetch", "would be", "because"), rows)


def _cut(title: str, columns: Sequence[str], rows: Sequence[Row], count: int | None = None) -> Part:
    """Return a part with the first rows. `count` is the number of all rows, if the audit knows more."""
    left = (len(rows) if count is None else count) - min(len(rows), ROWS_MAX)
    return Part(title, columns, rows[:ROWS_MAX], f"and {left:,} more in the report" if left > 0 else "")


def _short(name: str, limit: int = _NAME_LENGTH) -> str:
    return shortened(plain(name), limit) if name else "–"
