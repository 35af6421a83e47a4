"""`/api/users` and `/api/permissions`: users and their permissions. For administrators.

    GET    /api/whoami                       the user of this request; for all users
    GET    /api/users                        all users
    GET    /api/users/without-permissions    users who may not enter any virtual host
    POST   /api/users/bulk-delete            {"users": ["ann", "bob"]}
    GET    /api/users/{name}                 one user
    PUT    /api/users/{name}                 makes or changes a user: {"password": "…", "tags": "monitoring"}
    DELETE /api/users/{name}                 deletes a user and its permissions, and closes its connections
    GET    /api/users/{name}/permissions     permissions of a user in all virtual hosts
    GET    /api/permissions[/{vhost}]        permissions of all users
    GET    /api/permissions/{vhost}/{name}   permissions of one user
    PUT    /api/permissions/{vhost}/{name}   {"configure": "", "write": "^results$", "read": "^orders$"}
    DELETE /api/permissions/{vhost}/{name}   the user may not even connect to the virtual host

Paths, fields and statuses are RabbitMQ's. Instead of `password`, a PUT may have `password_hash` and
`hashing_algorithm`, which are shown to administrators as in RabbitMQ; an empty hash means that no password is
right. Rules are left to `broker.access.administration`, hashes to `broker.access.passwords`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access import administration
from leveret.broker.access.accounts import User
from leveret.broker.access.passwords import SHA256, of_algorithm_and_hash
from leveret.broker.broker import Broker
from leveret.broker.operations import limits
from leveret.broker.usage_limits import check_limits
from leveret.broker.views.users import (
    PermissionView,
    UserView,
    each_permission,
    each_user,
    one_permission,
    one_user,
)
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import check_administrator
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound, Problem
from leveret.fronts.http.json_replies import reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest, Body, check_fields, check_required, text_in

_USER_FIELDS: Final = ("password", "password_hash", "hashing_algorithm", "tags", "limits", "name", "vhost")
_PERMISSIONS: Final = ("configure", "write", "read")


class Users:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/whoami", make.reading(self.show_self)),
            Route("/api/users", make.reading(self.show_all)),
            Route("/api/users/without-permissions", make.reading(self.show_without_permissions)),
            Route("/api/users/bulk-delete", make.changing(self.delete_many), methods=["POST"]),
            make.by_method(
                "/api/users/{name}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
            Route("/api/users/{name}/permissions", make.reading(self.show_permissions_of)),
            Route("/api/permissions", make.reading(self.show_permissions)),
            Route("/api/permissions/{vhost}", make.reading(self.show_permissions_in)),
            Route("/api/vhosts/{vhost}/permissions", make.reading(self.show_permissions_in)),
            make.by_method(
                "/api/permissions/{vhost}/{name}",
                GET=make.reading(self.show_permission),
                PUT=make.changing(self.permit),
                DELETE=make.changing(self.forbid),
            ),
        ]

    def show_self(self, request: Request, user: User) -> Response:
        return reply({"name": text(user.name), "tags": [text(tag) for tag in sorted(user.tags)]})

    def show_all(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_list(map(_described, each_user(self._broker)))

    def show(self, request: Request, user: User) -> Response:
        check_administrator(user)
        view = one_user(self._broker, self._user(request))
        assert view is not None
        return reply(_described(view))

    def show_without_permissions(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_list(_described(view) for view in each_user(self._broker) if not view.vhosts)

    async def put(self, request: Request, user: User, body: Body) -> Response:
        """Make a user (201), or change an existing one (204)."""
        check_administrator(user)
        check_fields(body, _USER_FIELDS)
        if "tags" not in body:
            raise BadRequest("tags_not_present")
        name, password, tags = segment(request, "name"), text_in(body, "password"), tags_in(body)
        password_hash = _hash_in(body)
        if password is not None and password_hash is not None:
            raise BadRequest("both_password_and_password_hash_are_provided")
        administration.check_user(
            self._broker, name, tags=tags, password=password, has_hash=password_hash != ""
        )
        user_limits: Any = body.get("limits") or {}
        if not isinstance(user_limits, dict):
            raise BadRequest("limits must be an object.")
        check_limits(user_limits, of_user=True)
        if password is not None:
            password_hash = await self.hash_password(password)
        self._changed()
        is_new = administration.put_user(self._broker, name, password_hash=password_hash, tags=tags)
        if user_limits:
            limits.put(self._broker, name, user_limits, of_user=True, begin=self._changed)
        return Response(status_code=201 if is_new else 204)

    async def hash_password(self, password: str) -> str:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(hashed: str | None) -> None:
            # A cancelled request has cancelled its future.
            if not answer.done():
                answer.set_result(hashed)

        self._broker.logins.hash_password(password.encode("utf-8", "surrogatepass"), done)
        hashed = await answer
        if hashed is None:
            raise Problem(503, "unavailable", "Too many passwords wait to be hashed. Try again.")
        return hashed

    def delete(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        name = self._user(request)
        self._changed()
        administration.delete_users(self._broker, [name])
        return Response(status_code=204)

    def delete_many(self, request: Request, user: User, body: Body) -> Response:
        """Delete users: all of them, or none if one does not exist."""
        check_administrator(user)
        check_fields(body, ("users",))
        check_required(body, ("users",))
        names: Any = body["users"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest("users must be a list of strings.")
        self._changed()
        administration.delete_users(self._broker, names)
        return Response(status_code=204)

    # permissions

    def show_permissions(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_list(map(_permission, each_permission(self._broker)))

    def show_permissions_in(self, request: Request, user: User) -> Response:
        check_administrator(user)
        vhost = self._vhost(request)
        views = (view for view in each_permission(self._broker) if view.vhost == vhost)
        return reply_list(map(_permission, views))

    def show_permissions_of(self, request: Request, user: User) -> Response:
        check_administrator(user)
        name = self._user(request)
        views = (view for view in each_permission(self._broker) if view.user == name)
        return reply_list(map(_permission, views))

    def show_permission(self, request: Request, user: User) -> Response:
        check_administrator(user)
        name, vhost = self._user(request), self._vhost(request)
        view = one_permission(self._broker, vhost, name)
        if view is None:
            raise NotFound
        return reply(_permission(view))

    def permit(self, request: Request, user: User, body: Body) -> Response:
        """Give a user permissions (201), or replace the ones it has (204)."""
        check_administrator(user)
        vhost, name = self._vhost(request), self._user(request)
        check_fields(body, (*_PERMISSIONS, "user", "vhost"))
        patterns = {}
        for kind in _PERMISSIONS:
            pattern = text_in(body, kind)
            if pattern is None:
                raise BadRequest(f"{kind} is missing: a regular expression, '' for nothing, '.*' for all.")
            patterns[kind] = pattern
        self._changed()
        is_new = administration.permit(self._broker, vhost, name, **patterns)
        return Response(status_code=201 if is_new else 204)

    def forbid(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        vhost, name = self._vhost(request), self._user(request)
        self._changed()
        administration.forbid(self._broker, vhost, name)
        return Response(status_code=204)

    def _user(self, request: Request) -> str:
        """Return the name of an existing user; raise if there is none."""
        return administration.find_user(self._broker, segment(request, "name")).name

    def _vhost(self, request: Request) -> str:
        name = segment(request, "vhost")
        if name not in vhost_names(self._broker):
            raise NotFound
        return name


def _described(user: UserView) -> dict[str, object]:
    return {
        "name": text(user.name),
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": [text(tag) for tag in user.tags],
        "limits": dict(user.limits),
    }


def _permission(permission: PermissionView) -> dict[str, object]:
    patterns = {kind: text(getattr(permission, kind)) for kind in _PERMISSIONS}
    return {"user": text(permission.user), "vhost": text(permission.vhost), **patterns}


def tags_in(body: Body) -> list[str]:
    """Return the tags, given as a list or as a string with commas, as RabbitMQ accepts them."""
    given: Any = body.get("tags", "")
    tags = given.split(",") if isinstance(given, str) else given
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadRequest("tags must be a list of strings, or a string with commas between tags.")
    return [tag.strip() for tag in tags if tag.strip()]


def _hash_in(body: Body) -> str | None:
    """Return the password hash of the body in its stored form, or None."""
    password_hash = text_in(body, "password_hash")
    if password_hash is None:
        return None
    return of_algorithm_and_hash(text_in(body, "hashing_algorithm") or SHA256, password_hash)
