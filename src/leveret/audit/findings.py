"""The findings of an audit: figures and lists, small however many messages there are.

`tables` makes them from the table of messages, `terminal` and `report` show them, and `results` writes them
as JSON. The rule: `holds` is true only when no message is lost or doubled and no file is damaged.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class QueueAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, or one group over a partition of a topic."""

    vhost: str
    queue: str
    reader: str
    """Empty for the queue itself; the name of the group otherwise."""
    audited: bool
    """Whether the queue has an audit window; without one, settlements are forgotten soon."""
    published: int
    """Known messages; for a group, the messages that it has read or has yet to read."""
    confirmed: int
    """Persistent messages that were on disk, so that the broker could confirm them."""
    delivered: int
    """Messages that were delivered at least once."""
    deliveries: int
    returns: int
    """Deliveries that came back: requeued, timed out, or lost with their connection."""
    late: int
    """Deliveries that missed their deadline."""
    outcomes: dict[str, int]
    """Settled messages by outcome: acked, rejected, dead lettered, expired, dropped, purged, sent to rejects,
    skipped, retention, restart, damaged, before the window.
    """
    ready: int
    in_flight: int
    lost: int
    doubled: int
    gone: int
    """Messages that a restart removed and that were never confirmed, such as transient ones."""
    stream: bool = False
    """Whether the queue is a stream, which keeps messages after they were read and counts them as `ready`."""

    @property
    def is_kept(self) -> bool:
        """Whether this is the account of a stream itself, whose messages wait for no consumer."""
        return self.stream and not self.reader


class MessageFound(msgspec.Struct, frozen=True, kw_only=True):
    """One message that is lost, doubled, or delivered again and again."""

    vhost: str
    queue: str
    reader: str
    offset: int
    what: str
    """`lost`, `settled as done 2 times`, `in the log 2 times`, `in the table 2 times`, `delivered 17 times`.
    """
    published: datetime | None = None
    delivered_to: str = ""
    settled: datetime | None = None
    outcome: str = ""


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are not settled although later ones are."""

    vhost: str
    queue: str
    reader: str
    start: int
    stop: int
    """Offsets from `start` up to, not including, `stop`."""
    state: str
    """`in flight` or `ready`."""
    held_by: str
    """The consumer that holds the messages; empty if they are ready."""
    since: datetime | None
    deliveries: int
    """The highest number of deliveries of one of the messages."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds of the messages that one queue received in one stretch of time."""

    vhost: str
    queue: str
    reader: str
    at: datetime
    """The begin of the stretch; all stretches are `Findings.stretch_s` long."""
    messages: int
    confirm_ms: tuple[float | None, float | None, float | None]
    """p50, p95, p99 from publish to confirm; None if unknown."""
    delivery_ms: tuple[float | None, float | None, float | None]
    """From publish to first delivery."""
    settle_ms: tuple[float | None, float | None, float | None]
    """From publish to settlement."""


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one queue with one outcome and reason, other than done."""

    vhost: str
    queue: str
    reader: str
    outcome: str
    reason: str
    messages: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that went from one place to another."""

    vhost: str
    from_kind: str
    """`exchange`, `queue`."""
    from_name: str
    to_kind: str
    """`queue`, `consumer`, `group`, `ended` (`to_name` is the outcome), `returned` (to the publisher)."""
    to_name: str
    """If there are very many consumers, those with fewest messages are merged as `others`."""
    messages: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a consumer, and the prefetch that suits it."""

    vhost: str
    queue: str
    reader: str
    consumer: str
    messages: int
    rate: float
    """Messages per second while the consumer was working."""
    hold_ms: tuple[float, float, float]
    """From delivery to settlement: p1, p50, p95."""
    work_ms: float
    """Estimated time of work on one message."""
    round_trip_ms: float
    round_trip_measured: bool
    """False if the caller assumed the round trip."""
    in_flight: float
    """Deliveries that the consumer held at a time, on average."""
    prefetch: int
    """The advised prefetch."""
    gain: float
    """Estimated speed with the advised prefetch, relative to now."""
    why: str
    """The reason, as a sentence."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one audit."""

    source: str
    """`the broker at localhost:5672`, `the data directory /backup/leveret`."""
    taken: datetime
    """The moment up to which everything is included."""
    took_s: float
    stretch_s: float
    """The length of the stretches of `latencies`: a round time, chosen to have about sixty of them."""
    queues: list[QueueAccount]
    returned: dict[str, int]
    """Messages that no queue took since the audit window began, by their exchange."""
    lost: list[MessageFound]
    """The first lost messages; `queues` has the number of all."""
    doubled: list[MessageFound]
    doubled_in_table: int = 0
    """The number of messages that are doubled in the table of a pipeline."""
    loops: list[MessageFound]
    """The messages with most deliveries."""
    loops_count: int
    """The number of all messages in redelivery loops."""
    holes: list[Hole]
    """The first holes; `holes_count` is the number of all."""
    holes_count: int
    latencies: list[Latency]
    dead_letters: list[DeadLetters]
    """The most frequent reasons; `queues` has the number of all messages."""
    flows: list[Flow]
    advice: list[Advice]
    damage: list[str]
    """Sentences about files that could not be read as they were written."""
    table: str
    """The path of the table of messages."""

    @property
    def lost_count(self) -> int:
        return sum(account.lost for account in self.queues)

    @property
    def doubled_count(self) -> int:
        return sum(account.doubled for account in self.queues) + self.doubled_in_table

    @property
    def holds(self) -> bool:
        return not (self.lost_count or self.doubled_count or self.damage)
