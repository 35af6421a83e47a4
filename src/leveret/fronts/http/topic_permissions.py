"""`/api/topic-permissions`: the routing keys that users may publish and bind with. For administrators.

    GET    /api/topic-permissions                  topic permissions of all users
    GET    /api/topic-permissions/{vhost}/{name}   those of a user in a virtual host
    PUT    /api/topic-permissions/{vhost}/{name}   {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    DELETE /api/topic-permissions/{vhost}/{name}   removes those of all exchanges
    GET    /api/vhosts/{vhost}/topic-permissions
    GET    /api/users/{name}/topic-permissions

Paths, fields and statuses are RabbitMQ's. Rules are left to `broker.access.topic_permissions`.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access import topic_permissions
from leveret.broker.access.accounts import User
from leveret.broker.access.administration import find_user
from leveret.broker.broker import Broker
from leveret.broker.views.users import TopicPermissionView, each_topic_permission
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import check_administrator
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body, check_fields, check_required, required_text_in

_REQUIRED = ("exchange", "write", "read")
_FIELDS = (*_REQUIRED, "user", "vhost")
"""RabbitMQ's tools repeat `user` and `vhost` in the body."""


class TopicPermissions:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/topic-permissions", make.reading(self.show_all)),
            Route("/api/vhosts/{vhost}/topic-permissions", make.reading(self.show_in_vhost)),
            Route("/api/users/{name}/topic-permissions", make.reading(self.show_of_user)),
            make.by_method(
                "/api/topic-permissions/{vhost}/{name}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return self._listed()

    def show_in_vhost(self, request: Request, user: User) -> Response:
        check_administrator(user)
        vhost = segment(request, "vhost")
        if vhost not in vhost_names(self._broker):
            raise NotFound
        return self._listed(vhost=vhost)

    def show_of_user(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return self._listed(name=find_user(self._broker, segment(request, "name")).name)

    def show(self, request: Request, user: User) -> Response:
        check_administrator(user)
        vhost, name = segment(request, "vhost"), segment(request, "name")
        if not self._views(vhost, name):
            raise NotFound
        return self._listed(vhost, name)

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Set the patterns for an exchange: 201 if the user had none in the virtual host, otherwise 204."""
        check_administrator(user)
        check_fields(body, _FIELDS)
        check_required(body, _REQUIRED)
        exchange, write, read = (required_text_in(body, name) for name in _REQUIRED)
        vhost, name = segment(request, "vhost"), segment(request, "name")
        self._changed()
        is_new = topic_permissions.permit_topic(self._broker, vhost, name, exchange, write=write, read=read)
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        vhost, name = segment(request, "vhost"), segment(request, "name")
        self._changed()
        topic_permissions.forbid_topics(self._broker, vhost, name)
        return Response(status_code=204)

    def _views(self, vhost: str | None, name: str | None) -> list[TopicPermissionView]:
        return [
            view
            for view in each_topic_permission(self._broker)
            if vhost in (None, view.vhost) and name in (None, view.user)
        ]

    def _listed(self, vhost: str | None = None, name: str | None = None) -> Response:
        return reply_list(map(_described, self._views(vhost, name)))


def _described(view: TopicPermissionView) -> dict[str, object]:
    return {field: text(value) for field, value in view._asdict().items()}
