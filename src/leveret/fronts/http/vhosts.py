"""`/api/vhosts`: virtual hosts. Administrators create, change and delete them.

    GET    /api/vhosts                       the virtual hosts that the user may see
    GET    /api/vhosts/{name}                one virtual host
    PUT    /api/vhosts/{name}                {"description": "Invoices", "tags": ["production"]}
    DELETE /api/vhosts/{name}                deletes it with all that is in it, and closes its connections
    POST   /api/vhosts/{name}/start/{node}   does nothing: a virtual host is always running

Paths, fields and statuses are RabbitMQ's. Who creates a virtual host has all permissions in it. The field
`default_queue_type` can be set here, too; RabbitMQ 3.10 takes it on its command line only. Permissions in a
virtual host (`/api/vhosts/{vhost}/permissions`) are left to `users`.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import vhosts as operations
from leveret.broker.views.vhosts import VhostView, one_vhost, vhost_names
from leveret.fronts.http.auth import check_administrator, is_monitor, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound, Problem
from leveret.fronts.http.json_replies import reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body, check_fields, text_in, truth_in
from leveret.fronts.http.users import tags_in

_FIELDS = ("description", "tags", "tracing", "default_queue_type", "name", "vhost")


class Vhosts:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/vhosts", make.reading(self.show_all)),
            make.by_method(
                "/api/vhosts/{name}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
            Route("/api/vhosts/{name}/start/{node}", make.changing(self.start), methods=["POST"]),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        names = vhost_names(self._broker) if is_monitor(user) else visible(self._broker, user)
        views = (one_vhost(self._broker, name) for name in names)
        return reply_list(self._described(view) for view in views if view is not None)

    def show(self, request: Request, user: User) -> Response:
        check_administrator(user)
        view = one_vhost(self._broker, segment(request, "name"))
        if view is None:
            raise NotFound
        return reply(self._described(view))

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Make a virtual host (201), or change an existing one (204)."""
        check_administrator(user)
        check_fields(body, _FIELDS)
        is_new = operations.create(
            self._broker,
            segment(request, "name"),
            description=text_in(body, "description") or "",
            tags=tags_in(body),
            default_queue_type=text_in(body, "default_queue_type"),
            tracing=_tracing_in(body),
            creator=user,
            begin=self._changed,
        )
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        operations.delete(self._broker, segment(request, "name"), begin=self._changed)
        return Response(status_code=204)

    def start(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        name, node = segment(request, "name"), segment(request, "node")
        why = "nodedown" if node != self._broker.node else f'{{no_such_vhost,<<"{name}">>}}'
        if why == "nodedown" or name not in vhost_names(self._broker):
            raise Problem(400, "bad_request", f"Request to node {node} failed with {why}")
        return Response(status_code=204)

    def _described(self, view: VhostView) -> dict[str, object]:
        metadata: dict[str, object] = {
            "description": text(view.description),
            "tags": [text(tag) for tag in view.tags],
        }
        default = {"default_queue_type": view.default_queue_type}
        return {
            "name": text(view.name),
            **metadata,
            **default,
            "metadata": metadata if view.default_queue_type == "undefined" else metadata | default,
            "tracing": view.tracing,
            "cluster_state": {text(self._broker.node): "running"},
            "messages": view.ready + view.unacked + view.delayed,
            "messages_ready": view.ready,
            "messages_unacknowledged": view.unacked,
            "delayed": view.delayed,
        }


def _tracing_in(body: Body) -> bool | None:
    return None if body.get("tracing") is None else truth_in(body, "tracing")
