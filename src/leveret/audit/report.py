"""The report of an audit: one HTML file that needs nothing else, with the verdict first.

This module prepares sums, charts and rows of tables. `templates/report.html` has the sections, their order
and their sentences; Jinja2 escapes every value. The rule: the file fetches nothing over a network and runs no
script. Its content security policy enforces that, even if a hostile name should ever become markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leveret import __version__
from leveret.audit import diagram, plots, wording
from leveret.audit.consumer_names import address_of
from leveret.audit.findings import Advice, Findings, Hole, MessageFound, QueueAccount
from leveret.audit.latencies import charts
from leveret.audit.page_elements import Cell, Table, drawn, figure, named, table
from leveret.audit.wording import DONE, Names, Tone, duration, moment, tone

_BAR_ORDER: Final = ("well", "neutral", "attention", "lost")
_MARKS: Final = {"well": "✓", "lost": "✗", "attention": "!"}

Row = tuple[Cell | str | int, ...]


class Total(NamedTuple):
    """A figure of the section "At a glance"."""

    name: str
    messages: int
    tone: Tone = "neutral"


def html(findings: Findings) -> str:
    """Return the whole file, to be written as UTF-8.

    Path("audit.html").write_text(report.html(findings), encoding="utf-8")
    """
    names = Names(findings)
    tone_ = _tone(findings)
    template = _environment().get_template("report.html")
    page: str = template.render(
        findings=findings,
        version=__version__,
        verdict=wording.verdict(findings),
        reservation=wording.reservation(findings),
        tone=tone_,
        mark=_MARKS[tone_],
        totals=list(_totals(findings)),
        lost=_messages("Lost messages", findings.lost, findings.lost_count, names),
        doubled=_messages("Doubled messages", findings.doubled, findings.doubled_count, names),
        queues=_queues(findings, names),
        holes=_holes(findings, names),
        loops=_messages("Redelivery loops", findings.loops, findings.loops_count, names, last="last "),
        deadlines=_deadlines(findings, names),
        latencies=charts(findings, names),
        slowest=_slowest(findings, names),
        dead_letters=_dead_letters(findings, names),
        returned=_returned(findings),
        diagram=diagram.flows(findings),
        flows=_flows(findings, names),
        advice=_advice(findings, names),
        damage=table(
            "Damaged files", ("file that could not be read",), [(file,) for file in findings.damage]
        ),
    )
    return page


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("leveret.audit"),
        autoescape=True,
        finalize=_readable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "moment": moment, "shortened": wording.shortened}
    return environment


def _readable(value: object) -> object:
    """Return a template's value as it is written; text is escaped afterwards.

    >>> _readable(1200), _readable(2.5), _readable(30.0), _readable("a\\nb")
    ('1,200', '2.5', '30', 'a␊b')
    """
    if isinstance(value, str):
        return value if isinstance(value, Markup) else wording.plain(value)
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else value


def _tone(findings: Findings) -> Tone:
    if findings.holds:
        return "well"
    return "lost" if findings.lost_count or findings.doubled_count else "attention"


def _totals(findings: Findings) -> Iterator[Total]:
    """Yield the figures at a glance.

    Messages ready in queues, ready for groups and kept in streams are three figures, never one sum.
    """
    own = [account for account in findings.queues if not account.reader]
    groups = [account for account in findings.queues if account.reader]
    streams = [account for account in own if account.stream]
    set_aside = sum(map(_set_aside, findings.queues))
    returned = sum(findings.returned.values())
    yield Total("published", sum(account.published for account in own))
    yield Total("confirmed", sum(account.confirmed for account in own))
    yield Total("returned", returned, "attention" if returned else "neutral")
    yield Total("done", sum(account.outcomes.get(DONE, 0) for account in findings.queues))
    yield Total("set aside", set_aside, "attention" if set_aside else "neutral")
    yield Total("ready", sum(account.ready for account in own if not account.stream))
    if groups:
        yield Total("ready for groups", sum(account.ready for account in groups))
    if streams:
        yield Total("kept in streams", sum(account.ready for account in streams))
    yield Total("in flight", sum(account.in_flight for account in findings.queues))
    yield Total("lost", findings.lost_count, "lost" if findings.lost_count else "neutral")
    yield Total("doubled", findings.doubled_count, "lost" if findings.doubled_count else "neutral")


def _set_aside(account: QueueAccount) -> int:
    return sum(count for outcome, count in account.outcomes.items() if tone(outcome) == "attention")


# tables


def _messages(
    label: str, messages: Sequence[MessageFound], count: int, names: Names, *, last: str = ""
) -> Table:
    columns = ("queue", "offset", "what", "published", f"{last}delivered to", "settled", "how")
    return table(label, columns, [_message(message, names) for message in messages], count)


def _message(message: MessageFound, names: Names) -> Row:
    return (
        names.queue(message),
        message.offset,
        message.what,
        moment(message.published),
        named(wording.consumer(message.delivered_to) or "–", address_of(message.delivered_to)),
        moment(message.settled),
        message.outcome or "–",
    )


def _queues(findings: Findings, names: Names) -> Table:
    counts = ("published", "confirmed", "delivered", "done", "ready", "in flight", "lost", "doubled")
    wrong_first = sorted(findings.queues, key=lambda account: not (account.lost or account.doubled))
    rows = [_queue(account, names) for account in wrong_first]
    return table("Queues and groups", ("queue", *counts, "what became of them"), rows)


def _queue(account: QueueAccount, names: Names) -> Row:
    group = f"group {account.reader}" if account.reader else ""
    no_window = "" if account.audited else "no audit window"
    redeliveries = account.deliveries - account.delivered
    return (
        named(names.thing(account.vhost, account.queue), group, no_window),
        account.published,
        account.confirmed,
        figure(f"{account.delivered:,}", f"{redeliveries:,} again" if redeliveries > 0 else ""),
        account.outcomes.get(DONE, 0),
        figure("–") if account.is_kept else account.ready,
        account.in_flight,
        _wrong(account.lost),
        _wrong(account.doubled),
        drawn(_fate(account)),
    )


def _wrong(count: int) -> Cell:
    return figure(f"{count:,}", emphasis="lost" if count else None)


def _fate(account: QueueAccount) -> plots.Bar:
    parts = [
        *(plots.Part(outcome, count, tone(outcome)) for outcome, count in account.outcomes.items()),
        plots.Part("kept" if account.is_kept else "ready", account.ready, "neutral"),
        plots.Part("in flight", account.in_flight, "neutral"),
        plots.Part("gone", account.gone, "neutral"),
        plots.Part("lost", account.lost, "lost"),
    ]
    return plots.shares(sorted(parts, key=lambda part: _BAR_ORDER.index(part.tone)))


def _holes(findings: Findings, names: Names) -> Table:
    columns = ("queue", "offsets", "messages", "state", "held by", "since", "for", "deliveries")
    rows = [_hole(hole, findings, names) for hole in findings.holes]
    return table("Holes and who holds them", columns, rows, findings.holes_count)


def _hole(hole: Hole, findings: Findings, names: Names) -> Row:
    return (
        names.queue(hole),
        figure(wording.offsets(hole)),
        hole.stop - hole.start,
        hole.state,
        named(wording.holder(hole), address_of(hole.held_by)),
        moment(hole.since),
        figure(wording.age(hole.since, findings.taken)),
        hole.deliveries,
    )


def _deadlines(findings: Findings, names: Names) -> Table:
    rows: list[Row] = [
        (
            names.queue(queue),
            queue.late,
            queue.deliveries,
            figure(wording.share(queue.late, queue.deliveries)),
        )
        for queue in wording.missed(findings)
    ]
    return table("Deadlines missed", ("queue", "deliveries too late", "of", "share"), rows)


def _slowest(findings: Findings, names: Names) -> Table:
    rows: list[Row] = [
        (
            names.queue(slow.latency),
            slow.stage.name,
            *(figure(duration(value)) for value in slow.percentiles),
            moment(slow.latency.at),
            slow.latency.messages,
        )
        for slow in wording.slowest(findings)
    ]
    columns = ("queue", "from", *wording.PERCENTILES, "in the stretch from", "messages")
    return table("The slowest stretch of each queue as a table", columns, rows)


def _dead_letters(findings: Findings, names: Names) -> Table:
    dead_letters = sorted(findings.dead_letters, key=lambda group: -group.messages)
    rows: list[Row] = [
        (
            names.queue(group),
            group.outcome,
            group.reason or "–",
            group.messages,
            drawn(plots.size(group.messages, dead_letters[0].messages, tone(group.outcome))),
        )
        for group in dead_letters
    ]
    return table("Dead letters", ("queue", "how it ended", "reason", "messages", ""), rows)


def _returned(findings: Findings) -> Table:
    most = max(findings.returned.values(), default=0)
    rows: list[Row] = [
        (name or "default exchange", count, drawn(plots.size(count, most, "attention")))
        for name, count in sorted(findings.returned.items(), key=lambda returned: -returned[1])
    ]
    return table("Returned messages", ("exchange", "messages", ""), rows)


def _flows(findings: Findings, names: Names) -> Table:
    rows: list[Row] = [
        (
            names.end(flow.vhost, flow.from_kind, flow.from_name),
            flow.from_kind,
            names.end(flow.vhost, flow.to_kind, flow.to_name),
            flow.to_kind,
            flow.messages,
        )
        for flow in sorted(findings.flows, key=lambda flow: -flow.messages)
    ]
    return table("The flows as a table", ("from", "which is", "to", "which is", "messages"), rows)


def _advice(findings: Findings, names: Names) -> Table:
    columns = ("consumer", "messages", "a second", "holds one for", "works", "round trip", "in hand")
    rows = [_advised(advice, names) for advice in findings.advice]
    return table("Advice on prefetch", (*columns, "prefetch", "would be", "because"), rows)


def _advised(advice: Advice, names: Names) -> Row:
    p1, p50, p95 = map(duration, advice.hold_ms)
    return (
        named(advice.consumer, names.queue(advice)),
        advice.messages,
        figure(f"{advice.rate:,.{0 if advice.rate >= 100 else 1}f}"),
        figure(p50, f"{p1} to {p95}"),
        figure(duration(advice.work_ms)),
        figure(duration(advice.round_trip_ms) + ("" if advice.round_trip_measured else " *")),
        figure(f"{advice.in_flight:,.1f}"),
        figure(f"{advice.prefetch:,}", emphasis="neutral"),
        wording.gain(advice),
        advice.why,
    )
