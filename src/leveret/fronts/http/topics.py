"""`/api/topics`: exchanges that spread messages over streams, each with its streams as one thing.

    GET    /api/topics[/{vhost}]        all that the user may see, a line each
    GET    /api/topics/{vhost}/{name}   one, with its partitions and the groups that read it
    PUT    /api/topics/{vhost}/{name}   makes one, or more partitions of it:
                                        {"partitions": 8, "max_age": "7D", "max_bytes": 1000000000}
    DELETE /api/topics/{vhost}/{name}   with all that is in it; groups that read it must be gone

What a topic is, and what can't be done with one, is `broker.groups.topics`' to say. Rights are those that the
same declarations need over AMQP: to configure the exchange and the streams, to read the one and write the
others for the bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from leveret.broker import arguments
from leveret.broker.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.groups import topics
from leveret.broker.names import check_not_default, check_not_reserved, cleaned
from leveret.broker.streams.stream import Stream
from leveret.broker.vhost import VirtualHost
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.bodies import BadRequest, Body, check_fields, number_in, text_in
from leveret.fronts.http.errors import Problem
from leveret.fronts.http.paths import segment
from leveret.fronts.http.replies import jsonable, reply, reply_list, text

_NAME_BYTES_MAX = 250
"""Partitions have a number behind the name, and 255 bytes in all."""
_ARGUMENTS = {"max_age": "x-max-age", "max_bytes": "x-max-length-bytes"}


class Topics:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        """`changed` is called before something is changed: the broker's turn must follow."""
        self._broker = broker
        self._changed = changed

    def show_all(self, request: Request, user: User) -> Response:
        return _list(visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        return _list([enter(self._broker, user, segment(request, "vhost"))])

    def show(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name = segment(request, "name")
        return reply(_whole(vhost, name, _streams(vhost, name)))

    def put(self, request: Request, user: User, body: Body) -> Response:
        """201 for a new one; one that is there keeps what is not given, and may grow."""
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name = _checked_name(segment(request, "name"))
        check_fields(body, ("partitions", *_ARGUMENTS))
        given = {"x-max-age": text_in(body, "max_age"), "x-max-length-bytes": number_in(body, "max_bytes")}
        table: dict[str, Any] = {argument: value for argument, value in given.items() if value is not None}
        present = topics.partitions(vhost.exchanges.get(name))
        count = number_in(body, "partitions")
        if count is None:
            count = max(1, len(present))
        if present:
            table = {**present[0].table, **table}
            same = {"kind": "queue", "name": present[0].name, "vhost": vhost.name}
            arguments.check_equivalent(present[0].table, table, **same)
        names = [f"{name}-{number}" for number in range(min(count, topics.PARTITIONS_MAX))]
        _check_rights(user, vhost, name, names, binding=True)
        self._changed()
        topics.create(vhost, name, count=count, table=table)
        return reply(_whole(vhost, name, _streams(vhost, name)), 200 if present else 201)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        name = segment(request, "name")
        streams = _streams(vhost, name)
        check_not_reserved("exchange", name)
        _check_rights(user, vhost, name, [stream.name for stream in streams], binding=False)
        self._changed()
        self._broker.flush()
        topics.delete(vhost, name)
        return Response(status_code=204)


def _checked_name(name: str) -> str:
    """As AMQP would have it of an exchange, with room for the numbers."""
    check_not_default(cleaned(name))
    check_not_reserved("exchange", name)
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > _NAME_BYTES_MAX:
        raise BadRequest(f"A topic's name has at most {_NAME_BYTES_MAX} bytes, not {size}.")
    return cleaned(name)


def _check_rights(
    user: User, vhost: VirtualHost, name: str, streams: Iterable[str], *, binding: bool
) -> None:
    user.check("configure", vhost.name, "exchange", name)
    if binding:
        user.check("read", vhost.name, "exchange", name)
    for stream in streams:
        user.check("configure", vhost.name, "queue", stream)
        if binding:
            user.check("write", vhost.name, "queue", stream)


def _streams(vhost: VirtualHost, name: str) -> list[Stream]:
    found = topics.partitions(vhost.exchanges.get(name))
    if not found:
        raise Problem(404, "Object Not Found", f"no topic '{name}' in vhost '{vhost.name}'")
    return found


def _list(vhosts: Iterable[VirtualHost]) -> Response:
    found = [(vhost, name) for vhost in vhosts for name in sorted(topics.all_topics(vhost))]
    there = ((vhost, name, topics.partitions(vhost.exchanges.get(name))) for vhost, name in found)
    return reply_list(_summary(vhost, name, streams) for vhost, name, streams in there if streams)


def _summary(vhost: VirtualHost, name: str, streams: list[Stream]) -> dict[str, object]:
    return {
        "vhost": text(vhost.name),
        "name": text(name),
        "partitions": len(streams),
        "messages": sum(stream.ready for stream in streams),
        "bytes": sum(stream.log.size_bytes for stream in streams),
        "groups": [text(group.name) for group in vhost.groups if group.subject == name],
        "max_age": jsonable(streams[0].table.get("x-max-age")),
        "max_bytes": streams[0].settings.kept_bytes,
    }


def _whole(vhost: VirtualHost, name: str, streams: list[Stream]) -> dict[str, object]:
    groups = [group for group in vhost.groups if group.subject == name]
    return {
        **_summary(vhost, name, streams),
        "partitions": [_partition(stream) for stream in streams],
        "groups": [
            {"name": text(group.name), "mode": group.settings.mode, "lag": group.lag} for group in groups
        ],
    }


def _partition(stream: Stream) -> dict[str, object]:
    end, first = stream.readable(), stream.cursor.waiting.first_ready()
    return {
        "stream": text(stream.name),
        "first": end if first is None else min(first, end),
        "end": end,
        "messages": stream.ready,
        "bytes": stream.log.size_bytes,
        "readers": len(stream.consumers),
    }
