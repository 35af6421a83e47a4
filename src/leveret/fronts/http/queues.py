"""`/api/queues`: show queues, purge them, release queries.

    GET    /api/queues                         all queues that the user may see
    GET    /api/queues/{vhost}                 queues of a virtual host
    GET    /api/queues/{vhost}/{name}          one queue
    DELETE /api/queues/{vhost}/{name}/contents deletes all messages that are not in flight
    DELETE /api/queues/{vhost}/{name}/queries/{query}
                                               ends a Spark query, and requeues its leased messages

Fields have RabbitMQ's names and meaning, but `messages` includes delayed messages. Fields of our own:

    delayed     messages that wait for their delay
    returned    messages that were requeued at least once
    low         the lowest unsettled offset
    span        how far delivered offsets reach above `low`
    queries     Spark queries: leased `messages` in `leases`, the last acked lease (`settled`), and the
                time of the last request (`seen`)

For a stream, `messages` are the readable ones, from `first_offset` to `last_offset`. Its consumers are those
that read it without a group, and the members of its `groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import queues as operations
from leveret.broker.views.queues import each_queue, one_queue
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import PIECE, reply, reply_rows
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.queue_rows import QueueRows, describe

PLAIN_ROWS = 256
"""Rows of a piece: 2 ms of work. Between two pieces the other clients have a turn."""


class Queues:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        """`changed` is called before each change: it begins a turn of the broker."""
        self._broker = broker
        self._changed = changed
        self._rows = QueueRows()

    def routes(self, make: Endpoints) -> list[Route]:
        one_queue = "/api/queues/{vhost}/{name}"
        return [
            Route("/api/queues", make.reading(self.show_all)),
            Route("/api/queues/{vhost}", make.reading(self.show_vhost)),
            Route(one_queue, make.reading(self.show)),
            Route(f"{one_queue}/contents", make.reading(self.purge), methods=["DELETE"]),
            Route(f"{one_queue}/queries/{{query}}", make.reading(self.release), methods=["DELETE"]),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        return self._list(visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        return self._list([enter(self._broker, user, segment(request, "vhost"))])

    def _list(self, vhosts: Collection[str]) -> Response:
        queues = each_queue(self._broker, vhosts)
        return reply_rows(
            map(self._rows.row, queues.views), at_once=PIECE if queues.costly > PIECE else PLAIN_ROWS
        )

    def show(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        queue = one_queue(self._broker, vhost, segment(request, "name"))
        if queue is None:
            raise NotFound
        return reply(describe(queue))

    def purge(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        operations.purge(self._broker, user, vhost, segment(request, "name"), begin=self._changed)
        return Response(status_code=204)

    def release(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name, query = segment(request, "name"), segment(request, "query")
        operations.release_query(self._broker, user, vhost, name, query, begin=self._changed)
        return Response(status_code=204)
