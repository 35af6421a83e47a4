"""What may go: a pure function of segments, what is unsettled in them, and a policy. It touches nothing.

A queue's log keeps a segment until every message in it is settled, and for the audit window after that. A
stream's log (`keep_settled`) keeps messages by age and bytes, settled or not. What is over a limit is settled
first, with the outcome `retention` (`Store.retire`), except what somebody is at work on, which keeps its
segment; a segment without anything unsettled goes with the next checkpoint. Sealed segments of a queue of
which little is left are rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from leveret.storage.segment import SegmentInfo

REWRITE_BELOW = 0.1
"""A sealed segment with a smaller share of live messages than this is rewritten."""


class Retention(NamedTuple):
    """How long a log keeps messages. The default is a queue's: until they are settled."""

    keep_settled: bool = False
    max_age_us: int | None = None
    max_bytes: int | None = None
    audit_us: int = 0
    segment_bytes: int = 0
    """How large its files grow; 0 leaves it to the store. Messages go by whole files."""

    @property
    def is_timed(self) -> bool:
        """Whether something may go though nothing has happened but the passing of time."""
        return self.max_age_us is not None or self.audit_us > 0

    @property
    def keeps_dead(self) -> bool:
        """Whether a message that everybody has settled must still be written."""
        return self.keep_settled or self.audit_us > 0


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment as the cursors see it."""

    info: SegmentInfo
    unsettled: int
    """Messages in it that some cursor has not settled."""
    sealed: bool = True
    """Nothing is appended to it any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the segments of one log."""

    delete: list[SegmentInfo] = field(default_factory=list)
    expire: list[SegmentInfo] = field(default_factory=list)
    """Over a limit, and not settled: what waits in them is to be, with the outcome `retention`."""
    rewrite: list[SegmentInfo] = field(default_factory=list)
    settled: list[SegmentInfo] = field(default_factory=list)
    """Fully settled for the first time: their audit window begins."""


def plan(segments: Sequence[SegmentView], policy: Retention, now_us: int) -> Plan:
    """`segments` ascend by offset."""
    return (
        _plan_stream(segments, policy, now_us)
        if policy.keep_settled
        else _plan_queue(segments, policy, now_us)
    )


def _plan_queue(segments: Sequence[SegmentView], policy: Retention, now_us: int) -> Plan:
    result = Plan()
    for view in segments:
        info = view.info
        if view.unsettled == 0:
            if not policy.audit_us or (info.settled_us and info.settled_us + policy.audit_us <= now_us):
                result.delete.append(info)
            elif not info.settled_us:
                result.settled.append(info)
        elif view.sealed and not policy.audit_us and view.unsettled < REWRITE_BELOW * info.rows:
            result.rewrite.append(info)
    return result


def _plan_stream(segments: Sequence[SegmentView], policy: Retention, now_us: int) -> Plan:
    result = Plan()
    excess = sum(view.info.length_bytes for view in segments) - policy.max_bytes if policy.max_bytes else 0
    for view in segments:
        info = view.info
        too_old = policy.max_age_us is not None and info.newest_us + policy.max_age_us <= now_us
        if too_old or (view.sealed and excess > 0):
            excess -= info.length_bytes
            (result.expire if view.unsettled else result.delete).append(info)
    return result
