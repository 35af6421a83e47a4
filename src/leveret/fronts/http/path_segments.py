"""Paths whose segments may hold anything: the virtual host `/` is written `%2F`.

An ASGI server decodes a path before it is split, and `/api/queues/%2F/a` then has one segment too many. So
routes are matched on the path as it was sent, and `segment` decodes what a route has found. A slash at the
end makes no difference, as in RabbitMQ.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send


class RawPaths:
    """`RawPaths(app)` is the same application, routed by the path as it was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes | None = scope.get("raw_path")
            path = quote(scope["path"]) if raw is None else raw.decode("ascii", "replace")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def segment(request: Request, name: str) -> str:
    """A part of the path, decoded as names are: any bytes are a name."""
    return unquote(request.path_params[name], errors="surrogateescape")
