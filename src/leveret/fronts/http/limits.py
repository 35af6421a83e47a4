"""`/api/vhost-limits` and `/api/user-limits`: how many connections, channels and queues there may be.

    GET    /api/vhost-limits[/{vhost}]          [{"vhost": "billing", "value": {"max-queues": 100}}]
    PUT    /api/vhost-limits/{vhost}/{limit}    {"value": 100}; the limits are max-connections, max-queues
    DELETE /api/vhost-limits/{vhost}/{limit}
    GET    /api/user-limits[/{name}]            [{"user": "ann", "value": {"max-channels": 10}}]
    PUT    /api/user-limits/{name}/{limit}      the limits are max-connections, max-channels
    DELETE /api/user-limits/{name}/{limit}

Paths, fields, statuses and texts are RabbitMQ's. Only administrators may set limits. Limits of users are
shown to everybody, those of a virtual host to its users and to monitors. What a limit does is left to the
broker.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import limits
from leveret.broker.views.limits import LimitsView, each_limits
from leveret.broker.views.users import one_user
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import check_administrator, enter, is_monitor, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound, Problem
from leveret.fronts.http.json_replies import reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest, Body, check_fields


class Limits:
    def __init__(self, broker: Broker, *, of_users: bool, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._of_users = of_users
        self._changed = changed
        self._owner = "user" if of_users else "vhost"
        self.path = "/api/user-limits" if of_users else "/api/vhost-limits"
        self.owner_path = f"{self.path}/{{{'name' if of_users else 'vhost'}}}"

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route(self.path, make.reading(self.show_all)),
            Route(self.owner_path, make.reading(self.show)),
            make.by_method(
                f"{self.owner_path}/{{limit}}", PUT=make.changing(self.put), DELETE=make.changing(self.delete)
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        views = each_limits(self._broker, of_user=self._of_users)
        if self._of_users or is_monitor(user):
            return reply_list(map(self._described, views))
        seen = visible(self._broker, user)
        return reply_list(self._described(view) for view in views if view.owner in seen)

    def show(self, request: Request, user: User) -> Response:
        owner = self._name(request)
        if not self._exists(owner):
            raise NotFound
        if not self._of_users and not is_monitor(user):
            enter(self._broker, user, owner)
        views = each_limits(self._broker, of_user=self._of_users)
        return reply_list(self._described(view) for view in views if view.owner == owner)

    def put(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        owner = self._name(request)
        if not self._exists(owner) and self._of_users:
            raise Problem(400, "bad_request", ["no_such_user", text(owner)])
        if not self._exists(owner):
            raise Problem(404, "not_found", "vhost_not_found")
        check_fields(body, ("value", "name", "vhost", "user"))
        if "value" not in body:
            raise BadRequest("[{key_missing,value}]")
        wanted = {segment(request, "limit"): body["value"]}
        limits.put(self._broker, owner, wanted, of_user=self._of_users, begin=self._changed)
        return Response(status_code=204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        owner, limit = self._name(request), segment(request, "limit")
        limits.clear(self._broker, owner, limit, of_user=self._of_users, begin=self._changed)
        return Response(status_code=204)

    def _name(self, request: Request) -> str:
        """Return the name of the virtual host or the user in the path."""
        return segment(request, "name" if self._of_users else "vhost")

    def _exists(self, owner: str) -> bool:
        if self._of_users:
            return one_user(self._broker, owner) is not None
        return owner in vhost_names(self._broker)

    def _described(self, view: LimitsView) -> dict[str, object]:
        return {self._owner: text(view.owner), "value": dict(view.limits)}
