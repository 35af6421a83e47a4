"""The report of an audit: one HTML file that needs nothing else, with the verdict first.

Owns which sections there are, their order and their sentences. Their form is left to `elements` and `looks`,
drawings to `plots` and `diagram`, escaping to `markup`. The rule: the file asks for nothing over any network
and runs no script, which its content security policy keeps even if a name should get through as markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret import __version__
from leveret.audit import diagram, plots
from leveret.audit.consumer_names import address_of
from leveret.audit.findings import Advice, Findings, Hole, MessageFound, QueueAccount
from leveret.audit.latencies import latencies
from leveret.audit.markup import Safe, joined, tag
from leveret.audit.page_elements import (
    Drawn,
    Figure,
    Row,
    Section,
    contents,
    folded,
    lead,
    named,
    none,
    section,
    table,
    tiles,
    words,
)
from leveret.audit.style_sheet import STYLE
from leveret.audit.wording import (
    DONE,
    GLOSSARY,
    Names,
    Tone,
    age,
    consumer,
    duration,
    gain,
    holder,
    missed,
    moment,
    offsets,
    reservation,
    share,
    tone,
    verdict,
)

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_TONES: Final = ("well", "neutral", "attention", "lost")
"""The order of a bar's parts."""


def html(findings: Findings) -> str:
    """The whole file, to be written as UTF-8.

    Path("audit.html").write_text(report.html(findings), encoding="utf-8")
    """
    said = verdict(findings)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"Audit: {said}"),
        tag("style", Safe(STYLE)),
    )
    names = Names(findings)
    wrong, sections = list(_lost_and_doubled(findings, names)), list(_sections(findings, names))
    below = (each.written() for each in sections)
    main = tag("main", *(each.written() for each in wrong), contents(sections), *below)
    body = tag("body", _header(findings, said), main, _footer(findings))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(findings: Findings, names: Names) -> Iterator[Section]:
    yield _figures(findings)
    yield _queues(findings, names)
    yield _holes(findings, names)
    yield _loops(findings, names)
    yield _deadlines(findings, names)
    yield latencies(findings, names)
    yield _dead_letters(findings, names)
    yield _flows(findings, names)
    yield _advice(findings, names)
    yield _evidence(findings)
    yield section("words", "How to read the figures", words(GLOSSARY))


# the top


def _header(findings: Findings, said: str) -> Safe:
    tone_: Tone = "well" if findings.holds else "lost" if _wrong(findings) else "attention"
    mark = {"well": "✓", "lost": "✗"}.get(tone_, "!")
    note = reservation(findings)
    about = f"Audit of {findings.source}, {moment(findings.taken)} UTC"
    return tag(
        "header",
        tag("p", about, class_="about"),
        tag(
            "div",
            tag("span", mark, class_="mark", aria_hidden="true"),
            tag("div", tag("h1", said), *([tag("p", note, class_="note")] if note else [])),
            class_=f"verdict {tone_}",
        ),
    )


def _wrong(findings: Findings) -> int:
    return findings.lost_count + findings.doubled_count


def _lost_and_doubled(findings: Findings, names: Names) -> Iterator[Section]:
    """Directly below the verdict, if there are any."""
    columns = ("queue", "offset", "what", "published", "delivered to", "settled", "how")
    for anchor, title, found, count in (
        ("lost", "Lost messages", findings.lost, findings.lost_count),
        ("doubled", "Doubled messages", findings.doubled, findings.doubled_count),
    ):
        if count:
            rows = [_message(each, names) for each in found]
            listed = [table(title, columns, rows)] if rows else []
            yield section(anchor, title, *listed, *_more(count - len(found), findings))


def _more(count: int, findings: Findings) -> Iterator[Safe]:
    if count > 0:
        said = f"{count:,} more are in the table of messages: "
        yield tag("p", said, tag("code", findings.table), class_="note")


def _message(found: MessageFound, names: Names) -> Row:
    return (
        names.queue(found),
        found.offset,
        found.what,
        moment(found.published),
        named(consumer(found.delivered_to) or "–", address_of(found.delivered_to)),
        moment(found.settled),
        found.outcome or "–",
    )


def _figures(findings: Findings) -> Section:
    own = [each for each in findings.queues if not each.reader]
    done = sum(each.outcomes.get(DONE, 0) for each in findings.queues)
    aside = sum(map(_set_aside, findings.queues))
    lost, doubled, returned = findings.lost_count, findings.doubled_count, sum(findings.returned.values())
    found: list[tuple[str, int, Tone]] = [
        ("published", sum(each.published for each in own), "neutral"),
        ("confirmed", sum(each.confirmed for each in own), "neutral"),
        ("returned", returned, "attention" if returned else "neutral"),
        ("done", done, "neutral"),
        ("set aside", aside, "attention" if aside else "neutral"),
        *_waiting(findings),
        ("in flight", sum(each.in_flight for each in findings.queues), "neutral"),
        ("lost", lost, "lost" if lost else "neutral"),
        ("doubled", doubled, "lost" if doubled else "neutral"),
    ]
    about = "A message counts once in each queue that took it, and once for each group that reads it."
    several = len(findings.queues) > 1
    return section("figures", "At a glance", *([lead(about)] if several else []), tiles(found))


def _waiting(findings: Findings) -> Iterator[tuple[str, int, Tone]]:
    """What waits in queues, what waits for groups, and what streams keep: three figures, never one sum."""
    groups = [each for each in findings.queues if each.reader]
    streams = [each for each in findings.queues if each.is_kept]
    queues = (each.ready for each in findings.queues if not each.reader and not each.stream)
    yield "ready", sum(queues), "neutral"
    if groups:
        yield "ready for groups", sum(each.ready for each in groups), "neutral"
    if streams:
        yield "kept in streams", sum(each.ready for each in streams), "neutral"


# queues and what is wrong in them


def _set_aside(account: QueueAccount) -> int:
    return sum(count for outcome, count in account.outcomes.items() if tone(outcome) == "attention")


def _queues(findings: Findings, names: Names) -> Section:
    if not findings.queues:
        return section("queues", "Queues and groups", none("There are no queues."))
    columns = (
        "queue",
        "published",
        "confirmed",
        "delivered",
        "done",
        "ready",
        "in flight",
        "lost",
        "doubled",
    )
    wrong_first = sorted(findings.queues, key=lambda each: not (each.lost or each.doubled))
    rows = [_queue(each, names) for each in wrong_first]
    return section(
        "queues", "Queues and groups", table("Queues and groups", (*columns, "what became of them"), rows)
    )


def _queue(account: QueueAccount, names: Names) -> Row:
    group = f"group {account.reader}" if account.reader else ""
    blind = "" if account.audited else "no audit window"
    again = account.deliveries - account.delivered
    return (
        named(names.thing(account.vhost, account.queue), group, blind),
        account.published,
        account.confirmed,
        Figure(named(f"{account.delivered:,}", f"{again:,} again" if again > 0 else "")),
        account.outcomes.get(DONE, 0),
        Figure("–") if account.is_kept else account.ready,
        account.in_flight,
        _marked(account.lost),
        _marked(account.doubled),
        _fate(account),
    )


def _marked(count: int) -> Figure:
    return Figure(tag("strong", f"{count:,}", class_="lost") if count else "0")


def _fate(account: QueueAccount) -> Drawn:
    """What became of the messages: as a bar, and in words below it."""
    parts = [plots.Part(outcome, count, tone(outcome)) for outcome, count in account.outcomes.items()]
    parts += [
        plots.Part("kept" if account.is_kept else "ready", account.ready, "neutral"),
        plots.Part("in flight", account.in_flight, "neutral"),
        plots.Part("gone", account.gone, "neutral"),
        plots.Part("lost", account.lost, "lost"),
    ]
    there = sorted((each for each in parts if each.messages), key=lambda each: _TONES.index(each.tone))
    keys = (tag("span", f"{each.name} {each.messages:,} ", class_=f"key {each.tone}") for each in there)
    return Drawn(joined([plots.shares(there), tag("span", *keys, class_="soft")]))


def _holes(findings: Findings, names: Names) -> Section:
    title = "Holes and who holds them"
    if not findings.holes:
        return section(
            "holes", title, none("There are none: nothing waits that later messages have overtaken.")
        )
    columns = ("queue", "offsets", "messages", "state", "held by", "since", "for", "deliveries")
    rows = [_hole(each, findings, names) for each in findings.holes]
    about = lead("Messages that are not settled though later ones are; how long is counted to the audit.")
    more = _more(findings.holes_count - len(rows), findings)
    return section("holes", title, about, table(title, columns, rows), *more)


def _hole(hole: Hole, findings: Findings, names: Names) -> Row:
    return (
        names.queue(hole),
        Figure(offsets(hole)),
        hole.stop - hole.start,
        hole.state,
        named(holder(hole), address_of(hole.held_by)),
        moment(hole.since),
        Figure(age(hole.since, findings.taken)),
        hole.deliveries,
    )


def _loops(findings: Findings, names: Names) -> Section:
    title = "Redelivery loops"
    if not findings.loops:
        return section("loops", title, none("There are none: no message was delivered again and again."))
    columns = ("queue", "offset", "what", "published", "last delivered to", "settled", "how")
    rows = [_message(each, names) for each in findings.loops]
    more = _more(findings.loops_count - len(rows), findings)
    return section("loops", title, table(title, columns, rows), *more)


def _deadlines(findings: Findings, names: Names) -> Section:
    title = "Deadlines missed"
    late = missed(findings)
    if not late:
        return section("deadlines", title, none("There are none: every answer came in time."))
    rows = [
        (names.queue(each), each.late, each.deliveries, Figure(share(each.late, each.deliveries)))
        for each in late
    ]
    columns = ("queue", "deliveries too late", "of", "share")
    return section("deadlines", title, table(title, columns, rows))


# where they went


def _dead_letters(findings: Findings, names: Names) -> Section:
    title = "Set aside and returned"
    body = [*_set_aside_table(findings, names), *_returned(findings)]
    nothing = none("There are none: no message was set aside, and none came back to its publisher.")
    return section("dead-letters", title, *(body or [nothing]))


def _set_aside_table(findings: Findings, names: Names) -> Iterator[Safe]:
    found = sorted(findings.dead_letters, key=lambda each: -each.messages)
    if found:
        most = found[0].messages
        rows = [
            (
                names.queue(each),
                each.outcome,
                each.reason or "–",
                each.messages,
                Drawn(plots.size(each.messages, most, tone(each.outcome))),
            )
            for each in found
        ]
        yield tag("h3", "Dead letters by queue and reason")
        yield table("Dead letters", ("queue", "how it ended", "reason", "messages", ""), rows)


def _returned(findings: Findings) -> Iterator[Safe]:
    found = sorted(findings.returned.items(), key=lambda each: -each[1])
    if found:
        most = found[0][1]
        rows = [
            (name or "default exchange", count, Drawn(plots.size(count, most, "attention")))
            for name, count in found
        ]
        yield tag("h3", "Returned, because no queue took them")
        yield table("Returned messages", ("exchange", "messages", ""), rows)


def _flows(findings: Findings, names: Names) -> Section:
    title = "Where messages went"
    if not findings.flows:
        return section("flows", title, none("Nothing is known."))
    drawing = tag(
        "div", diagram.flows(findings), class_="scroll", role="region", aria_label=title, tabindex="0"
    )
    rows = [
        (
            names.end(each.vhost, each.from_kind, each.from_name),
            each.from_kind,
            names.end(each.vhost, each.to_kind, each.to_name),
            each.to_kind,
            each.messages,
        )
        for each in sorted(findings.flows, key=lambda each: -each.messages)
    ]
    listed = folded("The same as a table", ("from", "which is", "to", "which is", "messages"), rows)
    return section("flows", title, lead("The wider, the more messages."), drawing, listed)


def _advice(findings: Findings, names: Names) -> Section:
    title = "Advice on prefetch"
    if not findings.advice:
        return section("advice", title, none("No consumer settled enough to say anything."))
    about = lead(
        "How many messages a consumer should have in hand, so that it neither waits for the next one nor "
        "keeps more from others than it needs. Estimated from what it did; a star marks a round trip that "
        "was assumed."
    )
    columns = ("consumer", "messages", "a second", "holds one for", "works", "round trip", "in hand")
    rows = [_advised(each, names) for each in findings.advice]
    return section("advice", title, about, table(title, (*columns, "prefetch", "would be", "because"), rows))


def _advised(advice: Advice, names: Names) -> Row:
    p1, p50, p95 = map(duration, advice.hold_ms)
    return (
        named(advice.consumer, names.queue(advice)),
        advice.messages,
        Figure(f"{advice.rate:,.{0 if advice.rate >= 100 else 1}f}"),
        Figure(named(p50, f"{p1} to {p95}")),
        Figure(duration(advice.work_ms)),
        Figure(duration(advice.round_trip_ms) + ("" if advice.round_trip_measured else " *")),
        Figure(f"{advice.in_flight:,.1f}"),
        Figure(tag("strong", f"{advice.prefetch:,}")),
        gain(advice),
        advice.why,
    )


# the bottom


def _evidence(findings: Findings) -> Section:
    title = "What it was found in"
    damage = none("All files could be read.")
    if findings.damage:
        damage = table(
            "Files that could not be read",
            ("file that could not be read as it was written",),
            [(each,) for each in findings.damage],
        )
    where = tag(
        "p",
        "Every message is a row of the table ",
        tag("code", findings.table),
        ", which Spark and everything else that knows parquet can read.",
    )
    return section("evidence", title, where, damage)


def _footer(findings: Findings) -> Safe:
    took = duration(findings.took_s * 1000)
    return tag("footer", f"Leveret {__version__}. The audit took {took}. Times are UTC.")
