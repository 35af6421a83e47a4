"""`/api/queues`: show, declare and delete queues, purge them, release queries.

    GET    /api/queues[/{vhost}]               queues, in pages, orders and columns: see `listings`
    GET    /api/queues/{vhost}/{name}          one queue, with its consumers and the sizes of its messages
    PUT    /api/queues/{vhost}/{name}          {"durable": true, "auto_delete": false, "arguments": {…}}
    DELETE /api/queues/{vhost}/{name}          deletes a queue; `?if-empty=true`, `?if-unused=true`
    GET    /api/queues/{vhost}/{name}/bindings
    DELETE /api/queues/{vhost}/{name}/contents deletes all messages that are not in flight
    POST   /api/queues/{vhost}/{name}/actions  {"action": "sync"}: for mirrored queues, so nothing to do
    DELETE /api/queues/{vhost}/{name}/queries/{query}
                                               ends a Spark query, and requeues its leased messages

Fields have RabbitMQ's names and meaning, but `messages` includes delayed messages. `disable_stats=true` shows
queues as declared only, with `enable_queue_totals=true` also their numbers of messages. Fields of our own:

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

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import queues as operations
from leveret.broker.operations.queues import QueueDeclaration
from leveret.broker.operations.requester import Requester
from leveret.broker.views.exchanges import bindings_to
from leveret.broker.views.queues import QueueView, consumers_of, each_queue, one_queue, queue_sizes
from leveret.fronts.http import amqp_refusals
from leveret.fronts.http.amqp_refusals import enter_to_declare
from leveret.fronts.http.auth import check_administrator, enter, visible
from leveret.fronts.http.binding_rows import list_bindings
from leveret.fronts.http.consumer_rows import describe_consumer
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import PIECE
from leveret.fronts.http.json_tables import check_short, table_in
from leveret.fronts.http.listings import Rows, reply_listed, reply_object
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.queue_rows import QueueRows, describe_sizes, sortable_columns
from leveret.fronts.http.rates import ranges_of
from leveret.fronts.http.request_bodies import BadRequest, Body, check_present, truth_in

PLAIN_ROWS = 160
"""Rows of a piece: 2 ms of work. Between two pieces the other clients have a turn."""


class Queues:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        """`changed` is called before each change: it begins a turn of the broker."""
        self._broker = broker
        self._changed = changed
        self._rows = QueueRows(broker.node)
        self._columns = sortable_columns()

    def routes(self, make: Endpoints) -> list[Route]:
        one_queue = "/api/queues/{vhost}/{name}"
        return [
            Route("/api/queues", make.reading(self.show_all)),
            Route("/api/queues/{vhost}", make.reading(self.show_vhost)),
            make.by_method(
                one_queue,
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
            Route(f"{one_queue}/bindings", make.reading(self.show_bindings)),
            Route(f"{one_queue}/contents", make.reading(self.purge), methods=["DELETE"]),
            Route(f"{one_queue}/actions", make.changing(self.act), methods=["POST"]),
            Route(f"{one_queue}/queries/{{query}}", make.reading(self.release), methods=["DELETE"]),
        ]

    # showing

    def show_all(self, request: Request, user: User) -> Awaitable[Response]:
        return self._list(request, visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Awaitable[Response]:
        return self._list(request, [enter(self._broker, user, segment(request, "vhost"))])

    def _list(self, request: Request, vhosts: Collection[str]) -> Awaitable[Response]:
        present = each_queue(self._broker, vhosts)
        describe = self._describer(request)

        def row(queue: Any) -> dict[str, object] | None:
            view = present.describe(queue)
            return None if view is None else describe(view)

        def text(queue: Any) -> str | None:
            view = present.describe(queue)
            return None if view is None else self._rows.row(view)

        rows = Rows(
            present.queues,
            row=row,
            cheap=self._columns,
            text=text if describe == self._rows.describe else None,
            at_once=PIECE if present.costly > PIECE else PLAIN_ROWS,
        )
        return reply_listed(request, rows)

    def _describer(self, request: Request) -> Callable[[QueueView], dict[str, object]]:
        """Return the function that describes queues with the fields that the query asks for."""
        query = request.query_params
        if query.get("disable_stats") == "true":
            totals = query.get("enable_queue_totals") == "true"
            return lambda view: self._rows.basic(view, totals=totals)
        ranges = ranges_of(request, now_us=self._broker.now_us())
        if any(ranges):
            return lambda view: self._rows.describe(view, ranges)
        return self._rows.describe

    def show(self, request: Request, user: User) -> Response:
        vhost, name = self._queue(request, user)
        view = one_queue(self._broker, vhost, name)
        assert view is not None
        described = self._describer(request)(view)
        if request.query_params.get("disable_stats") != "true":
            sizes = queue_sizes(self._broker, vhost, name)
            if sizes is not None:
                described |= describe_sizes(sizes)
            consumers = consumers_of(self._broker, vhost, name)
            node = self._broker.node
            described["consumer_details"] = [describe_consumer(consumer, node) for consumer in consumers]
            # Leveret does not count by channel and queue.
            described |= {"incoming": [], "deliveries": []}
        return reply_object(request, described)

    def show_bindings(self, request: Request, user: User) -> Awaitable[Response]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        bindings = bindings_to(self._broker, vhost, segment(request, "name"), is_queue=True)
        return list_bindings(request, bindings)

    # changing

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Declare a queue: 201 if the queue is new, 204 if an equivalent one exists."""
        vhost = enter_to_declare(self._broker, user, segment(request, "vhost"))
        wanted = QueueDeclaration(
            segment(request, "name"),
            table_in(body, "arguments"),
            durable=truth_in(body, "durable"),
            auto_delete=truth_in(body, "auto_delete"),
        )
        check_short("queue", wanted.name)
        if truth_in(body, "exclusive"):
            raise BadRequest("An exclusive queue belongs to a connection: declare the queue over AMQP.")
        requester = Requester(user, self._broker.vhosts[vhost])
        with amqp_refusals.of_declarations():
            _, is_new = operations.declare(self._broker, requester, wanted, begin=self._changed)
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost, name = self._queue(request, user)
        query = request.query_params
        with amqp_refusals.of_declarations():
            operations.delete(
                self._broker,
                Requester(user, self._broker.vhosts[vhost]),
                name,
                if_unused=query.get("if-unused") == "true",
                if_empty=query.get("if-empty") == "true",
                begin=self._changed,
            )
        return Response(status_code=204)

    def act(self, request: Request, user: User, body: Body) -> Response:
        """Answer `sync` and `cancel_sync` as RabbitMQ does for a queue without mirrors."""
        check_administrator(user)
        self._queue(request, user)
        check_present(body, ["action"])
        if body["action"] not in ("sync", "cancel_sync"):
            raise BadRequest(["unknown", body["action"]])
        return Response(status_code=204)

    def purge(self, request: Request, user: User) -> Response:
        vhost, name = self._queue(request, user)
        with amqp_refusals.of_declarations():
            operations.purge(self._broker, user, vhost, name, begin=self._changed)
        return Response(status_code=204)

    def release(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name, query = segment(request, "name"), segment(request, "query")
        operations.release_query(self._broker, user, vhost, name, query, begin=self._changed)
        return Response(status_code=204)

    def _queue(self, request: Request, user: User) -> tuple[str, str]:
        """Return the virtual host and the name of the path's queue; raise if there is none."""
        vhost, name = enter(self._broker, user, segment(request, "vhost")), segment(request, "name")
        if one_queue(self._broker, vhost, name) is None:
            raise NotFound
        return vhost, name
