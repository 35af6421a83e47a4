"""A virtual host: creates and deletes its exchanges, queues and bindings.

`VirtualHost` owns the changes of the topology, including what is deleted along with something else. Its base
`topology.Topology` owns lookup and routing; callers check permissions and answer the client. Durable objects
are handed to the broker as definition changes. The rule: every change raises `version`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from leveret.broker import auxiliary_logs
from leveret.broker.auxiliary_logs import SideLogs
from leveret.broker.canonical import Value
from leveret.broker.core import DefiningCore
from leveret.broker.definitions import BindingRow, Change, ExchangeRow, QueueRow
from leveret.broker.exchanges import ROUTERS
from leveret.broker.exchanges.exchange import Bound, Exchange
from leveret.broker.groups.registry import Groups
from leveret.broker.queries.lease_repair import show_strays
from leveret.broker.queries.leases import Leases
from leveret.broker.queries.staged_batches import Stages
from leveret.broker.queues import deduplication
from leveret.broker.queues.arguments import alternate_exchange, declared_settings
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_labels import label_of, row_of
from leveret.broker.queues.queue_settings import QueueSettings
from leveret.broker.sessions.returned_messages import ReturnedMessages
from leveret.broker.streams.stream import Stream, retention_of
from leveret.broker.vhosts.destination import Destination, Owner
from leveret.broker.vhosts.metadata import Metadata
from leveret.broker.vhosts.policies import Policies
from leveret.broker.vhosts.policy_changes import apply_to_exchange, apply_to_queue
from leveret.broker.vhosts.topology import Topology
from leveret.storage.cursor import Cursor
from leveret.storage.log import Log
from leveret.storage.offset_set import OffsetSet
from leveret.storage.retention import Retention
from leveret.storage.well_known_names import OWN_CURSOR


class VirtualHost(Topology):
    """`vhost.add_exchange(...)`, `vhost.add_queue(...)`, `vhost.bind(...)`, and their opposites."""

    def __init__(self, broker: DefiningCore, name: str) -> None:
        super().__init__(broker, name)
        self.policies = Policies()
        self.metadata = Metadata()
        self.groups = Groups(self)
        self.returned_messages = ReturnedMessages(self)
        self.stages: Stages | None = None
        """The staged batches; None until the first one."""
        self._unbound: deque[Exchange] = deque()
        """Exchanges that have lost a binding and may have to be deleted."""
        self._deleting_unbound = False

    # exchanges

    def add_exchange(
        self,
        name: str,
        type_: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        table: Mapping[str, Value],
    ) -> Exchange:
        row = ExchangeRow(self.name, name, type_, auto_delete, internal, table)
        exchange = _exchange_of(row, durable=durable)
        if durable:
            self.broker.definitions.check()
        self.exchanges[name] = exchange
        apply_to_exchange(self, exchange)
        self.version += 1
        if durable:
            exchange.defined = self.broker.define(Change(row), undo=lambda: self._undo_exchange(exchange))
        return exchange

    def _undo_exchange(self, exchange: Exchange) -> None:
        """Delete a new exchange whose definition can't be written."""
        if self.exchanges.get(exchange.name) is exchange:
            self.delete_exchange(exchange)

    def delete_exchange(self, exchange: Exchange) -> int:
        """Delete an exchange with its bindings on both sides; return the number of the definition change."""
        changes = []
        for binding in list(exchange.router.bindings):
            self._unregister(exchange, binding.destination, all_bindings=True)
            changes += self._binding_changes(exchange, *binding, removed=True)
        del self.exchanges[exchange.name]
        self.broker.counters.deleted_exchanges.take_over(exchange.counters)
        if exchange.durable:
            changes.append(Change(ExchangeRow(self.name, exchange.name, exchange.type), removed=True))
        changes += self._remove_bindings_to(exchange)
        self.version += 1
        number = self.broker.define(*changes)
        self._delete_unbound()
        return number

    # queues

    def add_queue(
        self,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        owner: Owner | None,
        table: dict[str, Value],
        declared: QueueSettings,
    ) -> Destination:
        store = self.broker.store
        lasting = durable and owner is None
        if lasting:
            self.broker.definitions.check()
        label = label_of(QueueRow(self.name, name, 0, auto_delete, table)) if lasting else ""
        log = store.create_log(label=label, retention=_retention(declared))
        cursor = store.create_cursor(
            log, OWN_CURSOR, priorities=declared.max_priority, audit_us=declared.audit_us
        )
        dedup = None
        if declared.dedup:
            dedup = deduplication.create(store, log, window=declared.dedup_window, lasting=lasting)
        queue = self._make_queue(
            name,
            cursor=cursor,
            declared=declared,
            table=table,
            durable=durable,
            auto_delete=auto_delete,
            owner=owner,
            dedup=dedup,
        )
        self.version += 1
        self.broker.counters.churn.queues_declared += 1
        self.broker.counters.churn.queues_created += 1
        if declared.audit_us:
            self.returned_messages.update_retention()
        if lasting:
            change = Change(self._queue_row(queue))
            queue.defined = self.broker.define(change, undo=lambda: self.delete_queue(queue))
        return queue

    def _make_queue(
        self,
        name: str,
        *,
        cursor: Cursor,
        declared: QueueSettings,
        table: dict[str, Value],
        durable: bool = True,
        auto_delete: bool = False,
        owner: Owner | None = None,
        dedup: deduplication.Dedup | None = None,
    ) -> Destination:
        if declared.queue_type == "stream":
            stream = self.queues[name] = self.streams[name] = Stream(
                self.broker, self, name, cursor=cursor, declared=declared, table=table, dedup=dedup
            )
            apply_to_queue(self, stream)
            return stream
        queue = self.queues[name] = self.plain_queues[name] = Queue(
            self.broker,
            self,
            name,
            cursor=cursor,
            declared=declared,
            table=table,
            durable=durable,
            auto_delete=auto_delete,
            owner=owner,
            dedup=dedup,
        )
        apply_to_queue(self, queue)
        return queue

    def add_lasting_queue(self, name: str) -> Destination:
        """Create a durable queue without arguments."""
        settings = QueueSettings()
        return self.add_queue(name, durable=True, auto_delete=False, owner=None, table={}, declared=settings)

    def delete_queue(self, queue: Destination) -> int:
        """Delete a queue with bindings and messages, cancel its consumers; return the change's number."""
        if queue.deleted:
            return 0
        queue.deleted = True
        if queue.name in self.streams:
            self.groups.stream_deleted(self.streams.pop(queue.name))
        self.plain_queues.pop(queue.name, None)
        del self.queues[queue.name]
        self.version += 1
        self.broker.counters.queue_deleted(queue.settings.queue_type, queue.counters)
        changes = self._remove_bindings_to(queue)
        if queue.durable and queue.owner is None:
            changes.append(Change(self._queue_row(queue), removed=True))
        number = self.broker.define(*changes)
        self._delete_unbound()
        queue.close()
        if queue.settings.audit_us:
            self.returned_messages.update_retention()
        if queue.trail is not None:
            self.broker.ledger.forget_trail(queue.trail)
        for log in queue.logs:
            self.broker.store.delete_log(log)
        return number

    def close(self) -> list[Log]:
        """End all objects of a virtual host that is deleted; return its logs.

        Nothing is written: the logs are deleted when the deletion of the virtual host is on disk.
        """
        queues = list(self.queues.values())
        for queue in queues:
            # A group that reads a deleted stream keeps its cursor.
            queue.deleted = True
        for group in list(self.groups):
            group.close()
        if self.stages is not None:
            self.stages.close()
        logs = [log for log in self.side_logs if log is not None]
        for queue in queues:
            queue.close()
            self.broker.counters.queue_deleted(queue.settings.queue_type, queue.counters)
            if queue.trail is not None:
                self.broker.ledger.forget_trail(queue.trail)
            logs += queue.logs
        for exchange in self.exchanges.values():
            self.broker.counters.deleted_exchanges.take_over(exchange.counters)
        for objects in (self.queues, self.plain_queues, self.streams, self.exchanges):
            objects.clear()
        self.version += 1
        return logs

    @property
    def side_logs(self) -> tuple[Log | None, Log | None, Log | None]:
        """The logs of staged batches, groups and returned messages."""
        stages_log = self.stages.log if self.stages else None
        return stages_log, self.groups.log, self.returned_messages.log

    def retire(self) -> None:
        """Let streams drop messages that exceed their retention."""
        for queue in self.queues.values():
            queue.retire()

    # batches

    def batches(self) -> Stages:
        """Return the staged batches of this virtual host."""
        if self.stages is None:
            self.stages = Stages(self)
        return self.stages

    def hidden(self, queue: Destination) -> OffsetSet:
        """Return the offsets of rows in a queue or stream whose batch is not committed."""
        return OffsetSet() if self.stages is None else self.stages.hidden(queue)

    def restore_returned(self, side_logs: SideLogs) -> None:
        """Restore the returned messages, after the queues, whose audit windows limit their age."""
        self.returned_messages.restore(side_logs.get((auxiliary_logs.RETURNED, self.name)))

    def restore_batches(self, side_logs: SideLogs) -> None:
        """Restore staged batches, after the queues; make leased messages ready that no note mentions."""
        log = side_logs.get((auxiliary_logs.STAGES, self.name))
        if log is not None:
            self.stages = Stages(self, log)
        for queue in self.queues.values():
            plain = self.plain_queues.get(queue.name)
            leased = [] if plain is None or plain.leases is None else list(plain.leases.held())
            show_strays(queue, [*leased, *self.hidden(queue).ranges()])

    # bindings

    def bind(self, source: Exchange, destination: Bound, key: str, arguments: Mapping[str, Value]) -> int:
        """Bind; return the number of the definition change that must be committed before the answer."""
        changes = self._binding_changes(source, destination, key, arguments)
        if changes and not source.router.has(destination, key, arguments):
            self.broker.definitions.check()
        if not source.router.bind(destination, key, arguments):
            # The binding exists, but its definition may not be committed yet.
            return self.broker.definitions.last_put
        counts = self._bound_to.setdefault(destination, {})
        counts[source] = counts.get(source, 0) + 1
        self.version += 1
        self.groups.topic_changed(source)
        return self.broker.define(
            *changes, undo=lambda: self._undo_binding(source, destination, key, arguments)
        )

    def _undo_binding(
        self, source: Exchange, destination: Bound, key: str, arguments: Mapping[str, Value]
    ) -> None:
        """Remove a new binding whose definition can't be written; this deletes no auto-delete exchange."""
        if self.exchanges.get(source.name) is not source:
            return
        if source.router.unbind(destination, key, arguments):
            self._unregister(source, destination)
            self.version += 1
            self.groups.topic_lost(source, destination)

    def unbind(self, source: Exchange, destination: Bound, key: str, arguments: Mapping[str, Value]) -> int:
        if not source.router.unbind(destination, key, arguments):
            return 0
        self._unregister(source, destination)
        self.version += 1
        number = self.broker.define(*self._binding_changes(source, destination, key, arguments, removed=True))
        self._unbound.append(source)
        self._delete_unbound()
        return number

    def _remove_bindings_to(self, destination: Bound) -> list[Change]:
        """Remove all bindings that lead to a destination; return the definition changes."""
        changes = []
        for source in self._bound_to.pop(destination, {}):
            for binding in source.router.bindings_of(destination):
                changes += self._binding_changes(source, *binding, removed=True)
            source.router.forget(destination)
            self._unbound.append(source)
        return changes

    def _delete_unbound(self) -> None:
        """Delete auto-delete exchanges that have lost their last binding, also those that follow from it."""
        while not self._deleting_unbound and self._unbound:
            exchange = self._unbound.popleft()
            is_unbound = exchange.auto_delete and not len(exchange.router)
            if is_unbound and self.exchanges.get(exchange.name) is exchange:
                self._deleting_unbound = True
                self.delete_exchange(exchange)
                self._deleting_unbound = False

    def _unregister(self, source: Exchange, destination: Bound, *, all_bindings: bool = False) -> None:
        """Subtract one binding, or all bindings, of a source and a destination from `_bound_to`."""
        counts = self._bound_to.get(destination, {})
        left = counts.get(source, 0) - 1
        if left > 0 and not all_bindings:
            counts[source] = left
        else:
            counts.pop(source, None)
        if not counts:
            self._bound_to.pop(destination, None)

    def restore_groups(self, side_logs: SideLogs) -> None:
        """Restore the groups, after the bindings, which determine a topic's partitions."""
        self.groups.restore(side_logs.get((auxiliary_logs.GROUPS, self.name)))

    # definitions

    def _queue_row(self, queue: Destination) -> QueueRow:
        return QueueRow(self.name, queue.name, queue.log.id, queue.auto_delete, queue.table)

    def _binding_changes(
        self,
        source: Exchange,
        destination: Bound,
        key: str,
        arguments: Mapping[str, Value],
        *,
        removed: bool = False,
    ) -> list[Change]:
        """Return the definition change for a binding, none unless both of its ends are durable."""
        exclusive = isinstance(destination, Destination) and destination.owner is not None
        if not (source.durable and destination.durable) or exclusive:
            return []
        to_queue = isinstance(destination, Destination)
        row = BindingRow(self.name, source.name, to_queue, destination.name, key, arguments)
        return [Change(row, removed)]

    def restore_exchange(self, row: ExchangeRow) -> None:
        self.exchanges[row.name] = exchange = _exchange_of(row, durable=True)
        apply_to_exchange(self, exchange)

    def restore_queue(self, row: QueueRow, log: Log | None, side_logs: SideLogs) -> None:
        """Restore a queue over its log, or over a new log if `log` is None.

        The label of the log takes precedence over the row. A log is missing if a crash came before its
        creation was synced, so no confirmed message can have been in it.
        """
        stored_row = row
        if log is None:
            log = self.broker.store.create_log(label=label_of(row))
        row = row_of(log)
        declared = declared_settings(row.arguments, queue=row.name, vhost=self.name)
        if log.spec.retention != _retention(declared):
            self.broker.store.set_retention(log, _retention(declared))
        cursor = self.broker.store.cursors(log.id).get(OWN_CURSOR) or self.broker.store.create_cursor(
            log, OWN_CURSOR, priorities=declared.max_priority, audit_us=declared.audit_us
        )
        dedup = None
        if declared.dedup:
            window = declared.dedup_window
            dedup_log = side_logs.get((auxiliary_logs.DEDUP, log.id))
            dedup = deduplication.restore(self.broker.store, log, dedup_log, window=window)
        queue = self._make_queue(
            row.name,
            cursor=cursor,
            declared=declared,
            table=dict(row.arguments),
            auto_delete=row.auto_delete,
            dedup=dedup,
        )
        notes = side_logs.get((auxiliary_logs.LEASES, log.id))
        if notes is not None and (plain := self.plain_queues.get(row.name)) is not None:
            plain.leases = Leases(plain, plain.deliverer, notes)
        if queue.trail is not None:
            queue.trail.catch_up()
        if row != stored_row:
            queue.defined = self.broker.define(Change(row))
        queue.wake()

    def restore_binding(self, row: BindingRow) -> bool:
        """Restore a binding; return False if one of its ends is missing."""
        source = self.exchanges.get(row.source)
        destination: Bound | None = (self.queues if row.to_queue else self.exchanges).get(row.destination)
        if source is None or destination is None:
            return False
        if source.router.bind(destination, row.routing_key, row.arguments):
            counts = self._bound_to.setdefault(destination, {})
            counts[source] = counts.get(source, 0) + 1
        return True


def _exchange_of(row: ExchangeRow, *, durable: bool) -> Exchange:
    return Exchange(
        row.name,
        row.type,
        ROUTERS[row.type](),
        durable=durable,
        auto_delete=row.auto_delete,
        internal=row.internal,
        table=row.arguments,
        alternate=alternate_exchange(row.arguments, name=row.name, vhost=row.vhost),
    )


def _retention(declared: QueueSettings) -> Retention:
    if declared.queue_type == "stream":
        return retention_of(declared)
    return Retention(audit_us=declared.audit_us if declared.audit_bodies else 0)
