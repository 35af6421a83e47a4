"""How a listener works: the arguments of `@app.listener` and `@app.group_listener`, checked when given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from leveret.client.extra_consumers import PREFETCH_MAX
from leveret.client.idempotence import Seen
from leveret.client.membership import Membership
from leveret.client.recoverers import Recoverer, RejectAndDontRequeue
from leveret.client.retry import Retry

AckMode = Literal["auto", "manual", "none"]
PREFETCH: Final = 250
_GROUP_PREFETCH_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """So many messages, or what there is after so many seconds: `Batch(100, 0.5)`."""

    size: int
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.seconds < 0:
            raise ValueError("a batch has at least one message and waits at least 0 s")


@dataclass(frozen=True, slots=True)
class Terms:
    """`Terms(ack="manual", prefetch=10)`."""

    ack: AckMode = "auto"
    prefetch: int = PREFETCH
    """How many deliveries are here unsettled; with ack="none", how many wait before the socket is left
    alone.
    """
    concurrency: int = 1
    """How many calls of the handler, or batches, at the same time."""
    retry: Retry | None = None
    """None: what fails goes back to its queue, more and more slowly."""
    recoverer: Recoverer = field(default_factory=RejectAndDontRequeue)
    timeout_s: float | None = None
    """A call that takes longer has failed."""
    ack_timeout_s: float = 60.0
    """A manual delivery that is not settled so long after its handler returned is reported."""
    idempotence: Seen | None = None
    batch: Batch | None = None
    member: Membership | None = None
    """Of which group, if it consumes as a member of one."""

    def __post_init__(self) -> None:
        if self.ack not in ("auto", "manual", "none"):
            raise ValueError(f"ack is 'auto', 'manual' or 'none', not {self.ack!r}")
        if self.prefetch < 1 or self.concurrency < 1:
            raise ValueError("prefetch and concurrency are at least 1: what is in hand must be bounded")
        if (self.timeout_s is not None and self.timeout_s <= 0) or self.ack_timeout_s <= 0:
            raise ValueError("a deadline is above 0 s")
        if self.batch is not None and self.prefetch < self.batch.size:
            sentence = f"a batch of {self.batch.size} is never full with a prefetch of {self.prefetch}"
            raise ValueError(sentence)
        if self.member is not None and self.ack == "none":
            raise ValueError("a group keeps account of what is done: ack is 'auto' or 'manual', not 'none'")
        if self.is_orderly and self.batch is not None:
            raise ValueError("in orderly mode there is one message of a partition at a time: no batches")

    @property
    def is_orderly(self) -> bool:
        return self.member is not None and self.member.mode == "orderly"

    @property
    def attempts_max(self) -> int | None:
        """When the broker makes a dead letter of a message, and the recoverer has something else in mind."""
        if self.member is None or isinstance(self.recoverer, RejectAndDontRequeue):
            return None
        return self.member.attempts_max


def group_prefetch(concurrency: int, batch: Batch | None) -> int:
    """Little more than is worked on: in a group a delivery's time (`consume_timeout_s`) runs while it waits
    here.
    """
    wanted = 2 * concurrency * (1 if batch is None else batch.size)
    return min(max(wanted, _GROUP_PREFETCH_MIN), PREFETCH_MAX)
