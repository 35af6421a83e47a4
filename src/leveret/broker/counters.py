"""What happened since the start, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.deaths import Reason


@dataclass(slots=True)
class Counters:
    published: int = 0
    deduplicated: int = 0
    """Publishes that a queue had stored already: once for each such queue."""
    stale_acks: int = 0
    """Settlements by members of groups that came too late, and were refused."""
    damaged: int = 0
    """Damaged things that were found in files."""
    nacked: Counter[str] = field(default_factory=Counter)
    """Publishes, by the reason."""
    dead: Counter[str] = field(default_factory=Counter)
    """Messages, by the reason."""

    def died(self, reason: Reason, count: int) -> None:
        self.dead[reason.value] += count
