"""All groups of a virtual host: what there is, made and changed and written down.

A group is known by its name and what it reads; the same name may read several topics. Its settings are a note
(`broker.notes`), its progress is in cursors of the streams, named after the note's number. Cursors are made
before the note and deleted after it, so that after a crash a note without a cursor means a new partition, and
a cursor without a note means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from leveret.broker import auxiliary_logs
from leveret.broker.access import ownership
from leveret.broker.access.accounts import User
from leveret.broker.access.reading_rights import end_forbidden_members
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.exchanges.exchange import Bound, Exchange
from leveret.broker.groups import topics
from leveret.broker.groups.group import Group, GroupHost
from leveret.broker.groups.partition import Partition
from leveret.broker.groups.settings import QUERY, Settings
from leveret.broker.note_log import Notes
from leveret.broker.streams.positions import Position
from leveret.broker.streams.stream import Stream
from leveret.storage.errors import StorageError
from leveret.storage.log import Log

_NAME_BYTES_MAX = 200
_PREFIX = "group-"
FIRST = Position("first")


class GroupNote(msgspec.Struct, frozen=True, tag="group", array_like=True):
    number: int
    subject: str
    name: str
    settings: Settings
    owner: str = ownership.NOBODY
    epoch: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return (self.subject, self.name)


class RegistryHost(topics.TopicHost, GroupHost, Protocol):
    """The virtual host, as the registry of its groups knows it."""


class Groups:
    """`groups.open("orders", "billing", {"mode": "orderly"}, user=ann)`."""

    def __init__(self, vhost: RegistryHost) -> None:
        self._vhost = vhost
        self._groups: dict[tuple[str, str], Group] = {}
        self._notes: Notes[GroupNote] | None = None
        self._next = 1

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def log(self) -> Log | None:
        return None if self._notes is None else self._notes.log

    def restore(self, log: Log | None) -> None:
        """With what a log from before says of them; queues and bindings must be there."""
        if log is not None:
            self._notes = self._open_notes(log)
        for note in self._notes or ():
            self._next = max(self._next, note.number + 1)
            group = self._add(note)
            for stream in self._subject_or_none(note.subject):
                group.add_partition(stream, start=None)
        known = {group.cursor_name for group in self}
        store = self._vhost.broker.store
        for queue in self._vhost.queues.values():
            for name, cursor in list(store.cursors(queue.log.id).items()):
                if name.startswith(_PREFIX) and name not in known:
                    store.delete_cursor(cursor)

    # finding

    def get(self, subject: str, name: str) -> Group:
        found = self._groups.get((subject, name))
        if found is None:
            raise NotFound(f"no group '{name}' on '{subject}' in vhost '{self._vhost.name}'")
        return found

    def named(self, name: str) -> Group:
        """The only group of this name."""
        found = [group for group in self if group.name == name]
        if not found:
            raise NotFound(f"no group '{name}' in vhost '{self._vhost.name}'")
        if len(found) > 1:
            subjects = ", ".join(f"'{group.subject}'" for group in found)
            raise PreconditionFailed(f"there are groups '{name}' on {subjects}: say which one is meant")
        return found[0]

    def reading(self, stream: Stream) -> list[tuple[Group, Partition]]:
        """The groups that read a stream, each with its partition there."""
        found = ((group, group.partitions.get(stream.name)) for group in self)
        return [(group, partition) for group, partition in found if partition and partition.stream is stream]

    def _stream(self, destination: Bound) -> Stream | None:
        """The stream that this is; None for queues and exchanges."""
        found = self._vhost.streams.get(destination.name)
        return found if found is destination else None

    def check_unread(self, subject: str) -> None:
        """Raises when a group reads this."""
        readers = [group.name for group in self if group.subject == subject]
        if readers:
            raise PreconditionFailed(
                f"'{subject}' in vhost '{self._vhost.name}' is read by group '{readers[0]}': delete it first"
            )

    # changing

    def open(
        self,
        subject: str,
        name: str,
        wanted: Mapping[str, Any],
        *,
        user: User,
        start: Position = FIRST,
        query: bool = False,
    ) -> Group:
        """The group, made if need be; settings that are given hold for all its members from now on.

        The user may join it, and may operate it if settings change. It owns the group if nobody does yet.
        """
        group = self._groups.get((subject, name))
        if group is None:
            return self.create(subject, name, wanted, user=user, start=start, query=query)
        if query != (group.settings.mode == QUERY):
            kind = "not a query's" if query else "a query's, and has no members"
            raise PreconditionFailed(f"{group} is {kind}")
        if query:
            self.check_operate(group, user)
        else:
            ownership.check_join(user, self._vhost.name, name, owner=group.owner)
        if group.change(wanted) != group.settings:
            self.check_operate(group, user)
            self.change(group, wanted)
        if group.owner == ownership.NOBODY:
            owner = ownership.owner_name(user)
            self._write(_note(group, owner=owner))
            group.owner = owner
        return group

    def check_operate(self, group: Group, user: User) -> None:
        """Raise `AccessRefused` unless the user may change, move or delete the group."""
        ownership.check_operate(user, self._vhost.name, ownership.GROUP, group.name, owner=group.owner)

    def create(
        self,
        subject: str,
        name: str,
        wanted: Mapping[str, Any],
        *,
        user: User,
        start: Position = FIRST,
        offsets: Mapping[str, int] | None = None,
        query: bool = False,
    ) -> Group:
        """It begins at `start`, but in partitions for which `offsets` has another place."""
        if (subject, name) in self._groups:
            raise PreconditionFailed(f"{self._groups[subject, name]} exists")
        if not name or not name.isprintable() or len(name.encode()) > _NAME_BYTES_MAX:
            raise PreconditionFailed(
                f"a group's name has 1 to {_NAME_BYTES_MAX} printable bytes; this is none: '{name}'"
            )
        if not _is_utf8(subject):
            raise PreconditionFailed(f"the name of what a group reads is UTF-8; that of '{subject}' is not")
        streams = topics.streams_of(self._vhost, subject)
        settings = Settings.default().changed(wanted)
        if query:
            settings = msgspec.structs.replace(settings, mode=QUERY)
        note = GroupNote(self._next, subject, name, settings, ownership.owner_name(user))
        group = self._add(note)
        self._next += 1
        try:
            for stream in streams:
                begin = stream.readable() if start.kind == "last" else start.in_(stream)
                begin = (offsets or {}).get(stream.name, begin)
                group.add_partition(stream, start=begin)
            self._write(note)
        except StorageError:  # a full disk: as if nobody had asked
            del self._groups[subject, name]
            group.close()
            raise
        return group

    def change(self, group: Group, wanted: Mapping[str, Any]) -> None:
        settings = group.change(wanted)
        if settings != group.settings:
            self._write(_note(group, settings=settings))
            group.apply(settings)

    def begin_run(self, group: Group, epoch: int = 0) -> int:
        """The number of the next run of a query, or this one: earlier runs are over from now on."""
        epoch = epoch or max(self._vhost.broker.now_us(), group.epoch + 1)
        self._write(_note(group, epoch=epoch))
        group.epoch = epoch
        return epoch

    def delete(self, group: Group) -> None:
        """Its progress goes with it."""
        notes = self._written()
        transaction = self._vhost.broker.store.transaction()
        change = notes.change(transaction)
        change.remove([(group.subject, group.name)])
        transaction.commit()
        change.done()
        del self._groups[group.subject, group.name]
        group.close()

    # topology

    def topic_changed(self, exchange: Exchange) -> None:
        """Something was bound to it: its groups read that too, from the beginning."""
        if exchange.type != topics.TYPE:
            return
        if exchange.name in self._vhost.streams:  # groups on this name read that one
            return
        for group in [group for group in self if group.subject == exchange.name]:
            for stream in topics.partitions(self._vhost, exchange.name):
                if stream.name not in group.partitions:
                    group.add_partition(stream, start=None)
            end_forbidden_members(group)

    def topic_lost(self, exchange: Exchange, destination: Bound) -> None:
        """The binding of a partition was undone: groups on the topic do not read it any more."""
        stream = self._stream(destination)
        if stream is None or stream in topics.partitions(self._vhost, exchange.name):
            return
        for group, partition in self.reading(stream):
            if group.subject == exchange.name:
                group.remove_partition(partition)

    def check_exchange_deletion(self, exchange: Exchange) -> None:
        if topics.partitions(self._vhost, exchange.name):
            self.check_unread(exchange.name)

    def check_declaration(self, name: str) -> None:
        """Of a stream: a name that a group reads as a topic's stays the topic's."""
        if topics.partitions(self._vhost, name):
            self.check_unread(name)

    def check_unbind(self, exchange: Exchange, destination: Bound) -> None:
        """A topic that is read keeps its partitions."""
        if exchange.type == topics.TYPE and self._stream(destination) is not None:
            self.check_unread(exchange.name)

    def check_deletion(self, stream: Stream) -> None:
        """A partition of a topic that is read stays."""
        for group, _ in self.reading(stream):
            if group.subject != stream.name:
                self.check_unread(group.subject)

    def stream_deleted(self, stream: Stream) -> None:
        """Groups on it end with it; those on a topic lose a partition."""
        for group, partition in self.reading(stream):
            if group.subject == stream.name:
                self.delete(group)
            else:
                group.remove_partition(partition)

    # inside

    def _add(self, note: GroupNote) -> Group:
        group = Group(
            self._vhost,
            note.subject,
            note.name,
            number=note.number,
            settings=note.settings,
            owner=note.owner,
            epoch=note.epoch,
        )
        self._groups[note.key] = group
        return group

    def _subject_or_none(self, subject: str) -> list[Stream]:
        try:
            return topics.streams_of(self._vhost, subject)
        except (NotFound, PreconditionFailed):
            return []

    def _written(self) -> Notes[GroupNote]:
        if self._notes is None:
            self._notes = self._open_notes(None)
        return self._notes

    def _open_notes(self, log: Log | None) -> Notes[GroupNote]:
        label = auxiliary_logs.label(auxiliary_logs.GROUPS, self._vhost.name)
        return Notes(self._vhost.broker.store, GroupNote, label=label, log=log)

    def _write(self, note: GroupNote) -> None:
        notes = self._written()
        transaction = self._vhost.broker.store.transaction()
        change = notes.change(transaction)
        change.put(note)
        transaction.commit()
        change.done()


def _note(
    group: Group, *, settings: Settings | None = None, owner: str | None = None, epoch: int | None = None
) -> GroupNote:
    """The note of a group as it is, but for what is given."""
    return GroupNote(
        group.number,
        group.subject,
        group.name,
        group.settings if settings is None else settings,
        group.owner if owner is None else owner,
        group.epoch if epoch is None else epoch,
    )


def _is_utf8(name: str) -> bool:
    """Whether it can be written down; names are any bytes otherwise."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
