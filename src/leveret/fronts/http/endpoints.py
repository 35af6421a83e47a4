"""Endpoints: how handlers of the HTTP API are called, with the login, the body and the answer around them.

    def routes(self, make: Endpoints) -> list[Route]:
        return [make.by_method("/api/users/{name}", GET=make.reading(self.show), PUT=make.changing(self.put))]

Owns the order of login, body, handler and disk, and turns errors into answers. Which routes there are is left
to the resources, what handlers do as well. The rule: handlers run on the event loop that owns the broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Protocol, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.fronts.http.api_limits import ApiLimits
from leveret.fronts.http.durability_wait import Durability
from leveret.fronts.http.errors import problem_of
from leveret.fronts.http.request_bodies import Body, body_of

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Handler: TypeAlias = Callable[[Request, User], Response | Awaitable[Response]]
Change: TypeAlias = Callable[[Request, User, Body], Response | Awaitable[Response]]
Login: TypeAlias = Callable[[Request], Awaitable[User]]


class Resource(Protocol):
    """A group of routes."""

    def routes(self, make: Endpoints) -> list[Route]: ...


class Endpoints:
    """Makes endpoints from handlers."""

    def __init__(self, login: Login, durability: Durability, limits: ApiLimits) -> None:
        self._login = login
        self._durability = durability
        self.limits = limits

    def public(self, handle: Callable[[], Response]) -> Endpoint:
        """Return an endpoint without login."""

        # A coroutine, because Starlette calls plain functions in threads.
        async def endpoint(request: Request) -> Response:
            with _errors_as_problems():
                return handle()

        return endpoint

    def reading(self, handler: Handler) -> Endpoint:
        """Return an endpoint for users; the body of the request is not read."""

        async def endpoint(request: Request) -> Response:
            with _errors_as_problems():
                result = handler(request, await self._login(request))
                return await result if isawaitable(result) else result

        return endpoint

    def changing(self, handler: Change, *, body_max_bytes: int | None = None) -> Endpoint:
        """Return an endpoint that reads the body before the login, and answers when the change is on disk.

        If bodies may be larger than those of other endpoints, only users may send one.
        """
        most_bytes = self.limits.body_max_bytes if body_max_bytes is None else body_max_bytes

        async def endpoint(request: Request) -> Response:
            if most_bytes > self.limits.body_max_bytes:
                with _errors_as_problems():
                    await self._login(request)
            body = await body_of(request, bytes_max=most_bytes)
            with _errors_as_problems():
                user = await self._login(request)
                before = self._durability.last_change
                result = handler(request, user, body)
                response = await result if isawaitable(result) else result
            await self._durability.reached(since=before)
            return response

        return endpoint

    def by_method(self, path: str, **endpoints: Endpoint) -> Route:
        """Return one route for all methods of a path, so that a 405 lists all of them."""

        async def endpoint(request: Request) -> Response:
            return await endpoints["GET" if request.method == "HEAD" else request.method](request)

        return Route(path, endpoint, methods=list(endpoints))


@contextmanager
def _errors_as_problems() -> Iterator[None]:
    """Turn errors of the broker and the store into a `Problem`; other exceptions stay as they are."""
    try:
        yield
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        raise problem from error
