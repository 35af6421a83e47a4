"""What the broker answers to bulk readers and writers: rights, leases, snapshots, stages.

Runs in the broker's loop. Each request becomes calls of the broker and one answer; what the broker refuses
becomes `Refused`, with its code and its sentence. When an answer may be given, it is durable: the caller
sees to that. Those about streams and topics are `reading`'s; sockets and processes are `endpoint`'s.
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
from leveret.fronts.flight.stream_requests import Reading, ranges_of, reason
from leveret.storage.errors import StorageError, WriteFailed
from leveret.storage.offset_ranges import total

CODES: dict[type[BrokerError], int] = {
    AccessRefused: 403,
    NotFound: 404,
    Locked: 405,
    PreconditionFailed: 406,
    Unsupported: 540,
    Malformed: 502,
}


class Answers:
    """`answers.to("guest", actions.Open(...))`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reading = Reading()

    def to(self, user: str, request: actions.Request) -> actions.Answer:
        """Carry out the request of a user; return its answer, or the refusal with its reason."""
        try:
            self._broker.flush()
            return self._do(self._user(user), request)
        except (BrokerError, StorageError) as error:
            return refused(error)

    def stage(
        self, user: str, descriptor: StageDescriptor, rows: list[Row], *, before: int = 0
    ) -> actions.Answer:
        """Takes rows in, hidden, behind those before; no rows end a write, if all of those are there."""
        try:
            known = self._user(user)
            vhost = self._vhost(known, descriptor.vhost)
            timeout_us = int(descriptor.timeout_s * 1_000_000)
            terms = RowOptions(known, descriptor.mandatory, descriptor.unroutable, timeout_us)
            name = StageName(descriptor.query, descriptor.batch, descriptor.stage)
            self._broker.flush()
            vhost.batches().write(name, rows, terms, before=before)
        except (BrokerError, StorageError) as error:
            return refused(error)
        return actions.Done()

    def queue_of(self, user: str, vhost: str, queue: str, log_id: int) -> Destination:
        """The queue that a reader wants to read; raises if it may not, or if it is not there."""
        found = self._queue(self._user(user), vhost, queue)
        check_same(found, log_id)
        return found

    def check_reader(self, name: str, vhost: str, queue: str) -> None:
        """Raise if a user may not read a queue any more. Whether there still is one is not asked."""
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
                return self._reading.answer(user, self._vhost(user, request.vhost), request)
            case actions.Look():
                queue = self._consumed(user, request.vhost, request.queue)
                return actions.Looked(queue.log_id, queue.ready)
            case actions.Open():
                leases = self._consumed(user, request.vhost, request.queue).queries()
                timeout_us = int(request.timeout_s * 1_000_000)
                query = leases.open(request.query, user=user, timeout_us=timeout_us, run=request.run)
                return actions.Opened(query.epoch, leases.queue.log_id, query.settled, query.last)
            case actions.Lease():
                return self._lease(self._operated(user, request, log_id=request.log_id), request)
            case actions.Plan():
                leases = self._operated(user, request, log_id=request.log_id)
                found = leases.plan(leases.check(request.query, request.epoch), request.start, request.end)
                return actions.Planned(leases.queue.log_id, [_portion(each) for each in found if each.ranges])
            case actions.Reject():
                leases = self._operated(user, request)
                ranges = existing(ranges_of(request.ranges), leases.queue)
                leases.reject(request.query, ranges, why=reason(request.why))
                return actions.Done()
            case actions.Release():
                self._operated(user, request).release(request.query)
                return actions.Done()
            case actions.Snapshot():
                return self._snapshot(self._consumed(user, request.vhost, request.queue), request)
            case actions.Commit():
                batches = self._vhost(user, request.vhost).batches()
                shown = batches.commit(request.query, request.batch, request.stages, user=user)
                return actions.Committed(shown or 0, shown is None)
            case actions.TakePicture() | actions.DropPicture():
                raise AssertionError("the process that has the files does this")
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
        found = snapshot(queue, request.start, request.stop)
        portion = actions.Portion(
            pack_ranges(found.ranges), total(found.ranges), found.redelivered_below, found.returns
        )
        return actions.Planned(found.log_id, [portion])

    # who may do what

    def check_auditor(self, name: str) -> None:
        """An audit sees everything: it is for administrators."""
        user = self._user(name)
        if ADMINISTRATOR not in user.tags:
            raise AccessRefused(
                f"an audit is for users with the tag '{ADMINISTRATOR}', and '{name}' has it not"
            )

    def _user(self, name: str) -> User:
        user = self._broker.accounts.users.get(name)
        if user is None:
            raise AccessRefused(f"there is no user '{name}' any more")
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

    def _consumed(self, user: User, vhost: str, name: str) -> Queue:
        """A queue whose messages go to one consumer each: no stream."""
        queue, home = self._queue(user, vhost, name), self._vhost(user, vhost)
        if name in home.streams:
            raise QueryRefused(
                "kind",
                f"{queue} is a stream, which has no leases: it is read by offset",
                hint="Use option stream.",
            )
        return home.plain_queues[name]

    def _operated(
        self,
        user: User,
        request: actions.Lease | actions.Plan | actions.Reject | actions.Release,
        *,
        log_id: int | None = None,
    ) -> Leases:
        """The leases of the queue, if the user may operate the query that the request names."""
        queue = self._consumed(user, request.vhost, request.queue)
        check_same(queue, log_id)
        leases = queue.queries()
        leases.check_operate(request.query, user)
        return leases


def readable(text: str) -> str:
    """Names that are no UTF-8 can be in it, and an answer is UTF-8.

    >>> readable("no exchange '\\udcff'")
    "no exchange '?'"
    """
    return text.encode("utf-8", "replace").decode()


def refused(error: BrokerError | StorageError) -> actions.Refused:
    """Return what a caller is told of an error, with the code that AMQP has for it."""
    if isinstance(error, BrokerError):
        hint, kind = (error.hint, error.kind) if isinstance(error, QueryRefused) else ("", "")
        code = next(CODES[base] for base in type(error).__mro__ if base in CODES)
        return actions.Refused(code, readable(error.sentence), hint, kind)
    return actions.Refused(541, error.message, error.hint, "busy" if isinstance(error, WriteFailed) else "")


def _portion(lease: LeaseNote) -> actions.Portion:
    return actions.Portion(pack_ranges(lease.ranges), lease.messages, lease.redelivered_below, lease.counts)
