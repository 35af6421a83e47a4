"""Answers the requests of bulk readers and writers: permissions, leases, snapshots, staged batches.

Runs in the broker's event loop. Each request becomes calls of the broker and one answer; an error becomes
`Refused`, with a code and a sentence. Requests about streams and topics are left to `stream_requests`,
sockets and processes to `endpoint`. The rule: the caller sends an answer only when its changes are durable.
"""

from __future__ import annotations

from leveret.broker.access.accounts import ADMINISTRATOR, User
from leveret.broker.broker import Broker
from leveret.broker.errors import (
    AccessRefused,
    BrokerError,
    Locked,
    Malformed,
    NotFound,
    PreconditionFailed,
    QueryRefused,
    UnknownExchangeType,
    Unsupported,
)
from leveret.broker.queries.lease_notes import LeaseNote
from leveret.broker.queries.leases import Leases
from leveret.broker.queries.readable_offsets import check_same, existing, snapshot
from leveret.broker.queries.row_routing import Row, RowOptions
from leveret.broker.queries.staged_batch_notes import StageName
from leveret.broker.queues.queue import Queue
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.vhost import VirtualHost
from leveret.flight import actions
from leveret.flight.tickets import StageDescriptor, pack_ranges
from leveret.fronts.flight.stream_requests import StreamRequests, ranges_of, reason
from leveret.storage.errors import StorageError, WriteFailed
from leveret.storage.offset_ranges import total

CODES: dict[type[BrokerError], int] = {
    AccessRefused: 403,
    NotFound: 404,
    Locked: 405,
    PreconditionFailed: 406,
    UnknownExchangeType: 503,
    Unsupported: 540,
    Malformed: 502,
}


class Answers:
    """Example: `answers.to("guest", actions.Open(...))`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stream_requests = StreamRequests()

    def to(self, user: str, request: actions.Request) -> actions.Answer:
        """Carry out a user's request; return its answer, or the refusal with its reason."""
        try:
            self._broker.flush()
            return self._do(self._user(user), request)
        except (BrokerError, StorageError) as error:
            return refused(error)

    def stage(
        self, user: str, descriptor: StageDescriptor, rows: list[Row], *, before: int = 0
    ) -> actions.Answer:
        """Add hidden rows to a stage that has `before` rows. A call without rows ends a complete write."""
        try:
            writer = self._user(user)
            vhost = self._vhost(writer, descriptor.vhost)
            timeout_us = int(descriptor.timeout_s * 1_000_000)
            options = RowOptions(writer, descriptor.mandatory, descriptor.unroutable, timeout_us)
            name = StageName(descriptor.query, descriptor.batch, descriptor.stage)
            self._broker.flush()
            vhost.batches().write(name, rows, options, before=before)
        except (BrokerError, StorageError) as error:
            return refused(error)
        return actions.Done()

    def queue_of(self, user: str, vhost: str, queue: str, log_id: int) -> Destination:
        """Return the queue; raise if the user may not read it, or it is missing or was replaced."""
        destination = self._queue(self._user(user), vhost, queue)
        check_same(destination, log_id)
        return destination

    def check_reader(self, name: str, vhost: str, queue: str) -> None:
        """Raise if the user has no permission to read the queue. The queue may be deleted meanwhile."""
        user = self._user(name)
        self._vhost(user, vhost)
        user.check("read", vhost, "queue", queue)

    def _do(self, user: User, request: actions.Request) -> actions.Answer:  # noqa: C901  # one case per request
        match request:
            case (
                actions.Locate()
                | actions.Follow()
                | actions.Advance()
                | actions.Cover()
                | actions.RejectRead()
            ):
                return self._stream_requests.answer(user, self._vhost(user, request.vhost), request)
            case actions.Look():
                queue = self._plain_queue(user, request.vhost, request.queue)
                return actions.Looked(queue.log_id, queue.ready)
            case actions.Open():
                leases = self._plain_queue(user, request.vhost, request.queue).queries()
                timeout_us = int(request.timeout_s * 1_000_000)
                query = leases.open(request.query, user=user, timeout_us=timeout_us, run=request.run)
                return actions.Opened(query.epoch, leases.queue.log_id, query.settled, query.last)
            case actions.Lease():
                return self._lease(self._leases(user, request, log_id=request.log_id), request)
            case actions.Plan():
                leases = self._leases(user, request, log_id=request.log_id)
                notes = leases.plan(leases.check(request.query, request.epoch), request.start, request.end)
                return actions.Planned(leases.queue.log_id, [_portion(note) for note in notes if note.ranges])
            case actions.Reject():
                leases = self._leases(user, request)
                ranges = existing(ranges_of(request.ranges), leases.queue)
                leases.reject(request.query, ranges, why=reason(request.why))
                return actions.Done()
            case actions.Release():
                self._leases(user, request).release(request.query)
                return actions.Done()
            case actions.Snapshot():
                return self._snapshot(self._plain_queue(user, request.vhost, request.queue), request)
            case actions.Commit():
                batches = self._vhost(user, request.vhost).batches()
                shown = batches.commit(request.query, request.batch, request.stages, user=user)
                return actions.Committed(shown or 0, shown is None)
            case actions.TakePicture() | actions.DropPicture():
                raise AssertionError("store snapshots are handled by the Flight process")
            case actions.Abort():
                batches = self._vhost(user, request.vhost).batches()
                batches.abort(request.query, request.batch, request.stages, user=user)
                return actions.Done()
            case actions.Address():
                vhost = self._vhost(user, request.vhost)
                for name in request.exchanges:
                    user.check("write", vhost.name, "exchange", name)
                    vhost.target(name)
                return actions.Done()

    def _lease(self, leases: Leases, request: actions.Lease) -> actions.Leased:
        query = leases.check(request.query, request.epoch)
        leases.settle(query, request.start)
        end = request.start
        if not request.settle_only:
            end = leases.next(
                query, request.start, max_messages=request.max_messages, max_bytes=request.max_bytes
            )
        lease = query.leases.get(end)
        return actions.Leased(end, lease.messages if lease else 0, leases.queue.ready, query.settled)

    def _snapshot(self, queue: Queue, request: actions.Snapshot) -> actions.Planned:
        taken = snapshot(queue, request.start, request.stop)
        portion = actions.Portion(
            pack_ranges(taken.ranges), total(taken.ranges), taken.redelivered_below, taken.returns
        )
        return actions.Planned(taken.log_id, [portion])

    # permissions

    def check_auditor(self, name: str) -> None:
        """Raise if the user is not an administrator: an audit shows all messages."""
        user = self._user(name)
        if ADMINISTRATOR not in user.tags:
            raise AccessRefused(
                f"an audit needs the tag '{ADMINISTRATOR}', which user '{name}' does not have"
            )

    def _user(self, name: str) -> User:
        user = self._broker.accounts.users.get(name)
        if user is None:
            raise AccessRefused(f"user '{name}' does not exist any more")
        return user

    def _vhost(self, user: User, name: str) -> VirtualHost:
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost '{name}' not found")
        if name not in user.permissions:
            raise AccessRefused(f"access to vhost '{name}' refused for user '{user.name}'")
        return vhost

    def _queue(self, user: User, vhost: str, name: str) -> Destination:
        queue = self._vhost(user, vhost).queue(name)
        user.check("read", vhost, "queue", name)
        if queue.owner is not None:
            raise queue.locked()
        return queue

    def _plain_queue(self, user: User, vhost: str, name: str) -> Queue:
        """Return a queue that the user may read; raise if it is a stream."""
        queue, owner = self._queue(user, vhost, name), self._vhost(user, vhost)
        if name in owner.streams:
            raise QueryRefused(
                "kind",
                f"{queue} is a stream: it has no leases and is read by offset",
                hint="Use option stream.",
            )
        return owner.plain_queues[name]

    def _leases(
        self,
        user: User,
        request: actions.Lease | actions.Plan | actions.Reject | actions.Release,
        *,
        log_id: int | None = None,
    ) -> Leases:
        """Return the leases of the queue; raise if the user may not operate the query."""
        queue = self._plain_queue(user, request.vhost, request.queue)
        check_same(queue, log_id)
        leases = queue.queries()
        leases.check_operate(request.query, user)
        return leases


def readable(text: str) -> str:
    """Return the text with `?` in place of bytes that are not UTF-8, as answers must be UTF-8.

    >>> readable("no exchange '\\udcff'")
    "no exchange '?'"
    """
    return text.encode("utf-8", "replace").decode()


def refused(error: BrokerError | StorageError) -> actions.Refused:
    """Return the refusal for an error, with AMQP's code."""
    if isinstance(error, BrokerError):
        hint, kind = (error.hint, error.kind) if isinstance(error, QueryRefused) else ("", "")
        code = next(CODES[base] for base in type(error).__mro__ if base in CODES)
        return actions.Refused(code, readable(error.sentence), hint, kind)
    return actions.Refused(541, error.message, error.hint, "busy" if isinstance(error, WriteFailed) else "")


def _portion(lease: LeaseNote) -> actions.Portion:
    return actions.Portion(pack_ranges(lease.ranges), lease.messages, lease.redelivered_below, lease.counts)
