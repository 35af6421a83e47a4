"""Which segments are deleted, expired or rewritten: a pure function of segments and a retention policy.

A queue's log keeps a segment until all its messages are settled, and for the audit window after that. Sealed
segments of a queue with few unsettled messages are rewritten. A stream's log (`keep_settled`) keeps messages
by age and bytes, settled or not. Messages over its limits are settled with the outcome `retention`
(`Store.retire`). Carrying out the plan is left to `checkpointer.py` and `store.py`.

The rule: no segment with an unsettled message is deleted.
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
    """Size at which a segment is full; 0 for the store's default. Messages are deleted by whole segments."""

    @property
    def is_timed(self) -> bool:
        """Whether segments may be deleted merely because time has passed."""
        return self.max_age_us is not None or self.audit_us > 0

    @property
    def keeps_dead(self) -> bool:
        """Whether messages that all cursors have settled must still be written to segments."""
        return self.keep_settled or self.audit_us > 0


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment with the number of its unsettled messages."""

    info: SegmentInfo
    unsettled: int
    """Number of messages that at least one cursor has not settled."""
    sealed: bool = True
    """Whether nothing is appended to the segment any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments of one log to delete, to expire and to rewrite."""

    delete: list[SegmentInfo] = field(default_factory=list)
    expire: list[SegmentInfo] = field(default_factory=list)
    """Over a limit, but unsettled: ready and delayed messages must be settled with outcome `retention`."""
    rewrite: list[SegmentInfo] = field(default_factory=list)
    settled: list[SegmentInfo] = field(default_factory=list)
    """Found fully settled for the first time: their audit window begins now."""


def plan(segments: Sequence[SegmentView], policy: Retention, now_us: int) -> Plan:
    """Return the plan for the segments of a log, given in ascending order."""
    plan_log = _plan_stream if policy.keep_settled else _plan_queue
    return plan_log(segments, policy, now_us)


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
