"""`/api/queues`: looking at queues and purging them.

    GET    /api/queues                         all that the user may see
    GET    /api/queues/{vhost}                 those of a virtual host
    GET    /api/queues/{vhost}/{name}          one
    DELETE /api/queues/{vhost}/{name}/contents drops what is not with consumers
    DELETE /api/queues/{vhost}/{name}/queries/{query}
                                               ends a query of Spark's: what it holds goes back

Fields have RabbitMQ's names and meaning, but `messages` also counts what is delayed. Ours are `delayed`,
`returned` (messages that came back at least once), `low` and `span` (the cursor's lowest unsettled offset,
and how far what was handed out reaches above it), and `queries`: what Spark's queries hold of it (`messages`
in `leases`), up to which lease they have acked (`settled`), and when they were last heard of (`seen`). Of a
stream `messages` are those that can be read, from `first_offset` to `last_offset`; its consumers are those
that read it by themselves and the members of its `groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.leases import Query
from leveret.broker.queue import Queue
from leveret.broker.streams.stream import Stream
from leveret.broker.vhost import VirtualHost
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.errors import NotAuthorised, NotFound
from leveret.fronts.http.paths import segment
from leveret.fronts.http.queue_rows import QueueRows, describe_fixed, is_plain
from leveret.fronts.http.replies import PIECE, encoded, reply, reply_rows, text

PLAIN_ROWS = 512
"""In a piece: 1.5 ms of work. Between two pieces all others have a turn, which may take longer."""
_WHO_BYTES_MAX = 255
"""Of who has done something, as the journal keeps it."""


class Queues:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        """`changed` is called before something is changed: the broker's turn must follow."""
        self._broker = broker
        self._changed = changed
        self._rows = QueueRows()

    def show_all(self, request: Request, user: User) -> Response:
        return self._list(visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        return self._list([enter(self._broker, user, segment(request, "vhost"))])

    def _list(self, vhosts: Iterable[VirtualHost]) -> Response:
        """The queues there are now, each as it is when its turn comes; those that go meanwhile are left
        out."""
        queues = [vhost.queues[name] for vhost in vhosts for name in sorted(vhost.queues)]
        others = sum(not is_plain(queue) for queue in queues)
        rows = (self._row(queue) for queue in queues if not queue.deleted)
        return reply_rows(rows, at_once=PIECE if others > PIECE else PLAIN_ROWS)

    def _row(self, queue: Queue) -> str:
        return self._rows.row(queue) if is_plain(queue) else encoded(describe(queue))

    def show(self, request: Request, user: User) -> Response:
        return reply(describe(self._find(request, user)))

    def purge(self, request: Request, user: User) -> Response:
        queue = self._find_to_change(request, user)
        if isinstance(queue, Stream):
            raise queue.not_supported("queue.purge")
        self._changed()
        self._broker.bring_up_to_date(queue)
        queue.purge(who=user.name.encode("utf-8", "surrogateescape")[:_WHO_BYTES_MAX])
        return Response(status_code=204)

    def release(self, request: Request, user: User) -> Response:
        queue = self._find_to_change(request, user)
        query = segment(request, "query")
        if queue.leases is None or query not in queue.leases.queries:
            raise NotFound
        queue.leases.check_operate(query, user)
        self._changed()
        queue.leases.release(query)
        return Response(status_code=204)

    def _find_to_change(self, request: Request, user: User) -> Queue:
        queue = self._find(request, user)
        if not user.may("read", queue.vhost.name, queue.name):
            raise NotAuthorised("Access refused.")
        if queue.owner is not None:
            raise queue.locked()
        return queue

    def _find(self, request: Request, user: User) -> Queue:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        queue = vhost.queues.get(segment(request, "name"))
        if queue is None:
            raise NotFound
        return queue


def describe(queue: Queue) -> dict[str, object]:
    return _describe_any(queue) | (_describe_stream(queue) if isinstance(queue, Stream) else {})


def _describe_any(queue: Queue) -> dict[str, object]:
    ready, unacked, delayed = queue.ready, queue.unacked, queue.delayed
    return describe_fixed(queue) | {
        "consumers": len(queue.consumers),
        "messages": ready + unacked + delayed,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "delayed": delayed,
        "returned": len(queue.cursor.returns),
        "low": queue.cursor.settled.low,
        "span": queue.cursor.settled.span,
        "queries": [_describe_query(query) for query in _queries(queue)],
    }


def _describe_stream(stream: Stream) -> dict[str, object]:
    end, first = stream.readable(), stream.cursor.waiting.first_ready()
    is_empty = first is None or first >= end
    groups = [partition.group for partition in stream.partitions]
    return {
        "consumers": len(stream.consumers) + sum(len(group.members) for group in groups),
        "first_offset": None if is_empty else first,
        "last_offset": stream.last,
        "bytes": stream.log.size_bytes,
        "groups": [text(group.name) for group in groups],
    }


def _queries(queue: Queue) -> Iterable[Query]:
    return () if queue.leases is None else queue.leases.queries.values()


def _describe_query(query: Query) -> dict[str, object]:
    return {
        "name": text(query.name),
        "owner": text(query.owner),
        "run": query.epoch,
        "settled": query.settled,
        "leases": len(query.leases),
        "messages": query.messages,
        "seen": query.seen_us // 1_000_000,
    }
