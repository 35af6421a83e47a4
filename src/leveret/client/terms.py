"""How a listener works: the arguments of `@app.listener`, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from leveret.client.idempotence import Seen
from leveret.client.recoverers import Recoverer, RejectAndDontRequeue
from leveret.client.retry import Retry

AckMode = Literal["auto", "manual", "none"]
PREFETCH: Final = 250


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
