"""What an audit has found: figures and lists, small however many messages there are.

Made by `job` from the table of messages, shown by `terminal` and `report`, and written as JSON. The
rule: `holds` is said only when nothing is lost, nothing doubled, and nothing that was looked at is damaged.
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
    """Whether it has an audit window: without one, what was settled is forgotten soon."""
    published: int
    """Messages that are known of. Of a group: those it has to do with."""
    confirmed: int
    """Persistent messages that were on disk, so that their publisher could be told."""
    delivered: int
    """Messages that were delivered at least once."""
    deliveries: int
    returns: int
    """Deliveries that came back: requeued, timed out, lost with their connection."""
    late: int
    """Deliveries that missed their deadline."""
    outcomes: dict[str, int]
    """Settled messages by how: acked, rejected, dead lettered, expired, dropped, purged, sent to rejects,
    skipped, retention, restart, damaged, before the window.
    """
    ready: int
    in_flight: int
    lost: int
    doubled: int
    gone: int
    """Not there, and nobody was promised anything: transient messages that ended with a restart."""
    stream: bool = False
    """Whether messages are kept when they were read: then `ready` of the queue itself is what it keeps."""

    @property
    def is_kept(self) -> bool:
        """Whether this is a stream itself, whose messages wait for nobody."""
        return self.stream and not self.reader


class MessageFound(msgspec.Struct, frozen=True, kw_only=True):
    """One message by name: lost, doubled, or in a loop."""

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
    """Messages that are not settled though later ones are."""

    vhost: str
    queue: str
    reader: str
    start: int
    stop: int
    """Offsets from `start`, below `stop`."""
    state: str
    """`in flight` or `ready`."""
    held_by: str
    """The consumer that has it; empty if it is ready."""
    since: datetime | None
    deliveries: int
    """How often they were delivered, at most."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles in milliseconds of the messages that one queue got in one stretch of time."""

    vhost: str
    queue: str
    reader: str
    at: datetime
    """Where the stretch begins; all are `Findings.stretch_s` long."""
    messages: int
    confirm_ms: tuple[float | None, float | None, float | None]
    """p50, p95, p99 from publish to confirm; None where nothing is known."""
    delivery_ms: tuple[float | None, float | None, float | None]
    """From publish to first delivery."""
    settle_ms: tuple[float | None, float | None, float | None]
    """From publish to settlement."""


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that ended otherwise than as done."""

    vhost: str
    queue: str
    reader: str
    outcome: str
    reason: str
    messages: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """So many messages went from one thing to another."""

    vhost: str
    from_kind: str
    """`exchange`, `queue`."""
    from_name: str
    to_kind: str
    """`queue`, `consumer`, `group`, `ended` (otherwise than as done, by outcome), `returned` (to the
    publisher).
    """
    to_name: str
    """Consumers with few messages, where there are very many, are one that is called `others`."""
    messages: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer does with its time, and which prefetch suits it."""

    vhost: str
    queue: str
    reader: str
    consumer: str
    messages: int
    rate: float
    """Messages a second, while it was at work."""
    hold_ms: tuple[float, float, float]
    """From delivery to settlement: p1, p50, p95."""
    work_ms: float
    """What a message takes it, as estimated."""
    round_trip_ms: float
    round_trip_measured: bool
    """False where it is what the caller assumed."""
    in_flight: float
    """How many it had in hand, on average."""
    prefetch: int
    """What is advised."""
    gain: float
    """How much faster it would be, as estimated: 1.0 is as it is now."""
    why: str
    """One sentence."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    source: str
    """`the broker at localhost:5672`, `the data directory /backup/leveret`."""
    taken: datetime
    """What happened until then is in it."""
    took_s: float
    stretch_s: float
    """How long the stretches of `latencies` are: a round time, so that there are about sixty of them."""
    queues: list[QueueAccount]
    returned: dict[str, int]
    """Messages that no queue took, by the exchange that they were published to, since the window began."""
    lost: list[MessageFound]
    """The first ones, by name; how many there are in all is in `queues`."""
    doubled: list[MessageFound]
    doubled_in_table: int = 0
    """How many of them are doubled in the table of a pipeline."""
    loops: list[MessageFound]
    """Delivered again and again: those that were most often."""
    loops_count: int
    """How many there are."""
    holes: list[Hole]
    """The first ones."""
    holes_count: int
    latencies: list[Latency]
    dead_letters: list[DeadLetters]
    """By the reasons that most of them have; how many there are in all is in `queues`."""
    flows: list[Flow]
    advice: list[Advice]
    damage: list[str]
    """Files that could not be read as they were written."""
    table: str
    """Where the table of messages is."""

    @property
    def lost_count(self) -> int:
        return sum(each.lost for each in self.queues)

    @property
    def doubled_count(self) -> int:
        return sum(each.doubled for each in self.queues) + self.doubled_in_table

    @property
    def holds(self) -> bool:
        return not (self.lost_count or self.doubled_count or self.damage)
