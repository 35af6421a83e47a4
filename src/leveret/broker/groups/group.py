"""A group: one cursor per partition of what it reads, and the members that share the work.

Owns membership and who is served from which partition: in concurrent mode everybody from all of them, in
orderly mode each partition has one owner at a time. Nothing of this is left to clients: a member that comes
or goes changes it within the turn. A partition whose owner still has a message in flight moves when that is
settled. What happens inside of a partition is `Partition`'s.
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
    """The virtual host, as its groups know it."""

    name: str

    @property
    def broker(self) -> Core: ...

    @property
    def queues(self) -> Mapping[str, Destination]: ...

    def add_lasting_queue(self, name: str) -> Destination:
        """Make a durable queue without arguments."""


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
        """The stream or topic it reads."""
        self.number = number
        self.settings = settings
        self.owner = owner
        """The user who made it."""
        self.epoch = epoch
        """Of a query: the number of its present run."""
        self.partitions: dict[str, Partition] = {}
        self.members: dict[Member, None] = {}
        self.stale_acks = 0
        """Settlements that came too late, and were refused."""
        self._moving = False
        """Whether a partition is to have another owner when what it has in flight is settled."""
        self._hungry: dict[Deliverer, None] = {}
        """Of partitions with something ready for which there was no credit, in the order of their turn."""

    def __str__(self) -> str:
        return f"group '{self.name}' on '{self.subject}' in vhost '{self.vhost.name}'"

    @property
    def cursor_name(self) -> str:
        return f"group-{self.number}"

    @property
    def timeout_us(self) -> int:
        """Of deliveries: in orderly mode there is no other member to give a message to."""
        return 0 if self.settings.mode == ORDERLY else 1000 * self.settings.consume_timeout_ms

    def dead_letters(self) -> Destination:
        """The queue of what could not be consumed; it is there from the first such message on."""
        name = DEAD_LETTERS + self.name
        return self.host.queues.get(name) or self.host.add_lasting_queue(name)

    # partitions

    def add_partition(self, stream: Readable, *, start: int | None) -> Partition:
        """With the cursor it has there, or a new one that begins at `start`."""
        store = self.broker.store
        cursor = store.cursors(stream.log.id).get(self.cursor_name)
        if cursor is None:  # what was aborted, or is too old though still there, is no message for it
            cursor = store.create_cursor(
                stream.log,
                self.cursor_name,
                start=None if start is None else min(start, stream.log.next),
                audit_us=stream.settings.audit_us,
                label=self.name,
                visible_to=stream.cursor,
            )
        partition = self.partitions[stream.name] = Partition(self, stream, cursor)
        self._seat_all([partition])
        return partition

    def remove_partition(self, partition: Partition) -> None:
        partition.close()
        del self.partitions[partition.name]
        self._hungry.pop(partition.deliverer, None)

    # members

    def has_member(self, member: Consumer) -> bool:
        return member in self.members

    def join(self, member: Member) -> None:
        self.members[member] = None
        self._seat_all(list(self.partitions.values()))

    def remove_consumer(self, consumer: Consumer) -> None:
        assert isinstance(consumer, Member)
        if consumer not in self.members:
            return
        del self.members[consumer]
        for partition in self.partitions.values():
            partition.dismiss(consumer)
            if partition.owner is consumer:
                partition.owner = None
            partition.forget_gone()
        self._seat_all(list(self.partitions.values()))

    def _seat_all(self, partitions: Sequence[Partition]) -> None:
        if self.settings.mode == ORDERLY:
            self._assign()
            return
        for partition in partitions:
            for member in self.members:
                partition.admit(member)

    def _assign(self) -> None:
        """Partitions move to their new owners, but for those with a message in flight: they follow later."""
        current = {each.name: each.owner for each in self.partitions.values() if each.owner is not None}
        target = assign(list(self.partitions), list(self.members), current)
        self._moving = False
        for name, partition in self.partitions.items():
            owner = target.get(name)
            if partition.owner is not owner and partition.cursor.in_flight:
                self._moving = True
            elif partition.owner is not owner:
                if partition.owner is not None:
                    partition.dismiss(partition.owner)
                partition.owner = owner
                if owner is not None:
                    partition.admit(owner)

    # out

    def wake_partition(self, deliverer: Deliverer) -> None:
        self._hungry[deliverer] = None
        self.broker.wake(self)

    def is_hungry(self, deliverer: Deliverer) -> None:
        self._hungry[deliverer] = None

    def wake_hungry(self) -> None:
        if self._hungry or self._moving:
            self.broker.wake(self)

    def run(self) -> None:
        """Serves partitions in turns for as long as somebody has credit."""
        if self._moving:
            self._assign()
        hungry, self._hungry = self._hungry, {}
        waiting = iter(hungry)
        for deliverer in waiting:
            if self.broker.ledger.is_stalled(deliverer):
                continue  # the sync runs it
            deliverer.run()
            if self._hungry and not any(member.credit for member in self.members):
                break
        left = dict.fromkeys(waiting)
        for deliverer in left:
            if deliverer.cursor.waiting.next_due_us is not None:
                deliverer.run()  # its timer must be set, whoever has credit
        self._hungry = left | self._hungry

    def room_again(self, consumer: Consumer) -> None:
        self.wake_hungry()

    def refused_late(self, partition: str, count: int) -> None:
        """Settlements of a partition's messages came too late."""
        self.stale_acks += count
        self.broker.note_stale(partition, count, self.stale_acks)

    # changes

    def change(self, wanted: Mapping[str, Any]) -> Settings:
        """What the settings would be; `BadSetting` where they make no sense."""
        settings = self.settings.changed(wanted)
        if settings.mode != self.settings.mode:
            if QUERY in (settings.mode, self.settings.mode):
                raise PreconditionFailed(f"{self} is a query's: its mode can't be changed")
            if self.members or any(each.cursor.in_flight for each in self.partitions.values()):
                raise PreconditionFailed(
                    f"{self} is {self.settings.mode}: the mode can be changed only while it has no members "
                    "and nothing in flight"
                )
        return settings

    def apply(self, settings: Settings) -> None:
        """From now on, also for what is in flight."""
        before, self.settings = self.settings, settings
        if settings.consume_timeout_ms != before.consume_timeout_ms or settings.mode != before.mode:
            for partition in self.partitions.values():
                for seat in partition.seats.values():
                    deadlines.allow(seat, self.timeout_us)
        for partition in self.partitions.values():
            partition.wake()

    def close(self) -> None:
        """It is deleted: its members are told, what they hold is nobody's."""
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
        return sum(len(each.cursor.in_flight) for each in self.partitions.values())

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.partitions.values())
