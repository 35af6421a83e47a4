"""A group: one cursor per partition of a stream or topic, and the members that share the work.

Owns membership, and which member is served from which partition. In concurrent mode all members are served
from all partitions; in orderly mode each partition has one owner at a time. Clients decide nothing: a joining
or leaving member changes the assignment within the turn. A partition whose owner still has a message in
flight changes owners when that message is settled. The deliveries of a partition belong to `Partition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from leveret.broker.access import ownership
from leveret.broker.core import Core
from leveret.broker.errors import PreconditionFailed
from leveret.broker.groups.assignment import assign
from leveret.broker.groups.member import Member
from leveret.broker.groups.partition import Partition
from leveret.broker.groups.settings import ORDERLY, QUERY, Settings
from leveret.broker.queues import deadlines
from leveret.broker.queues.consumer import Consumer, Source
from leveret.broker.queues.deliverer import Deliverer
from leveret.broker.streams.readable import Readable
from leveret.broker.vhosts.destination import Destination

DEAD_LETTERS: Final = "%DLQ%"


class GroupHost(Protocol):
    """What groups need of their virtual host."""

    name: str

    @property
    def broker(self) -> Core: ...

    @property
    def queues(self) -> Mapping[str, Destination]: ...

    def add_lasting_queue(self, name: str) -> Destination:
        """Create a durable queue without arguments."""


class Group(Source):
    """`group.join(member)`; `group.partitions` are in the order of the topic."""

    def __init__(
        self,
        vhost: GroupHost,
        subject: str,
        name: str,
        *,
        number: int,
        settings: Settings,
        owner: str = ownership.NOBODY,
        epoch: int = 0,
    ) -> None:
        super().__init__(vhost.broker, vhost, name)
        self.host = vhost
        self.subject = subject
        """Name of the stream or topic that the group reads."""
        self.number = number
        self.settings = settings
        self.owner = owner
        self.epoch = epoch
        """Number of the present run, if the group belongs to a query."""
        self.partitions: dict[str, Partition] = {}
        self.members: dict[Member, None] = {}
        self.stale_acks = 0
        """Number of settlements that came too late and were refused."""
        self._handover_pending = False
        """Whether a partition is to change owners when its messages in flight are settled."""
        self._waiting_deliverers: dict[Deliverer, None] = {}
        """Keys: deliverers of partitions with ready messages but no credit, in the order of their turn."""

    def __str__(self) -> str:
        return f"group '{self.name}' on '{self.subject}' in vhost '{self.vhost.name}'"

    @property
    def cursor_name(self) -> str:
        return f"group-{self.number}"

    @property
    def timeout_us(self) -> int:
        """Timeout of deliveries; none in orderly mode, where no other member could get the message."""
        return 0 if self.settings.mode == ORDERLY else 1000 * self.settings.consume_timeout_ms

    def dead_letters(self) -> Destination:
        """Return the group's dead-letter queue; it is created for the first dead letter."""
        name = DEAD_LETTERS + self.name
        return self.host.queues.get(name) or self.host.add_lasting_queue(name)

    # partitions

    def add_partition(self, stream: Readable, *, start: int | None) -> Partition:
        """Add a partition with the group's existing cursor, or a new one that begins at `start`."""
        store = self.broker.store
        cursor = store.cursors(stream.log.id).get(self.cursor_name)
        # Aborted rows, and messages that retention will remove, are not for the new cursor.
        if cursor is None:
            cursor = store.create_cursor(
                stream.log,
                self.cursor_name,
                start=None if start is None else min(start, stream.log.next),
                audit_us=stream.settings.audit_us,
                label=self.name,
                visible_to=stream.cursor,
            )
        partition = self.partitions[stream.name] = Partition(self, stream, cursor)
        self._serve_members([partition])
        return partition

    def remove_partition(self, partition: Partition) -> None:
        partition.close()
        del self.partitions[partition.name]
        self._waiting_deliverers.pop(partition.deliverer, None)

    # members

    def has_member(self, member: Consumer) -> bool:
        return member in self.members

    def join(self, member: Member) -> None:
        self.members[member] = None
        self._serve_members(list(self.partitions.values()))

    def remove_consumer(self, consumer: Consumer) -> None:
        assert isinstance(consumer, Member)
        if consumer not in self.members:
            return
        del self.members[consumer]
        for partition in self.partitions.values():
            partition.stop_serving(consumer)
            if partition.owner is consumer:
                partition.owner = None
            partition.forget_departed()
        self._serve_members(list(self.partitions.values()))

    def _serve_members(self, partitions: Sequence[Partition]) -> None:
        if self.settings.mode == ORDERLY:
            self._assign()
            return
        for partition in partitions:
            for member in self.members:
                partition.serve(member)

    def _assign(self) -> None:
        """Give partitions to their new owners, except those with messages in flight, which follow later."""
        partitions = self.partitions.values()
        current = {partition.name: partition.owner for partition in partitions if partition.owner is not None}
        target = assign(list(self.partitions), list(self.members), current)
        self._handover_pending = False
        for name, partition in self.partitions.items():
            owner = target.get(name)
            if partition.owner is not owner and partition.cursor.in_flight:
                self._handover_pending = True
            elif partition.owner is not owner:
                if partition.owner is not None:
                    partition.stop_serving(partition.owner)
                partition.owner = owner
                if owner is not None:
                    partition.serve(owner)

    # delivery

    def wake_partition(self, deliverer: Deliverer) -> None:
        self._waiting_deliverers[deliverer] = None
        self.broker.wake(self)

    def note_without_credit(self, deliverer: Deliverer) -> None:
        self._waiting_deliverers[deliverer] = None

    def wake_without_credit(self) -> None:
        if self._waiting_deliverers or self._handover_pending:
            self.broker.wake(self)

    def run(self) -> None:
        """Serve partitions in turns while a member has credit."""
        if self._handover_pending:
            self._assign()
        scheduled, self._waiting_deliverers = self._waiting_deliverers, {}
        waiting = iter(scheduled)
        for deliverer in waiting:
            if self.broker.ledger.is_stalled(deliverer):
                # The next sync runs it.
                continue
            deliverer.run()
            if self._waiting_deliverers and not any(member.credit for member in self.members):
                break
        not_served = dict.fromkeys(waiting)
        for deliverer in not_served:
            if deliverer.cursor.waiting.next_due_us is not None:
                # The run sets the timer for delayed messages, even without credit.
                deliverer.run()
        self._waiting_deliverers = not_served | self._waiting_deliverers

    def room_again(self, consumer: Consumer) -> None:
        self.wake_without_credit()

    def refused_late(self, partition: str, count: int) -> None:
        """Count settlements of a partition's messages that came too late."""
        self.stale_acks += count
        self.broker.note_stale(partition, count, self.stale_acks)

    # settings

    def changed_settings(self, changes: Mapping[str, Any]) -> Settings:
        """Return the settings with these changes; raise `PreconditionFailed` if they are invalid."""
        settings = self.settings.changed(changes)
        if settings.mode != self.settings.mode:
            if QUERY in (settings.mode, self.settings.mode):
                raise PreconditionFailed(f"{self} is a query's: its mode can't be changed")
            if self.members or self.in_flight:
                raise PreconditionFailed(
                    f"{self} is {self.settings.mode}: the mode can be changed only while it has no members "
                    "and nothing in flight"
                )
        return settings

    def apply(self, settings: Settings) -> None:
        """Put settings in force, also for messages in flight."""
        before, self.settings = self.settings, settings
        if settings.consume_timeout_ms != before.consume_timeout_ms or settings.mode != before.mode:
            for partition in self.partitions.values():
                for consumer in partition.member_consumers.values():
                    deadlines.allow(consumer, self.timeout_us)
        for partition in self.partitions.values():
            partition.wake()

    def close(self) -> None:
        """Close a deleted group: cancel its members, and take their deliveries back."""
        self.deleted = True
        for partition in list(self.partitions.values()):
            cursor = partition.cursor
            self.remove_partition(partition)
            if not partition.stream.deleted:
                self.broker.store.delete_cursor(cursor)
        members, self.members = list(self.members), {}
        for member in members:
            member.channel.consumer_lost(member)

    @property
    def in_flight(self) -> int:
        return sum(len(partition.cursor.in_flight) for partition in self.partitions.values())

    @property
    def lag(self) -> int:
        return sum(partition.lag for partition in self.partitions.values())
