"""`/api/definitions`: all definitions, or those of one virtual host, in one document of RabbitMQ's form.

    GET    /api/definitions[/{vhost}]   export
    POST   /api/definitions[/{vhost}]   import; with ?dry_run=true nothing is changed

An import answers 204, or 200 with sentences about what was left out: {"left_out": ["…"]}. A dry run answers
200 with the number of objects as well. What a document holds is left to `broker.views.definitions` and
`broker.operations.definitions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations.definitions import Plan, plain_passwords
from leveret.broker.views.definitions import sections
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import check_administrator
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import reply, reply_sections
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body


class Definitions:
    def __init__(
        self,
        broker: Broker,
        *,
        changed: Callable[[], None],
        hash_password: Callable[[str], Awaitable[str]],
    ) -> None:
        self._broker = broker
        self._changed = changed
        self._hash_password = hash_password

    def routes(self, make: Endpoints) -> list[Route]:
        body_max_bytes = make.limits.definitions_max_bytes
        return [
            make.by_method(
                "/api/definitions",
                GET=make.reading(self.export),
                POST=make.changing(self.load, body_max_bytes=body_max_bytes),
            ),
            make.by_method(
                "/api/definitions/{vhost}",
                GET=make.reading(self.export_vhost),
                POST=make.changing(self.load_vhost, body_max_bytes=body_max_bytes),
            ),
        ]

    def export(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_sections(sections(self._broker))

    def export_vhost(self, request: Request, user: User) -> Response:
        check_administrator(user)
        return reply_sections(sections(self._broker, self._vhost(request)))

    async def load(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        hashes = {name: await self._hash_password(text) for name, text in plain_passwords(body).items()}
        return await self._load(request, user, body, hashes=hashes)

    async def load_vhost(self, request: Request, user: User, body: Body) -> Response:
        check_administrator(user)
        return await self._load(request, user, body, vhost=self._vhost(request))

    async def _load(
        self,
        request: Request,
        user: User,
        body: Body,
        *,
        vhost: str | None = None,
        hashes: dict[str, str] | None = None,
    ) -> Response:
        plan = Plan(self._broker, vhost=vhost, user=user, hashes=hashes)
        for _ in plan.read(body):
            await asyncio.sleep(0)
        if request.query_params.get("dry_run") == "true":
            return reply({"count": plan.count, "left_out": plan.left_out})
        self._changed()
        for _ in plan.apply():
            await asyncio.sleep(0)
            self._changed()
        return reply({"left_out": plan.left_out}) if plan.left_out else Response(status_code=204)

    def _vhost(self, request: Request) -> str:
        name = segment(request, "vhost")
        if name not in vhost_names(self._broker):
            raise NotFound
        return name
