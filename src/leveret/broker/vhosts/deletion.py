"""Deletes virtual hosts with all that is in them, and finishes deletions that a crash has interrupted.

Rows and logs become durable independently of one another. So one change of the definitions removes the rows
of a virtual host and puts a note that says which logs are to be deleted. When this change is on disk, the
logs are deleted, some in each turn, and after them the note. A crash before the change is written leaves the
whole virtual host, a crash after it leaves nothing: `restart` passes over logs that a note names, and deletes
them.

The rule: no log is deleted before the note is durable, and no note before the logs' deletion is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from leveret.broker import auxiliary_logs
from leveret.broker.access.accounts import Accounts
from leveret.broker.core import DefiningCore
from leveret.broker.definitions import Change, ParameterRow, Row, VhostRow
from leveret.broker.parameters import Parameters
from leveret.broker.queues.queue_labels import row_of
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.log import Log

_COMPONENT: Final = "deleted-vhosts"
_LOGS_PER_TURN: Final = 32


class Peer(Protocol):
    """What a deletion needs of a client's connection."""

    @property
    def is_open(self) -> bool: ...

    def force_close(self, reason: str) -> None: ...


class Session(Protocol):
    """What a deletion needs of a session."""

    @property
    def peer(self) -> Peer: ...

    @property
    def vhost(self) -> VirtualHost: ...


class DeletingBroker(DefiningCore, Protocol):
    accounts: Accounts
    parameters: Parameters
    vhosts: dict[str, VirtualHost]

    @property
    def sessions(self) -> Iterable[Any]:
        """The sessions of all clients, each a `Session`."""

    def send_notices(self) -> None: ...


class Remains(NamedTuple):
    """The logs of a deleted virtual host that are not deleted yet: those with IDs up to `last_log`."""

    vhost: str
    last_log: int

    def row(self) -> ParameterRow:
        """Return the note about the logs. Virtual hosts with one name may be deleted one after the other."""
        return ParameterRow(_COMPONENT, "", f"{self.last_log} {self.vhost}", json.dumps(self))

    def include(self, log: Log) -> bool:
        return log.id <= self.last_log and _vhost_of(log) == self.vhost


def delete(broker: DeletingBroker, vhost: VirtualHost) -> None:
    """Delete a virtual host: its objects end at once, its logs are deleted when this is on disk."""
    logs = end(broker, vhost, f"vhost '{vhost.name}' is deleted")
    remains = Remains(vhost.name, max((log.id for log in logs), default=0))
    changes = [Change(VhostRow(vhost.name), removed=True)]
    if logs:
        changes.append(Change(remains.row()))
    broker.define(*changes)
    broker.definitions.when_committed(_LogDeletion(broker, logs, lambda: finish(broker, [remains])).begin)


def end(broker: DeletingBroker, vhost: VirtualHost, reason: str) -> list[Log]:
    """Take a virtual host out of the broker, and close its connections; return its logs.

    Definitions and logs are left as they are.
    """
    broker.flush()
    logs = vhost.close()
    broker.parameters.drop(vhost=vhost.name)
    del broker.vhosts[vhost.name]
    for name, user in broker.accounts.users.items():
        if vhost.name in user.permissions:
            broker.accounts.forbid(vhost.name, name)
    # Clients are told that their consumers have ended while they are still connected.
    broker.send_notices()
    sessions: list[Session] = list(broker.sessions)
    for session in sessions:
        if session.peer.is_open and session.vhost is vhost:
            session.peer.force_close(reason)
    return logs


class _LogDeletion:
    """Deletes logs, some in each turn, so that clients do not wait."""

    def __init__(self, broker: DeletingBroker, logs: Sequence[Log], done: Callable[[], None]) -> None:
        self._broker = broker
        self._logs = list(logs)
        self._done = done

    def begin(self) -> None:
        self._broker.wake(self)

    def run(self) -> None:
        part, self._logs = self._logs[:_LOGS_PER_TURN], self._logs[_LOGS_PER_TURN:]
        for log in part:
            self._broker.store.delete_log(log)
        if self._logs:
            self._broker.wake_later(self)
        elif part:
            self._done()


# after a restart


def remains_among(rows: Iterable[Row]) -> list[Remains]:
    """Return what the rows say about logs of deleted virtual hosts."""
    return [
        Remains(*json.loads(row.document))
        for row in rows
        if isinstance(row, ParameterRow) and row.component == _COMPONENT
    ]


def without_notes(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that are not notes about deleted virtual hosts."""
    return [row for row in rows if not (isinstance(row, ParameterRow) and row.component == _COMPONENT)]


def finish(broker: DefiningCore, deleted: Sequence[Remains]) -> None:
    """Remove the notes about deleted virtual hosts as soon as the deletion of their logs is on disk."""
    changes = [Change(remains.row(), removed=True) for remains in deleted]
    if changes:
        broker.ledger.when_durable(lambda: _remove(broker, changes))


def _remove(broker: DefiningCore, changes: Sequence[Change]) -> None:
    broker.define(*changes)


def _vhost_of(log: Log) -> str | None:
    """Return the virtual host that a log's label names; None for logs of transient queues and of leases."""
    key = auxiliary_logs.key_of(log)
    if key is not None:
        owner = key[1]
        return owner if isinstance(owner, str) else None
    return row_of(log).vhost if log.spec.label else None
