"""Restores a broker from the rows of its definitions and the logs of its store.

Rows and logs become durable independently of one another, and each can be damaged without the other. So a
queue without a row is restored from the label of its log, and a virtual host that other rows name is created
again. A row that names a missing object is removed, so that its permission or binding does not apply to an
object created later with this name. The rule: no user gets more permissions than the rows contain.
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
    ParameterRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VhostRow,
)
from leveret.broker.parameters import Parameters
from leveret.broker.queues.queue_labels import row_of
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.storage.log import Log

QueueLogs = dict[tuple[str, str], Log]


class EmptyBroker(DefiningCore, Protocol):
    """The part of the broker that `restore` fills: users and virtual hosts."""

    accounts: Accounts
    vhosts: dict[str, VirtualHost]
    parameters: Parameters


def restore(broker: EmptyBroker, rows: Sequence[Row], *, lost: bool) -> list[Row]:
    """Restore all objects; return the rows that were removed because they name missing objects.

    Without rows the broker is new, unless its definitions were `lost`: then nobody may log in.
    """
    if not rows and not lost:
        _define_defaults(broker)
    all_logs = list(broker.store.logs.values())
    side_logs = auxiliary_logs.find(all_logs)
    logs = _logs_of_queues(log for log in all_logs if auxiliary_logs.key_of(log) is None)
    _restore_vhosts(broker, rows, logs, lost=lost)
    orphans = _restore_rows(broker, [row for row in rows if isinstance(row, UserRow | PermissionRow)])
    orphans += _restore_rows(broker, [row for row in rows if isinstance(row, ParameterRow | ExchangeRow)])
    _restore_queues(broker, [row for row in rows if isinstance(row, QueueRow)], logs, side_logs)
    orphans += _restore_rows(broker, [row for row in rows if isinstance(row, BindingRow)])
    broker.define(*(Change(row, removed=True) for row in orphans))
    for vhost in broker.vhosts.values():
        vhost.restore_batches(side_logs)
        vhost.restore_groups(side_logs)
        vhost.restore_returned(side_logs)
    _delete_unused(broker, all_logs)
    return orphans


def restore_row(broker: EmptyBroker, row: Row) -> bool:
    """Restore the object of a row; return False if the row names a missing object."""
    match row:
        case VhostRow():
            broker.vhosts[row.name] = VirtualHost(broker, row.name)
        case UserRow():
            broker.accounts.put(row)
        case PermissionRow():
            return broker.accounts.permit(row)
        case ParameterRow():
            return broker.parameters.restore(row)
        case ExchangeRow():
            broker.vhosts[row.vhost].restore_exchange(row)
        case BindingRow():
            return broker.vhosts[row.vhost].restore_binding(row)
    return True


def _define_defaults(broker: EmptyBroker) -> None:
    """Define the virtual host `/` and the user guest, who has all permissions but must log in locally."""
    rows = (
        VhostRow("/"),
        UserRow(GUEST, GUEST_HASH, ADMINISTRATOR),
        PermissionRow("/", GUEST, ".*", ".*", ".*"),
    )
    _restore_rows(broker, rows)
    broker.define(*(Change(row) for row in rows))


def _restore_rows(broker: EmptyBroker, rows: Iterable[Row]) -> list[Row]:
    """Restore the objects of these rows; return the rows that name missing objects."""
    return [row for row in rows if not restore_row(broker, row)]


def _restore_vhosts(broker: EmptyBroker, rows: Sequence[Row], logs: QueueLogs, *, lost: bool) -> None:
    """Restore the virtual hosts, also those whose row is missing but which other rows or logs name."""
    names = {row.name: None for row in rows if isinstance(row, VhostRow)}
    named = {row.vhost: None for row in rows if not isinstance(row, VhostRow | UserRow)}
    # Parameters of the whole broker name no virtual host.
    named.pop("", None)
    named |= {vhost: None for vhost, _ in logs} | ({"/": None} if lost else {})
    missing = [VhostRow(name) for name in named if name not in names and name not in broker.vhosts]
    _restore_rows(broker, [*(VhostRow(name) for name in names), *missing])
    broker.define(*(Change(row) for row in missing))


def _restore_queues(broker: EmptyBroker, rows: list[QueueRow], logs: QueueLogs, side_logs: SideLogs) -> None:
    for row in rows:
        broker.vhosts[row.vhost].restore_queue(row, logs.pop((row.vhost, row.name), None), side_logs)
    # The rows of the remaining logs are damaged, or a crash came before they were written.
    for (vhost, _), log in logs.items():
        row = row_of(log)
        broker.vhosts[vhost].restore_queue(row, log, side_logs)
        broker.vhosts[vhost].queues[row.name].defined = broker.define(Change(row))


def _delete_unused(broker: EmptyBroker, logs: Sequence[Log]) -> None:
    """Delete logs whose owner is gone: a crash came before they were deleted."""
    used: set[Log] = set()
    for vhost in broker.vhosts.values():
        used |= {log for queue in vhost.queues.values() for log in queue.logs}
        stages_log = vhost.stages.log if vhost.stages else None
        side_logs = (stages_log, vhost.groups.log, vhost.returned_messages.log)
        used |= {log for log in side_logs if log is not None}
    for log in logs:
        if log not in used:
            broker.store.delete_log(log)


def _logs_of_queues(logs: Iterable[Log]) -> QueueLogs:
    """Return queues' logs by virtual host and name, of several the youngest: others were being deleted."""
    logs_by_name: QueueLogs = {}
    for log in sorted(logs, key=lambda log: log.id):
        if log.spec.label:
            row = row_of(log)
            logs_by_name[row.vhost, row.name] = log
    return logs_by_name
