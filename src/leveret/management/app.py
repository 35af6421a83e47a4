"""The HTTP API as an ASGI application over a broker: which paths there are, and how they are called.

    app = create_app(broker, changed=turns.begin)

Owns the table of routes; each resource has a file of its own. It runs on the event loop that owns the broker,
and the rule is that handlers are plain functions, called there and never in a thread: between its first and
its last line a handler sees one state of the broker, and it must be short (`replies.reply_list` is for what
may be long). Everything but `/health` asks who is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.accounts import User
from leveret.broker.broker import Broker
from leveret.management.auth import log_in
from leveret.management.errors import answer, problem_of
from leveret.management.health import Health
from leveret.management.overview import Overview
from leveret.management.paths import RawPaths
from leveret.management.queues import Queues

Handler: TypeAlias = Callable[[Request, User], Response]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def create_app(broker: Broker, *, changed: Callable[[], None]) -> Starlette:
    """`changed` is called before a handler changes something, as before bytes of a client are fed."""
    health, overview = Health(broker), Overview(broker)
    queues = Queues(broker, changed=changed)

    def private(handler: Handler) -> Endpoint:
        return _endpoint(lambda request: handler(request, log_in(broker.accounts, request)))

    one_queue = "/api/queues/{vhost}/{name}"
    return Starlette(
        routes=[
            Route("/health", _endpoint(lambda _: health.show())),
            Route("/api/overview", private(overview.show)),
            Route("/api/queues", private(queues.show_all)),
            Route("/api/queues/{vhost}", private(queues.show_vhost)),
            Route(one_queue, private(queues.show)),
            Route(f"{one_queue}/contents", private(queues.purge), methods=["DELETE"]),
            Route(f"{one_queue}/queries/{{query}}", private(queues.release), methods=["DELETE"]),
        ],
        middleware=[Middleware(RawPaths)],
        exception_handlers={HTTPException: answer, Exception: answer},
    )


def _endpoint(handle: Callable[[Request], Response]) -> Endpoint:
    """A coroutine, since Starlette calls plain functions in threads."""

    async def endpoint(request: Request) -> Response:
        try:
            return handle(request)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            raise problem from error

    return endpoint
