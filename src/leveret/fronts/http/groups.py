"""`/api/groups`: show consumer groups, change them, and move their positions.

    GET    /api/groups[/{vhost}]        all groups that the user may see, an object each
    GET    /api/groups/{vhost}/{group}  groups of a name with members and partitions; ?limit=20 ?cells=64
    PUT    /api/groups/{vhost}/{group}  makes a group: {"subject": "orders", "start": "first", settings …}
    PATCH  /api/groups/{vhost}/{group}  changes settings at once: {"max_span": 500}
    DELETE /api/groups/{vhost}/{group}  deletes the group with its progress
    POST   …/seek                       {"to": "first"} | {"offset": 7, "partition": …} | {"time": …}
    POST   …/skip                       {"partition": "orders-0", "offset": 7, "reason": "…"}
    POST   …/pause, …/resume
    POST   …/redrive                    {"limit": 100}: delivers dead letters once more

Figures come from `broker.views.groups`; rules and permissions from `broker.operations.groups`. Groups of one
name may read several subjects: `?subject=` chooses one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import groups as operations
from leveret.broker.operations.groups import Target
from leveret.broker.views.groups import CELLS_MAX, LIMIT, LIMIT_MAX, each_group, groups_named, one_group
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.group_positions import start_of, target_of
from leveret.fronts.http.json_replies import jsonable, reply, reply_list, reply_nested, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import (
    BadRequest,
    Body,
    check_fields,
    number_in,
    required_number_in,
    text_in,
)

_SETTINGS = ("mode", "max_span", "consume_timeout_ms", "max_reconsume", "delays", "first_level", "paused")


class Groups:
    def __init__(
        self, broker: Broker, *, changed: Callable[[], None], durable: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` is called before each change and begins a turn; `durable` waits until it is on disk."""
        self._broker = broker
        self._changed = changed
        self._durable = durable

    def routes(self, make: Endpoints) -> list[Route]:
        one_group = "/api/groups/{vhost}/{group}"
        return [
            Route("/api/groups", make.reading(self.show_all)),
            Route("/api/groups/{vhost}", make.reading(self.show_vhost)),
            make.by_method(
                one_group,
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                PATCH=make.changing(self.change),
                DELETE=make.changing(self.delete),
            ),
            Route(f"{one_group}/seek", make.changing(self.seek), methods=["POST"]),
            Route(f"{one_group}/skip", make.changing(self.skip), methods=["POST"]),
            Route(f"{one_group}/pause", make.changing(self.pause), methods=["POST"]),
            Route(f"{one_group}/resume", make.changing(self.resume), methods=["POST"]),
            Route(f"{one_group}/redrive", make.changing(self.redrive), methods=["POST"]),
        ]

    # showing

    def show_all(self, request: Request, user: User) -> Response:
        return reply_list(map(jsonable, each_group(self._broker, visible(self._broker, user))))

    def show_vhost(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return reply_list(map(jsonable, each_group(self._broker, [vhost])))

    def show(self, request: Request, user: User) -> Response:
        target = self._target(request, user)
        groups = groups_named(
            self._broker,
            target.vhost,
            target.name,
            subject=target.subject,
            limit=_query_number(request, "limit", LIMIT, most=LIMIT_MAX),
            cells=_query_number(request, "cells", 0, most=CELLS_MAX),
        )
        return reply_nested(
            (cast(dict[str, object], jsonable(group.group)), "partitions", map(jsonable, group.partitions))
            for group in groups
        )

    # making, changing, deleting

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Make a group (201), or change the settings of an existing one, whose positions stay (200)."""
        target = self._target(request, user)
        check_fields(body, ("subject", "start", *_SETTINGS))
        subject = text_in(body, "subject")
        if subject is None:
            raise BadRequest("subject is missing; it must name the stream or topic that the group reads.")
        wanted = {field: body[field] for field in _SETTINGS if field in body}
        start = start_of(body.get("start", "first"))
        is_new = operations.put(
            self._broker, target._replace(subject=subject), wanted, start=start, begin=self._changed
        )
        return self._reply(target, subject, 201 if is_new else 200)

    def change(self, request: Request, user: User, body: Body) -> Response:
        return self._change(request, user, body)

    def pause(self, request: Request, user: User, body: Body) -> Response:
        check_fields(body, ())
        return self._change(request, user, {"paused": True})

    def resume(self, request: Request, user: User, body: Body) -> Response:
        check_fields(body, ())
        return self._change(request, user, {"paused": False})

    def _change(self, request: Request, user: User, wanted: Mapping[str, Any]) -> Response:
        target = self._target(request, user)
        return self._reply(target, operations.change(self._broker, target, wanted, begin=self._changed))

    def _reply(self, target: Target, subject: str, status: int = 200) -> Response:
        return reply(jsonable(one_group(self._broker, target.vhost, subject, target.name)), status)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        operations.delete(self._broker, self._target(request, user), begin=self._changed)
        return Response(status_code=204)

    # positions

    def seek(self, request: Request, user: User, body: Body) -> Response:
        target = self._target_to_move(request, user)
        check_fields(body, ("to", "offset", "time", "partition", "reason"))
        to, partition, why = target_of(body), text_in(body, "partition"), text_in(body, "reason") or ""
        moved = operations.seek(self._broker, target, to, partition=partition, why=why, begin=self._changed)
        return reply({"partitions": {text(name): offset for name, offset in moved.items()}})

    def skip(self, request: Request, user: User, body: Body) -> Response:
        target = self._target_to_move(request, user)
        check_fields(body, ("partition", "offset", "reason"))
        offset = required_number_in(body, "offset")
        partition, why = text_in(body, "partition"), text_in(body, "reason") or ""
        name, watermark = operations.skip(
            self._broker, target, offset, partition=partition, why=why, begin=self._changed
        )
        return reply({"partition": text(name), "offset": offset, "watermark": watermark})

    async def redrive(self, request: Request, user: User, body: Body) -> Response:
        """Redrive in batches: a dead letter is deleted when its message is durably ready again."""
        target = self._target_to_move(request, user)
        check_fields(body, ("limit",))
        redrive = operations.redrive(self._broker, target, limit=number_in(body, "limit"))
        self._changed()
        while redrive.recall():
            await self._durable()
            self._changed()
            redrive.settle()
        return reply({"redriven": redrive.redriven, "gone": redrive.gone, "left": redrive.left})

    def _target(self, request: Request, user: User) -> Target:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return Target(user, vhost, segment(request, "group"), request.query_params.get("subject"))

    def _target_to_move(self, request: Request, user: User) -> Target:
        """Return an existing group that the user may operate; raise before the body is checked."""
        target = self._target(request, user)
        operations.check(self._broker, target)
        return target


def _query_number(request: Request, name: str, default: int, *, most: int) -> int:
    """Return a number of the query string, limited to 0..`most`."""
    value: Any = request.query_params.get(name, default)
    try:
        return max(0, min(int(value), most))
    except ValueError:
        raise BadRequest(f"{name} is '{value}'; it must be a whole number.") from None
