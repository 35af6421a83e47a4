"""The verdict: compares what was observed on several sides with what is expected.

Pure functions from `Observations` to checks, each of which prints its figures whether they are right or
wrong. The publishers' receipts, the workers' own records, the contents of queues and table, and the
findings of the audit must agree. The rule: every figure was counted, and a check holds only by comparing
figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.cli.demo.orders import MALFORMED, NEGATIVE, UNROUTABLE
from leveret.cli.demo.topology import DEAD, GROUP, LAKE, PARTITIONS, REJECTS, TOPIC, WORK

if TYPE_CHECKING:
    from leveret.audit.findings import Findings, QueueAccount
    from leveret.cli.demo.publishers import Receipts

_INVALID_COUNT = MALFORMED + NEGATIVE
_CONSUMER_NAME = re.compile(r"-> \S+ (.+) \(consuming\)")
_ACKED = "acked"
_DEAD_LETTERED = "dead lettered"
_SENT_TO_REJECTS = "sent to rejects"


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison of the verdict, with its figures as a sentence."""

    name: str
    said: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of expected orders and of those that were found."""

    expected: int
    found: int
    missing: int
    unexpected: int
    again: int
    """Number of repetitions of orders that were found more than once."""

    @classmethod
    def of(cls, expected: Set[int], found: Counter[int]) -> Tally:
        missing = len(expected - found.keys())
        unexpected = len(found) - (len(expected) - missing)
        return cls(len(expected), len(found), missing, unexpected, found.total() - len(found))

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected)

    @property
    def exact(self) -> bool:
        return self.complete and not self.again

    def __str__(self) -> str:
        deviations = (self.missing, "missing"), (self.unexpected, "unexpected"), (self.again, "again")
        counts = (f", {count:,} {kind}" for count, kind in deviations if count)
        return f"{self.found:,} of {self.expected:,}{''.join(counts)}"


def by_reason(expected: Mapping[str, Set[int]], found: Mapping[str, Counter[int]]) -> dict[str, Tally]:
    """Return a tally for each expected or found reason, so that a wrong reason shows as unexpected."""
    return {
        reason: Tally.of(expected.get(reason, frozenset()), found.get(reason, Counter()))
        for reason in sorted(expected.keys() | found.keys())
    }


@dataclass(frozen=True, slots=True)
class QueueResult:
    """What became of the queue `work`: from the workers' records and from the queues."""

    done: Tally
    dead: dict[str, Tally]
    """By reason."""
    left: int
    """Messages still in the queue, ready or unacked."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of the topic: from the members' records and from the broker."""

    done: Tally
    hangs: tuple[str, ...]
    """The members that have recorded that they hang."""
    stored: int
    """Messages in the topic."""
    lag: int
    """Messages not settled by the group."""
    holders: tuple[str, ...]
    """For each partition with messages in flight, the member that holds the lowest one."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What became of the queue `lake`: the pipeline's table and its rejects."""

    table: Tally
    rejected: dict[str, Tally]
    """By reason."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything that the verdict compares."""

    orders: int
    receipts: Receipts
    work: QueueResult
    group: GroupResult
    waiting: int
    """Messages in the queue `lake`."""
    pipeline: PipelineResult | None = None
    findings: Findings | None = None

    @property
    def routable(self) -> int:
        return self.orders - UNROUTABLE


def checks(seen: Observations) -> list[Check]:
    """Return the checks; those of table and audit need Spark."""
    results = [published(seen), work(seen)]
    if seen.pipeline is None:
        results.append(kept(seen))
    else:
        results += [table(seen.pipeline), rejects(seen.pipeline)]
    results.append(hole(seen))
    if seen.findings is None:
        return results
    audited = (accounted, settled, lost, twice, audited_hole)
    return [*results, *(check(seen, seen.findings) for check in audited)]


def sentence(checks: Sequence[Check], *, with_spark: bool) -> str:
    failed = [check.name for check in checks if not check.holds]
    if failed:
        return f"Verdict: {len(failed)} of {len(checks)} checks failed: {', '.join(failed)}."
    if with_spark:
        return "Verdict: every message is accounted for: none lost, none doubled, one hole, its holder known."
    return "Verdict: everything counted without Spark is right: one hole, its holder known."


# --- with and without Spark ------------------------------------------------------------------------------


def published(seen: Observations) -> Check:
    counts = seen.receipts
    as_planned = (counts.confirmed, counts.returned) == (seen.routable, UNROUTABLE)
    text = (
        f"{counts.confirmed:,} confirmed + {counts.returned:,} returned = {counts.total:,} "
        f"of {seen.orders:,} sent; {counts.nacked:,} nacked, {counts.lost:,} lost"
    )
    return Check("published", text, as_planned and not (counts.nacked or counts.lost))


def work(seen: Observations) -> Check:
    result = seen.work
    text = f"{result.done.found:,} orders done; dead letters: {_reasons(result.dead)}; {result.left:,} left"
    if result.done.again:
        text += f"; {result.done.again:,} done again, because a kill came between work and ack"
    if not result.done.complete:
        text += f" (done: {result.done})"
    return Check("work", text, result.done.complete and _all_exact(result.dead) and not result.left)


def kept(seen: Observations) -> Check:
    holds = seen.waiting == seen.group.stored == seen.routable
    text = f"{seen.waiting:,} orders wait in '{LAKE}' for a pipeline, {seen.group.stored:,} are in the topic"
    return Check("kept", text, holds)


def hole(seen: Observations) -> Check:
    """Check the hole as the broker reports it."""
    result = seen.group
    holds = result.done.complete and result.lag == 1 and _is_held_by(result.holders, result.hangs)
    by = ", ".join(map(_consumer_name, result.holders)) or "nobody"
    text = f"orders done: {result.done}; {result.lag:,} of {result.stored:,} not settled, held by {by}"
    return Check("group", f"{text}{_hanging_members(result)}", holds)


# --- the pipeline ----------------------------------------------------------------------------------------


def table(pipeline: PipelineResult) -> Check:
    rows = pipeline.table.found + pipeline.table.again
    return Check("table", f"{rows:,} rows; valid orders: {pipeline.table}", pipeline.table.exact)


def rejects(pipeline: PipelineResult) -> Check:
    return Check("rejects", _reasons(pipeline.rejected), _all_exact(pipeline.rejected))


# --- the audit -------------------------------------------------------------------------------------------


def accounted(seen: Observations, findings: Findings) -> Check:
    """Check that the audit counts as many messages as the publishers have receipts for."""
    known = {
        name: _sum(findings, lambda account: account.confirmed, queues)
        for name, queues in (
            (WORK, {(WORK, "")}),
            (LAKE, {(LAKE, "")}),
            (TOPIC, {(name, "") for name in PARTITIONS}),
        )
    }
    returned = sum(findings.returned.values())
    result = seen.receipts
    holds = set(known.values()) == {result.confirmed} and returned == result.returned
    text = ", ".join(f"{name} {count:,}" for name, count in known.items())
    verdict = "matches the receipts" if holds else f"receipts: {result.confirmed:,} and {result.returned:,}"
    return Check("audit", f"confirmed: {text}; returned: {returned:,}; {verdict}", holds)


def settled(seen: Observations, findings: Findings) -> Check:
    """Check that each message has the expected outcome."""
    outcomes = (
        _outcomes(findings, {(WORK, "")}),
        _outcomes(findings, {(LAKE, "")}),
        _outcomes(findings, {(name, GROUP) for name in PARTITIONS}),
    )
    valid = seen.routable - _INVALID_COUNT
    expected = (
        {_ACKED: valid, _DEAD_LETTERED: _INVALID_COUNT},
        {_ACKED: valid, _SENT_TO_REJECTS: _INVALID_COUNT},
        {_ACKED: seen.routable - 1},
    )
    ready = [_sum(findings, lambda account: account.ready, {(name, "")}) for name in (DEAD, REJECTS)]
    text = "; ".join(
        f"{name}: {', '.join(f'{count:,} {outcome}' for outcome, count in counts.items()) or 'none'}"
        for name, counts in zip((WORK, LAKE, GROUP), outcomes, strict=True)
    )
    return Check("settled", text, outcomes == expected and ready == [_INVALID_COUNT] * 2)


def lost(seen: Observations, findings: Findings) -> Check:
    damage = f", {len(findings.damage):,} damaged" if findings.damage else ""
    confirmed = sum(account.confirmed for account in findings.queues)
    holds = not (findings.lost_count or findings.damage)
    return Check("none lost", f"{findings.lost_count:,} lost of {confirmed:,} confirmed{damage}", holds)


def twice(seen: Observations, findings: Findings) -> Check:
    text = f"{findings.doubled_count:,} stored twice, settled as done twice, or twice in the table"
    return Check("none twice", text, not findings.doubled_count)


def audited_hole(seen: Observations, findings: Findings) -> Check:
    """Check the hole as the audit reports it."""
    holders = tuple(hole.held_by for hole in findings.holes)
    size = sum(hole.stop - hole.start for hole in findings.holes)
    text = ", ".join(
        f"message {hole.start:,} of {hole.queue}, {hole.state}, held by "
        f"{_consumer_name(hole.held_by) or 'nobody'}"
        for hole in findings.holes[:3]
    )
    in_group = all(hole.reader == GROUP for hole in findings.holes)
    holds = findings.holes_count == size == 1 and in_group and _is_held_by(holders, seen.group.hangs)
    text = f"{findings.holes_count:,}: {text or 'none'}{_hanging_members(seen.group)}"
    return Check("one hole", text, holds)


def _reasons(tallies: Mapping[str, Tally]) -> str:
    return ", ".join(f"'{reason}' {tally}" for reason, tally in tallies.items()) or "none"


def _all_exact(tallies: Mapping[str, Tally]) -> bool:
    return all(tally.exact for tally in tallies.values())


def _is_held_by(holders: Sequence[str], hangs: Sequence[str]) -> bool:
    """Return whether the one holder is a member that hangs. Other members may have hung before the crash."""
    return len(holders) == 1 and _consumer_name(holders[0]) in hangs


def _consumer_name(holder: str) -> str:
    """Return the connection's name from the broker's long name of a consumer."""
    match = _CONSUMER_NAME.search(holder)
    return holder if match is None else match[1]


def _hanging_members(group: GroupResult) -> str:
    return f"; hanging by its own record: {' and '.join(group.hangs) or 'no member'}"


def _accounts(findings: Findings, queues: Set[tuple[str, str]]) -> list[QueueAccount]:
    return [account for account in findings.queues if (account.queue, account.reader) in queues]


def _sum(findings: Findings, figure: Callable[[QueueAccount], int], queues: Set[tuple[str, str]]) -> int:
    return sum(figure(account) for account in _accounts(findings, queues))


def _outcomes(findings: Findings, queues: Set[tuple[str, str]]) -> dict[str, int]:
    outcomes: Counter[str] = Counter()
    for account in _accounts(findings, queues):
        outcomes.update(account.outcomes)
    return dict(outcomes)
