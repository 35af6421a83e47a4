"""Options of a listener: the arguments of `@app.listener` and `@app.group_listener`, and their checks."""

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
    """`Batch(100, 0.5)`: up to 100 messages, or as many as came 0.5 s after the first."""

    size: int
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or self.seconds < 0:
            raise ValueError("a batch must have a size of at least 1, and seconds of at least 0")


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """`ListenerOptions(ack="manual", prefetch=10)`."""

    ack: AckMode = "auto"
    prefetch: int = PREFETCH
    """The most unsettled deliveries. With ack="none": the most waiting ones before reading stops."""
    concurrency: int = 1
    """The most calls of the handler, or batches, at the same time."""
    retry: Retry | None = None
    """None: a failed message is requeued, more and more slowly."""
    recoverer: Recoverer = field(default_factory=RejectAndDontRequeue)
    timeout_s: float | None = None
    """A call that takes longer has failed."""
    ack_timeout_s: float = 60.0
    """How long after its handler returned a manual delivery may stay unsettled before it is reported."""
    idempotence: Seen | None = None
    batch: Batch | None = None
    member: Membership | None = None
    """The group as whose member the listener consumes, if any."""

    def __post_init__(self) -> None:
        if self.ack not in ("auto", "manual", "none"):
            raise ValueError(f"ack is 'auto', 'manual' or 'none', not {self.ack!r}")
        if self.prefetch < 1 or self.concurrency < 1:
            raise ValueError("prefetch and concurrency must be at least 1")
        if (self.timeout_s is not None and self.timeout_s <= 0) or self.ack_timeout_s <= 0:
            raise ValueError("timeout_s and ack_timeout_s must be above 0")
        if self.batch is not None and self.prefetch < self.batch.size:
            sentence = f"a batch of {self.batch.size} is never full with a prefetch of {self.prefetch}"
            raise ValueError(sentence)
        if self.member is not None and self.ack == "none":
            raise ValueError("a group needs acks for its progress: ack is 'auto' or 'manual', not 'none'")
        if self.is_orderly and self.batch is not None:
            raise ValueError("in orderly mode there is one message of a partition at a time: no batches")

    @property
    def is_orderly(self) -> bool:
        return self.member is not None and self.member.mode == "orderly"

    @property
    def attempts_max(self) -> int | None:
        """Attempts after which the broker dead-letters a message. None if the recoverer does the same."""
        if self.member is None or isinstance(self.recoverer, RejectAndDontRequeue):
            return None
        return self.member.attempts_max


def group_prefetch(concurrency: int, batch: Batch | None) -> int:
    """Return the default prefetch of a group's listener: twice what its handlers work on.

    It is small because `consume_timeout_s` runs while a delivery waits for a handler.
    """
    prefetch = 2 * concurrency * (1 if batch is None else batch.size)
    return min(max(prefetch, _GROUP_PREFETCH_MIN), PREFETCH_MAX)
