"""The verdict: what was seen from several sides, and whether it is what must be.

Pure functions from `Seen` to checks, each of which says its figures whether they are right or not. What the
publishers were told, what workers wrote down, what is in the queues and in the table, and what the audit has
found must agree. The rule: a figure is one that was counted, and a check holds only by comparing figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.cli.demo.orders import TORN, UNPAID, UNROUTABLE
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, TOPIC, WORK

if TYPE_CHECKING:
    from leveret.audit.findings import Findings, QueueAccount
    from leveret.cli.demo.publishers import Receipts

_POISONOUS = TORN + UNPAID
_CONSUMER = re.compile(r"-> \S+ (.+) \(consuming\)")
_ACKED = "acked"
_DEAD_LETTERED = "dead lettered"
_SENT_TO_REJECTS = "sent to rejects"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    said: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """Orders that were looked for, and those that were found."""

    expected: int
    found: int
    missing: int
    unexpected: int
    again: int
    """Found more than once, all further times counted."""

    @classmethod
    def of(cls, expected: Set[int], found: Counter[int]) -> Tally:
        missing = len(expected - found.keys())
        return cls(
            len(expected),
            len(found),
            missing,
            len(found) - (len(expected) - missing),
            found.total() - len(found),
        )

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected)

    @property
    def exact(self) -> bool:
        return self.complete and not self.again

    def __str__(self) -> str:
        said = f"{self.found:,} of {self.expected:,}"
        for count, what in (
            (self.missing, "missing"),
            (self.unexpected, "that should not be there"),
            (self.again, "again"),
        ):
            said += f", {count:,} {what}" if count else ""
        return said


def by_reason(expected: Mapping[str, Set[int]], found: Mapping[str, Counter[int]]) -> dict[str, Tally]:
    """A tally for each reason that there must be, or is: an order that is there for another one is wrong."""
    return {
        reason: Tally.of(expected.get(reason, frozenset()), found.get(reason, Counter()))
        for reason in sorted(expected.keys() | found.keys())
    }


@dataclass(frozen=True, slots=True)
class Worked:
    """What became of the queue `work`: by the workers' own account, and by looking into the queues."""

    done: Tally
    dead: dict[str, Tally]
    """By reason."""
    left: int
    """Messages that are still there, ready or in hand."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """What became of the topic: by the members' own account, and by asking the broker."""

    done: Tally
    hangs: tuple[str, ...]
    """The members that say that they hang."""
    stored: int
    """Messages in the topic."""
    lag: int
    """Messages that are not settled."""
    holders: tuple[str, ...]
    """Who has the lowest of them, in each partition that has one."""


@dataclass(frozen=True, slots=True)
class Piped:
    """What the pipeline has made of the queue `lake`."""

    table: Tally
    rejected: dict[str, Tally]
    """By reason."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All of it."""

    orders: int
    receipts: Receipts
    worked: Worked
    grouped: Grouped
    waiting: int
    """Messages in the queue `lake`."""
    piped: Piped | None = None
    findings: Findings | None = None

    @property
    def routable(self) -> int:
        return self.orders - UNROUTABLE


def checks(seen: Seen) -> list[Check]:
    """Without Spark there are neither table nor audit, and so no checks of them."""
    found = [published(seen), work(seen)]
    if seen.piped is None:
        found.append(kept(seen))
    else:
        found += [table(seen.piped), rejects(seen.piped)]
    found.append(hole(seen))
    if seen.findings is None:
        return found
    audited: Sequence[Callable[[Seen, Findings], Check]] = (accounted, settled, lost, twice, audited_hole)
    return [*found, *(check(seen, seen.findings) for check in audited)]


def sentence(checks: Sequence[Check], *, with_spark: bool) -> str:
    broken = [check.name for check in checks if not check.holds]
    if broken:
        return f"Verdict: {len(broken)} of {len(checks)} checks do not hold: {', '.join(broken)}."
    if with_spark:
        return "Verdict: every message is accounted for; none lost, none twice, one hole, and who holds it."
    return "Verdict: what can be counted without Spark is right; one hole, and who holds it."


# --- with and without Spark ------------------------------------------------------------------------------


def published(seen: Seen) -> Check:
    got = seen.receipts
    holds = (got.confirmed, got.returned, got.nacked, got.lost) == (seen.routable, UNROUTABLE, 0, 0)
    said = (
        f"{got.confirmed:,} confirmed + {got.returned:,} returned = {got.total:,} of {seen.orders:,} sent; "
        f"{got.nacked:,} refused, {got.lost:,} unknown"
    )
    return Check("published", said, holds)


def work(seen: Seen) -> Check:
    got = seen.worked
    said = f"{got.done.found:,} orders done; dead letters: {_reasons(got.dead)}; {got.left:,} left"
    if got.done.again:
        said += f"; {got.done.again:,} done again: a kill came between work and ack"
    if not got.done.complete:
        said += f" (done: {got.done})"
    return Check("work", said, got.done.complete and _all_exact(got.dead) and not got.left)


def kept(seen: Seen) -> Check:
    holds = seen.waiting == seen.grouped.stored == seen.routable
    said = (
        f"{seen.waiting:,} orders wait in '{LAKE}' for a pipeline, {seen.grouped.stored:,} are in the topic"
    )
    return Check("kept", said, holds)


def hole(seen: Seen) -> Check:
    """As the broker tells it."""
    got = seen.grouped
    holds = got.done.complete and got.lag == 1 and _is_held_by(got.holders, got.hangs)
    by = ", ".join(map(_name, got.holders)) or "nobody"
    said = f"orders done: {got.done}; {got.lag:,} of {got.stored:,} not settled, held by {by}"
    return Check("group", f"{said}{_own_word(got)}", holds)


# --- what the pipeline has done --------------------------------------------------------------------------


def table(piped: Piped) -> Check:
    rows = piped.table.found + piped.table.again
    return Check("table", f"{rows:,} rows; valid orders: {piped.table}", piped.table.exact)


def rejects(piped: Piped) -> Check:
    return Check("rejects", _reasons(piped.rejected), _all_exact(piped.rejected))


# --- what the audit has found ----------------------------------------------------------------------------


def accounted(seen: Seen, findings: Findings) -> Check:
    """The audit knows the messages that the publishers have receipts for."""
    known = {
        name: _sum(findings, lambda account: account.confirmed, queues)
        for name, queues in (
            (WORK, {(WORK, "")}),
            (LAKE, {(LAKE, "")}),
            (TOPIC, {(name, "") for name in PARTITIONS}),
        )
    }
    returned = sum(findings.returned.values())
    got = seen.receipts
    holds = set(known.values()) == {got.confirmed} and returned == got.returned
    said = ", ".join(f"{name} {count:,}" for name, count in known.items())
    told = "as the receipts say" if holds else f"but the receipts say {got.confirmed:,} and {got.returned:,}"
    return Check("audit", f"confirmed: {said}; returned: {returned:,}; {told}", holds)


def settled(seen: Seen, findings: Findings) -> Check:
    """Each message has come to the end that it must come to."""
    got = (
        _outcomes(findings, {(WORK, "")}),
        _outcomes(findings, {(LAKE, "")}),
        _outcomes(findings, {(name, GROUP) for name in PARTITIONS}),
    )
    valid = seen.routable - _POISONOUS
    wanted = (
        {_ACKED: valid, _DEAD_LETTERED: _POISONOUS},
        {_ACKED: valid, _SENT_TO_REJECTS: _POISONOUS},
        {_ACKED: seen.routable - 1},
    )
    still = [_sum(findings, lambda account: account.ready, {(name, "")}) for name in (DEAD, REJECTS)]
    said = "; ".join(
        f"{name}: {', '.join(f'{count:,} {how}' for how, count in outcomes.items()) or 'none'}"
        for name, outcomes in zip((WORK, LAKE, GROUP), got, strict=True)
    )
    return Check("settled", said, got == wanted and still == [_POISONOUS] * 2)


def lost(seen: Seen, findings: Findings) -> Check:
    damage = f", {len(findings.damage):,} damaged" if findings.damage else ""
    confirmed = sum(account.confirmed for account in findings.queues)
    holds = not (findings.lost_count or findings.damage)
    return Check("none lost", f"{findings.lost_count:,} lost of {confirmed:,} confirmed{damage}", holds)


def twice(seen: Seen, findings: Findings) -> Check:
    said = f"{findings.doubled_count:,} stored twice, settled as done twice, or twice in the table"
    return Check("none twice", said, not findings.doubled_count)


def audited_hole(seen: Seen, findings: Findings) -> Check:
    """As the audit tells it."""
    holders = tuple(hole.held_by for hole in findings.holes)
    size = sum(hole.stop - hole.start for hole in findings.holes)
    said = ", ".join(
        f"message {hole.start:,} of {hole.queue}, {hole.state}, held by {_name(hole.held_by) or 'nobody'}"
        for hole in findings.holes[:3]
    )
    in_group = all(hole.reader == GROUP for hole in findings.holes)
    holds = findings.holes_count == size == 1 and in_group and _is_held_by(holders, seen.grouped.hangs)
    return Check("one hole", f"{findings.holes_count:,}: {said or 'none'}{_own_word(seen.grouped)}", holds)


def _reasons(tallies: Mapping[str, Tally]) -> str:
    return ", ".join(f"'{reason}' {tally}" for reason, tally in tallies.items()) or "none"


def _all_exact(tallies: Mapping[str, Tally]) -> bool:
    return all(tally.exact for tally in tallies.values())


def _is_held_by(holders: Sequence[str], hangs: Sequence[str]) -> bool:
    """Another may hang on it too, since before the broker was killed: that one holds nothing any more."""
    return len(holders) == 1 and _name(holders[0]) in hangs


def _name(holder: str) -> str:
    """A consumer is known by addresses, name of the connection, channel and tag; people know the name."""
    found = _CONSUMER.search(holder)
    return holder if found is None else found[1]


def _own_word(grouped: Grouped) -> str:
    said = " and ".join(grouped.hangs) or "no member"
    return f"; {said} {'say that they hang' if len(grouped.hangs) > 1 else 'says that it hangs'}"


def _accounts(findings: Findings, queues: Set[tuple[str, str]]) -> list[QueueAccount]:
    return [account for account in findings.queues if (account.queue, account.reader) in queues]


def _sum(findings: Findings, figure: Callable[[QueueAccount], int], queues: Set[tuple[str, str]]) -> int:
    return sum(figure(account) for account in _accounts(findings, queues))


def _outcomes(findings: Findings, queues: Set[tuple[str, str]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for account in _accounts(findings, queues):
        found.update(account.outcomes)
    return dict(found)
