"""The settings of a queue at present, as one frozen object.

`declared_settings` (in `arguments`) reads the arguments of a declaration; `effective` adds the broker's own
defaults. Rules (message TTL, limits, dead letters, deadlines, delays) read `queue.settings` and nothing else.
The object is never changed: `Queue.change_settings` replaces it while the queue runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

DEFAULT_RETRY_MULTIPLIER: Final = 2.0
DEFAULT_DEDUP_WINDOW: Final = 100_000
_RETRY_WITHOUT_DELAY_MS: Final = 10_000
"""Delay before a timed-out delivery is retried, if the queue sets none: RocketMQ's level 3."""
_FIXED: Final = ("queue_type", "max_priority", "single_active_consumer", "dedup", "dedup_window")
_FIXED_FOR_AUDIT: Final = ("audit_us", "audit_bodies")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`queue.settings.message_ttl_ms`; None stands for no limit."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int = 0
    """0: the queue has no priorities."""
    single_active_consumer: bool = False
    queue_type: str = "classic"
    delivery_limit: int | None = None
    consumer_timeout_ms: int | None = None
    consumer_timeout_action: str = "cancel"
    retry_delay_ms: int | None = None
    retry_multiplier: float = DEFAULT_RETRY_MULTIPLIER
    retry_delay_max_ms: int | None = None
    kept_bytes: int | None = None
    """Retention size of a stream."""
    max_age_us: int | None = None
    segment_bytes: int | None = None
    dedup: bool = False
    dedup_window: int = DEFAULT_DEDUP_WINDOW
    audit_us: int = 0
    """Time for which the account of a message is kept after it is settled; 0: only as long as necessary."""
    audit_bodies: bool = False
    """Whether the message itself is kept for the same time."""

    @property
    def delays_returns(self) -> bool:
        return self.retry_delay_ms is not None

    @property
    def timeout_action(self) -> str:
        return self.consumer_timeout_action

    @property
    def is_limited(self) -> bool:
        """Whether the queue has a length limit of any kind."""
        return self.max_length is not None or self.max_length_bytes is not None

    @property
    def refuses_publishes(self) -> bool:
        """Whether a full queue refuses new messages instead of dropping old ones."""
        return self.is_limited and self.overflow != "drop-head"

    def retry_delay_after(self, returns: int) -> int:
        """Return the retry delay in milliseconds of a message that was requeued `returns` times before.

        >>> settings = QueueSettings(retry_delay_ms=100, retry_multiplier=2.0, retry_delay_max_ms=500)
        >>> [settings.retry_delay_after(n) for n in range(5)]
        [100, 200, 400, 500, 500]
        """
        first_ms = self.retry_delay_ms if self.retry_delay_ms is not None else _RETRY_WITHOUT_DELAY_MS
        max_ms = self.retry_delay_max_ms if self.retry_delay_max_ms is not None else 1 << 40
        try:
            return int(min(first_ms * self.retry_multiplier**returns, max_ms))
        except OverflowError:
            return max_ms

    def fixed(self) -> tuple[object, ...]:
        """Return the settings that can't change while the queue exists: its log and consumers need them."""
        return tuple(getattr(self, name) for name in (*_FIXED, *_FIXED_FOR_AUDIT))


def effective(declared: QueueSettings, *, consumer_timeout_ms: int) -> QueueSettings:
    """Return the settings of a queue: the declared ones, completed by the broker's defaults."""
    if declared.consumer_timeout_ms is not None:
        return declared
    return replace(declared, consumer_timeout_ms=consumer_timeout_ms)
