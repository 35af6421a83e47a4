"""The groups of a virtual host: creation, changes, deletion, and their notes.

A group is known by its name and the stream or topic it reads; several topics may have groups of one name. The
settings of a group are a note (`broker.note_log`), its progress is in cursors of the streams, named after the
note's number. Cursors are created before the note and deleted after it. So after a crash a note without a
cursor means a new partition, and a cursor without a note is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """What the registry of groups needs of its virtual host."""


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
        """Restore the groups from the notes of an earlier run; queues and bindings must exist."""
        if log is not None:
            self._notes = self._open_notes(log)
        for note in self._notes or ():
            self._next = max(self._next, note.number + 1)
            group = self._add(note)
            for stream in self._streams_or_empty(note.subject):
                group.add_partition(stream, start=None)
        known = {group.cursor_name for group in self}
        store = self._vhost.broker.store
        for queue in self._vhost.queues.values():
            for name, cursor in list(store.cursors(queue.log.id).items()):
                if name.startswith(_PREFIX) and name not in known:
                    store.delete_cursor(cursor)

    # lookup

    def get(self, subject: str, name: str) -> Group:
        group = self._groups.get((subject, name))
        if group is None:
            raise NotFound(f"no group '{name}' on '{subject}' in vhost '{self._vhost.name}'")
        return group

    def named(self, name: str) -> Group:
        """Return the only group of this name; raise if there are none or several."""
        groups = [group for group in self if group.name == name]
        if not groups:
            raise NotFound(f"no group '{name}' in vhost '{self._vhost.name}'")
        if len(groups) > 1:
            subjects = ", ".join(f"'{group.subject}'" for group in groups)
            raise PreconditionFailed(f"there are groups '{name}' on {subjects}: say which one is meant")
        return groups[0]

    def reading(self, stream: Stream) -> list[tuple[Group, Partition]]:
        """Return the groups that read a stream, each with its partition."""
        partitions = ((group, group.partitions.get(stream.name)) for group in self)
        return [
            (group, partition) for group, partition in partitions if partition and partition.stream is stream
        ]

    def _stream(self, destination: Bound) -> Stream | None:
        """Return a destination if it is a stream; None for queues and exchanges."""
        stream = self._vhost.streams.get(destination.name)
        return stream if stream is destination else None

    def check_unread(self, subject: str) -> None:
        """Raise `PreconditionFailed` if a group reads this stream or topic."""
        readers = [group.name for group in self if group.subject == subject]
        if readers:
            raise PreconditionFailed(
                f"'{subject}' in vhost '{self._vhost.name}' is read by group '{readers[0]}': delete it first"
            )

    # creation, changes and deletion

    def open(
        self,
        subject: str,
        name: str,
        changes: Mapping[str, Any],
        *,
        user: User,
        start: Position = FIRST,
        query: bool = False,
    ) -> Group:
        """Return the group, created if necessary. Given settings apply to all its members from now on.

        The user must be allowed to join the group, and to operate it if settings change. The user becomes the
        owner of a group without an owner.
        """
        group = self._groups.get((subject, name))
        if group is None:
            return self.create(subject, name, changes, user=user, start=start, query=query)
        if query != (group.settings.mode == QUERY):
            kind = "not a query's" if query else "a query's, and has no members"
            raise PreconditionFailed(f"{group} is {kind}")
        if query:
            self.check_operate(group, user)
        else:
            ownership.check_join(user, self._vhost.name, name, owner=group.owner)
        if group.changed_settings(changes) != group.settings:
            self.check_operate(group, user)
            self.change(group, changes)
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
        changes: Mapping[str, Any],
        *,
        user: User,
        start: Position = FIRST,
        offsets: Mapping[str, int] | None = None,
        query: bool = False,
    ) -> Group:
        """Create a group; `offsets` overrides `start` in the partitions it names."""
        if (subject, name) in self._groups:
            raise PreconditionFailed(f"{self._groups[subject, name]} exists")
        if not name or not name.isprintable() or len(name.encode()) > _NAME_BYTES_MAX:
            raise PreconditionFailed(
                f"a group's name must have 1 to {_NAME_BYTES_MAX} printable bytes, unlike '{name}'"
            )
        if not _is_utf8(subject):
            raise PreconditionFailed(f"a group can't read '{subject}': the name is not UTF-8")
        streams = topics.streams_of(self._vhost, subject)
        settings = Settings.default().changed(changes)
        if query:
            settings = msgspec.structs.replace(settings, mode=QUERY)
        note = GroupNote(self._next, subject, name, settings, ownership.owner_name(user))
        group = self._add(note)
        self._next += 1
        try:
            for stream in streams:
                begin = stream.readable() if start.kind == "last" else start.offset_in(stream)
                begin = (offsets or {}).get(stream.name, begin)
                group.add_partition(stream, start=begin)
            self._write(note)
        except StorageError:
            # The disk is full: undo the creation.
            del self._groups[subject, name]
            group.close()
            raise
        return group

    def change(self, group: Group, changes: Mapping[str, Any]) -> None:
        settings = group.changed_settings(changes)
        if settings != group.settings:
            self._write(_note(group, settings=settings))
            group.apply(settings)

    def begin_run(self, group: Group, epoch: int = 0) -> int:
        """Begin the next run of a query, or the run `epoch`, and return its epoch; earlier runs are over."""
        epoch = epoch or max(self._vhost.broker.now_us(), group.epoch + 1)
        self._write(_note(group, epoch=epoch))
        group.epoch = epoch
        return epoch

    def delete(self, group: Group) -> None:
        """Delete a group and its progress."""
        self._write(removed=[(group.subject, group.name)])
        del self._groups[group.subject, group.name]
        group.close()

    # reactions to bindings and deletions

    def topic_changed(self, exchange: Exchange) -> None:
        """Let the groups of a topic read its new partitions, from the beginning."""
        if exchange.type != topics.TYPE:
            return
        # Groups of this name read the stream, not the exchange.
        if exchange.name in self._vhost.streams:
            return
        for group in [group for group in self if group.subject == exchange.name]:
            for stream in topics.partitions(self._vhost, exchange.name):
                if stream.name not in group.partitions:
                    group.add_partition(stream, start=None)
            end_forbidden_members(group)

    def topic_lost(self, exchange: Exchange, destination: Bound) -> None:
        """Remove an unbound partition from the groups of its topic."""
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
        """Raise if a new stream would have the name of a topic that a group reads."""
        if topics.partitions(self._vhost, name):
            self.check_unread(name)

    def check_unbind(self, exchange: Exchange, destination: Bound) -> None:
        """Raise if an unbinding would take a partition from a topic that a group reads."""
        if exchange.type == topics.TYPE and self._stream(destination) is not None:
            self.check_unread(exchange.name)

    def check_deletion(self, stream: Stream) -> None:
        """Raise if a deletion would take a partition from a topic that a group reads."""
        for group, _ in self.reading(stream):
            if group.subject != stream.name:
                self.check_unread(group.subject)

    def stream_deleted(self, stream: Stream) -> None:
        """Delete the groups of a deleted stream, and remove it from the groups of its topics."""
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

    def _streams_or_empty(self, subject: str) -> list[Stream]:
        try:
            return topics.streams_of(self._vhost, subject)
        except (NotFound, PreconditionFailed):
            return []

    def _open_notes(self, log: Log | None) -> Notes[GroupNote]:
        label = auxiliary_logs.label(auxiliary_logs.GROUPS, self._vhost.name)
        return Notes(self._vhost.broker.store, GroupNote, label=label, log=log)

    def _write(self, *notes: GroupNote, removed: Sequence[tuple[str, str]] = ()) -> None:
        if self._notes is None:
            self._notes = self._open_notes(None)
        transaction = self._vhost.broker.store.transaction()
        change = self._notes.change(transaction)
        for note in notes:
            change.put(note)
        change.remove(removed)
        transaction.commit()
        change.done()


def _note(
    group: Group, *, settings: Settings | None = None, owner: str | None = None, epoch: int | None = None
) -> GroupNote:
    """Return the note of a group, with the given changes."""
    return GroupNote(
        group.number,
        group.subject,
        group.name,
        group.settings if settings is None else settings,
        group.owner if owner is None else owner,
        group.epoch if epoch is None else epoch,
    )


def _is_utf8(name: str) -> bool:
    """Return whether a name can be stored in a note; other names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
