"""Paths whose segments may hold any characters: the virtual host `/` is written `%2F`.

An ASGI server decodes a path before it is split, so `/api/queues/%2F/a` would have one segment too many. So
routes match the undecoded path, and `segment` decodes one segment. A slash at the end is ignored, as in
RabbitMQ.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send


class RawPaths:
    """`RawPaths(app)` is an application that routes by the undecoded path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw: bytes | None = scope.get("raw_path")
            path = quote(scope["path"]) if raw is None else raw.decode("ascii", "replace")
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def segment(request: Request, name: str) -> str:
    """Return a decoded segment of the path. Bytes that are not UTF-8 are escaped, as in all names."""
    return unquote(request.path_params[name], errors="surrogateescape")


def exchange_segment(request: Request, name: str) -> str:
    """Return a segment that names an exchange: the default exchange, which has no name, is `amq.default`."""
    found = segment(request, name)
    return "" if found == "amq.default" else found
