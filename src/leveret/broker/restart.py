"""What a broker begins with: the rows of its definitions, and the logs of its store.

The two become durable independently of one another, and each can be damaged without the other. Owns what
follows from that: a queue whose row is missing is made from the label of its log, a virtual host that others
name is made again, and a row that names what is missing is removed. So no right and no binding comes back to
life when somebody later makes a user or a queue of that name. The rule: nobody may do more than the rows say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from leveret.broker import auxiliary_logs
from leveret.broker.access.accounts import ADMINISTRATOR, GUEST, Accounts
from leveret.broker.access.passwords import GUEST_HASH
from leveret.broker.auxiliary_logs import SideLogs
from leveret.broker.core import DefiningCore
from leveret.broker.definitions import (
    BindingRow,
    Change,
    ExchangeRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.broker.queues.queue_labels import row_of
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.log import Log

QueueLogs = dict[tuple[str, str], Log]


class EmptyBroker(DefiningCore, Protocol):
    """The broker, as far as there are users and virtual hosts to be made in it."""

    accounts: Accounts
    vhosts: dict[str, VirtualHost]


def restore(broker: EmptyBroker, rows: Sequence[Row], *, lost: bool) -> list[Row]:
    """Make everything; return the rows that were removed because what they name is missing.

    Without rows the broker is new, unless its definitions were `lost`: then nobody may log in.
    """
    if not rows and not lost:
        _make_first_things(broker)
    all_logs = list(broker.store.logs.values())
    beside = auxiliary_logs.find(all_logs)
    logs = _logs_of_queues(log for log in all_logs if auxiliary_logs.key_of(log) is None)
    _restore_vhosts(broker, rows, logs, lost=lost)
    orphans = _restore_rows(broker, [row for row in rows if isinstance(row, UserRow | PermissionRow)])
    orphans += _restore_rows(broker, [row for row in rows if isinstance(row, ExchangeRow)])
    _restore_queues(broker, [row for row in rows if isinstance(row, QueueRow)], logs, beside)
    orphans += _restore_rows(broker, [row for row in rows if isinstance(row, BindingRow)])
    broker.define(*(Change(row, removed=True) for row in orphans))
    for each in broker.vhosts.values():
        each.restore_batches(beside)
        each.restore_groups(beside)
        each.restore_returned(beside)
    _delete_unused(broker, all_logs)
    return orphans


def restore_row(broker: EmptyBroker, row: Row) -> bool:
    """Make what a row stands for; False if something that it names is missing."""
    match row:
        case VhostRow():
            broker.vhosts[row.name] = VirtualHost(broker, row.name)
        case UserRow():
            broker.accounts.put(row)
        case PermissionRow():
            return broker.accounts.permit(row)
        case ExchangeRow():
            broker.vhosts[row.vhost].restore_exchange(row)
        case BindingRow():
            return broker.vhosts[row.vhost].restore_binding(row)
    return True


def _make_first_things(broker: EmptyBroker) -> None:
    """A new broker has the virtual host `/` and the user guest, who may do everything, from loopback."""
    rows = (
        VhostRow("/"),
        UserRow(GUEST, GUEST_HASH, ADMINISTRATOR),
        PermissionRow("/", GUEST, ".*", ".*", ".*"),
    )
    _restore_rows(broker, rows)
    broker.define(*(Change(row) for row in rows))


def _restore_rows(broker: EmptyBroker, rows: Iterable[Row]) -> list[Row]:
    """Make what these rows stand for; return those that name something that is missing."""
    return [row for row in rows if not restore_row(broker, row)]


def _restore_vhosts(broker: EmptyBroker, rows: Sequence[Row], logs: QueueLogs, *, lost: bool) -> None:
    """The virtual hosts, also those whose own row is missing though other rows or logs name them."""
    names = {row.name: None for row in rows if isinstance(row, VhostRow)}
    named = {row.vhost: None for row in rows if not isinstance(row, VhostRow | UserRow)}
    named |= {vhost: None for vhost, _ in logs} | ({"/": None} if lost else {})
    missing = [VhostRow(name) for name in named if name not in names and name not in broker.vhosts]
    _restore_rows(broker, [*(VhostRow(name) for name in names), *missing])
    broker.define(*(Change(row) for row in missing))


def _restore_queues(broker: EmptyBroker, rows: Sequence[QueueRow], logs: QueueLogs, beside: SideLogs) -> None:
    for row in rows:
        broker.vhosts[row.vhost].restore_queue(row, logs.pop((row.vhost, row.name), None), beside)
    for (vhost, _), log in logs.items():  # its row is damaged, or the crash came before it was written
        row = row_of(log)
        broker.vhosts[vhost].restore_queue(row, log, beside)
        broker.vhosts[vhost].queues[row.name].defined = broker.define(Change(row))


def _delete_unused(broker: EmptyBroker, logs: Sequence[Log]) -> None:
    """Logs whose owner is gone: the crash came before they were deleted."""
    used: set[Log] = set()
    for each in broker.vhosts.values():
        used |= {log for queue in each.queues.values() for log in queue.logs}
        kept = [each.stages.log if each.stages else None, each.groups.log, each.returned_messages.log]
        used |= {log for log in kept if log is not None}
    for log in logs:
        if log not in used:
            broker.store.delete_log(log)


def _logs_of_queues(logs: Iterable[Log]) -> QueueLogs:
    """By virtual host and name; of several the youngest, because the others were about to be deleted."""
    found: QueueLogs = {}
    for log in sorted(logs, key=lambda each: each.id):
        if log.spec.label:
            row = row_of(log)
            found[row.vhost, row.name] = log
    return found
