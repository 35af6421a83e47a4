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

from collections.abc import Callable, Collection

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import queues as operations
from leveret.broker.views.queues import each_queue, one_queue
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import PIECE, reply, reply_rows
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.queue_rows import QueueRows, describe

PLAIN_ROWS = 256
"""In a piece: 2 ms of work. Between two pieces all others have a turn, which may take longer."""


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
