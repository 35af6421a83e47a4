"""`/api/groups`: looking at consumer groups, and moving them by hand.

    GET    /api/groups[/{vhost}]        all that the user may see, a line each
    GET    /api/groups/{vhost}/{group}  those of a name, with members and partitions; ?limit=20 ?cells=64
    PUT    /api/groups/{vhost}/{group}  makes one: {"subject": "orders", "start": "first", settings …}
    PATCH  /api/groups/{vhost}/{group}  changes settings, at once: {"max_span": 500}
    DELETE /api/groups/{vhost}/{group}  deletes it with its progress
    POST   …/seek                       {"to": "first"} | {"offset": 7, "partition": …} | {"time": …}
    POST   …/skip                       {"partition": "orders-0", "offset": 7, "reason": "…"}
    POST   …/pause, …/resume
    POST   …/redrive                    {"limit": 100}: dead letters are delivered once more

The figures are `broker.groups.report`'s, the rules for moves `broker.groups.moving`'s. A name may read
several subjects: `?subject=` says which one is meant. Whoever changes a group needs the right to read what it
reads, and owns the group or has a right on its name (`broker.ownership`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.groups import moving, report, topics
from leveret.broker.groups.group import DEAD_LETTERS, Group
from leveret.broker.vhost import VirtualHost
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.bodies import BadRequest, Body, check_fields, number_in, required_number_in, text_in
from leveret.fronts.http.errors import NotAuthorised, Problem
from leveret.fronts.http.paths import segment
from leveret.fronts.http.positions import place_of, start_of
from leveret.fronts.http.replies import jsonable, reply, reply_list, reply_nested, text

_SETTINGS = ("mode", "max_span", "consume_timeout_ms", "max_reconsume", "delays", "first_level", "paused")


class Groups:
    def __init__(
        self, broker: Broker, *, changed: Callable[[], None], durable: Callable[[], Awaitable[None]]
    ) -> None:
        """`changed` is called before something is changed; `durable` waits until it is on disk."""
        self._broker = broker
        self._changed = changed
        self._durable = durable

    # looking

    def show_all(self, request: Request, user: User) -> Response:
        return _list(visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        return _list([enter(self._broker, user, segment(request, "vhost"))])

    def show(self, request: Request, user: User) -> Response:
        found = self._named(request, user)
        limit = _asked(request, "limit", report.LIMIT, most=report.LIMIT_MAX)
        cells = _asked(request, "cells", 0, most=report.CELLS_MAX)
        return reply_nested(
            (
                cast(dict[str, object], jsonable(report.whole(group))),
                "partitions",
                map(jsonable, report.of_partitions(group, limit=limit, cells=cells)),
            )
            for group in found
        )

    # making, changing, deleting

    def put(self, request: Request, user: User, body: Body) -> Response:
        """201 for a new one; one that is there gets the settings, and stays where it is."""
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name = segment(request, "group")
        check_fields(body, ("subject", "start", *_SETTINGS))
        subject = text_in(body, "subject")
        if subject is None:
            raise BadRequest("subject is missing: the stream or topic that the group reads.")
        wanted = {field: body[field] for field in _SETTINGS if field in body}
        start = start_of(body.get("start", "first"))
        streams = [stream.name for stream in topics.streams_of(vhost, subject)]
        _check_rights(user, vhost, {subject, *streams})
        is_new = not any(each.name == name and each.subject == subject for each in vhost.groups)
        self._changed()
        self._broker.flush()
        group = vhost.groups.open(subject, name, wanted, user=user, start=start)
        return _reply_group(group, 201 if is_new else 200)

    def change(self, request: Request, user: User, body: Body) -> Response:
        group = self._find_to_change(request, user)
        moving.check_not_a_query(group)
        self._changed()
        group.vhost.groups.change(group, body)
        return _reply_group(group)

    def pause(self, request: Request, user: User, body: Body) -> Response:
        check_fields(body, ())
        return self.change(request, user, {"paused": True})

    def resume(self, request: Request, user: User, body: Body) -> Response:
        check_fields(body, ())
        return self.change(request, user, {"paused": False})

    def delete(self, request: Request, user: User, body: Body) -> Response:
        group = self._find_to_change(request, user)
        self._changed()
        group.vhost.groups.delete(group)
        return Response(status_code=204)

    # moving

    def seek(self, request: Request, user: User, body: Body) -> Response:
        group = self._find_to_change(request, user)
        check_fields(body, ("to", "offset", "time", "partition", "reason"))
        to, partition = place_of(body), text_in(body, "partition")
        self._changed()
        moved = moving.seek(group, to, partition=partition, who=user.name, why=text_in(body, "reason") or "")
        return reply({"partitions": {text(name): offset for name, offset in moved.items()}})

    def skip(self, request: Request, user: User, body: Body) -> Response:
        group = self._find_to_change(request, user)
        check_fields(body, ("partition", "offset", "reason"))
        offset = required_number_in(body, "offset")
        partition, why = text_in(body, "partition"), text_in(body, "reason") or ""
        self._changed()
        found = moving.skip(group, offset, partition=partition, who=user.name, why=why)
        return reply({"partition": text(found.name), "offset": offset, "watermark": found.watermark})

    async def redrive(self, request: Request, user: User, body: Body) -> Response:
        """Piece by piece: a letter goes when its message is deliverable, durably."""
        group = self._find_to_change(request, user)
        _check_rights(user, group.vhost, {DEAD_LETTERS + group.name})
        check_fields(body, ("limit",))
        redrive = moving.Redrive(group, limit=number_in(body, "limit"), who=user.name)
        self._changed()
        while redrive.recall():
            await self._durable()
            self._changed()
            redrive.settle()
        return reply({"redriven": redrive.redriven, "gone": redrive.gone, "left": redrive.left})

    # finding

    def _named(self, request: Request, user: User) -> list[Group]:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name, subject = segment(request, "group"), request.query_params.get("subject")
        if subject is not None:
            return [vhost.groups.get(subject, name)]
        found = [group for group in vhost.groups if group.name == name]
        if not found:
            raise Problem(404, "Object Not Found", f"no group '{name}' in vhost '{vhost.name}'")
        return found

    def _find_to_change(self, request: Request, user: User) -> Group:
        """The only one of this name, or on the subject that is given."""
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name, subject = segment(request, "group"), request.query_params.get("subject")
        group = vhost.groups.named(name) if subject is None else vhost.groups.get(subject, name)
        _check_rights(user, vhost, {group.subject, *group.partitions})
        vhost.groups.check_operate(group, user)
        return group


def _check_rights(user: User, vhost: VirtualHost, names: Iterable[str]) -> None:
    if not all(user.may("read", vhost.name, name) for name in names):
        raise NotAuthorised("Access refused.")


def _list(vhosts: Iterable[VirtualHost]) -> Response:
    """The groups there are now, each as it is when its turn comes; those that go meanwhile are left out."""
    groups = [group for vhost in vhosts for group in sorted(vhost.groups, key=lambda g: (g.name, g.subject))]
    return reply_list(jsonable(report.summary(group)) for group in groups if not group.deleted)


def _reply_group(group: Group, status: int = 200) -> Response:
    return reply(jsonable(report.with_settings(group)), status)


def _asked(request: Request, name: str, default: int, *, most: int) -> int:
    """A number in the query, which is cut to what is shown at most."""
    value: Any = request.query_params.get(name, default)
    try:
        return max(0, min(int(value), most))
    except ValueError:
        raise BadRequest(f"{name} is '{value}'; it must be a whole number.") from None
