"""`/api/users` and `/api/permissions`: who there is, and what they may do. For administrators.

    GET    /api/whoami                       who asks; for everybody
    GET    /api/users                        all
    GET    /api/users/{name}                 one
    PUT    /api/users/{name}                 makes or changes one: {"password": "…", "tags": "monitoring"}
    DELETE /api/users/{name}                 with its permissions; its connections are closed
    GET    /api/permissions[/{vhost}]        what users may do
    GET    /api/permissions/{vhost}/{name}   what one may do
    PUT    /api/permissions/{vhost}/{name}   {"configure": "", "write": "^results$", "read": "^orders$"}
    DELETE /api/permissions/{vhost}/{name}   may not even connect there

Paths, fields and statuses are RabbitMQ's; hashes of passwords are neither shown nor taken. What can't be is
`broker.administration`'s to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.access import administration
from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
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
from leveret.fronts.http.errors import NotFound, Problem
from leveret.fronts.http.json_replies import reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest, Body, check_fields, text_in

_RIGHTS: Final = ("configure", "write", "read")


class Users:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        """`changed` is called before something is changed: the broker's turn must follow."""
        self._broker = broker
        self._changed = changed

    def show_self(self, request: Request, user: User) -> Response:
        return reply({"name": text(user.name), "tags": [text(tag) for tag in sorted(user.tags)]})

    def show_all(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_list(map(_described, each_user(self._broker)))

    def show(self, request: Request, user: User) -> Response:
        check_administrator(user)
        found = one_user(self._broker, self._user(request))
        assert found is not None
        return reply(_described(found))

    async def put(self, request: Request, user: User, body: Body) -> Response:
        """201 for a new one, 204 for one that was there."""
        check_administrator(user)
        check_fields(body, ("password", "tags"))
        name, password, tags = segment(request, "name"), text_in(body, "password"), _tags_in(body)
        administration.check_user(self._broker, name, password=password, tags=tags)
        password_hash = None if password is None else await self._hash(password)
        self._changed()
        is_new = administration.put_user(self._broker, name, password_hash=password_hash, tags=tags)
        return Response(status_code=201 if is_new else 204)

    async def _hash(self, password: str) -> str:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def done(hashed: str | None) -> None:
            if not answer.done():  # the request may have been given up
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
        administration.delete_user(self._broker, name)
        return Response(status_code=204)

    # permissions

    def show_permissions(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_list(map(_permission, each_permission(self._broker)))

    def show_permissions_in(self, request: Request, user: User) -> Response:
        check_administrator(user)
        vhost = self._vhost(request)
        return reply_list(_permission(each) for each in each_permission(self._broker) if each.vhost == vhost)

    def show_permission(self, request: Request, user: User) -> Response:
        check_administrator(user)
        name, vhost = self._user(request), self._vhost(request)
        found = one_permission(self._broker, vhost, name)
        if found is None:
            raise NotFound
        return reply(_permission(found))

    def permit(self, request: Request, user: User, body: Body) -> Response:
        """201 where the user had none, 204 where these take the place of others."""
        check_administrator(user)
        vhost, name = self._vhost(request), self._user(request)
        check_fields(body, _RIGHTS)
        rights = {}
        for each in _RIGHTS:
            pattern = text_in(body, each)
            if pattern is None:
                raise BadRequest(f"{each} is missing: a regular expression, '' for nothing, '.*' for all.")
            rights[each] = pattern
        self._changed()
        is_new = administration.permit(self._broker, vhost, name, **rights)
        return Response(status_code=201 if is_new else 204)

    def forbid(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        vhost, name = self._vhost(request), self._user(request)
        self._changed()
        administration.forbid(self._broker, vhost, name)
        return Response(status_code=204)

    def _user(self, request: Request) -> str:
        """The name of a user that is there."""
        return administration.find_user(self._broker, segment(request, "name")).name

    def _vhost(self, request: Request) -> str:
        name = segment(request, "vhost")
        if name not in vhost_names(self._broker):
            raise NotFound
        return name


def _described(user: UserView) -> dict[str, object]:
    return {"name": text(user.name), "tags": [text(tag) for tag in user.tags]}


def _permission(permission: PermissionView) -> dict[str, object]:
    found = {each: text(getattr(permission, each)) for each in _RIGHTS}
    return {"user": text(permission.user), "vhost": text(permission.vhost), **found}


def _tags_in(body: Body) -> list[str]:
    """As RabbitMQ takes them: a list, or a text with commas between."""
    given: Any = body.get("tags", "")
    tags = given.split(",") if isinstance(given, str) else given
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise BadRequest("tags is a list of texts, or one with commas between them.")
    return [tag.strip() for tag in tags if tag.strip()]
