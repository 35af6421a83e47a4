"""`/api/queues/{vhost}/{name}/…`: where the messages of a queue are, and what has happened to them.

    GET …/map       the unsettled map; ?cells=64 ?from= ?to= ?limit=20
    GET …/messages  messages from an offset on, with their states; ?from= ?count=20 ?encoding=auto ?truncate=
                    ?key= ?header.NAME= ?json.PATH= ?state=ready,delayed ?use_regex=true
    GET …/messages/{offset}/timeline    everything that is known about one message
    GET …/messages/timeline?message_id= the timelines of the messages with this id; ?from=
    GET /api/stuck                      stuck consumers, redelivery loops; ?age_s=60 ?returns=3 ?limit=100

`?group=` shows a stream as the group of this name reads it. The views are `broker.views.unsettled` and its
neighbours, and nothing here changes a queue. The rule: an answer of any size is made in steps, between which
the broker serves others.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.views import stuck, unsettled
from leveret.broker.views.peeked import COUNT, COUNT_MAX, FILTERS_MAX, Filters, Seen, check_may_read, peeked
from leveret.broker.views.readers import STATES, Reader, Steps, reader_of
from leveret.broker.views.timeline import timeline
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.json_replies import jsonable, reply, text
from leveret.fronts.http.messages import payload_of
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest

T = TypeVar("T")
_QUEUE: Final = "/api/queues/{vhost}/{name}"
_PAUSE_S: Final = 0.002
_TIMELINES_MAX: Final = 20
_AGE_MAX_S: Final = 86_400
_PEEK_PARAMETERS: Final = (
    *("from", "count", "key", "message_id", "state", "use_regex"),
    *("encoding", "truncate", "group", "subject"),
)


class QueueContents:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route(f"{_QUEUE}/map", make.reading(self.show_map)),
            Route("/api/stuck", make.reading(self.show_stuck)),
            Route(f"{_QUEUE}/messages", make.reading(self.peek)),
            Route(f"{_QUEUE}/messages/timeline", make.reading(self.show_timelines)),
            Route(f"{_QUEUE}/messages/{{offset}}/timeline", make.reading(self.show_timeline)),
        ]

    async def show_map(self, request: Request, user: User) -> Response:
        work = unsettled.unsettled_map(
            self._broker,
            self._reader(request, user),
            cells=number_of(request, "cells", unsettled.CELLS, most=unsettled.CELLS_MAX),
            limit=number_of(request, "limit", unsettled.LIMIT, most=unsettled.LIMIT_MAX),
            start=number_of(request, "from", None),
            stop=number_of(request, "to", None),
        )
        return reply(jsonable(await result_of_steps(work)))

    async def peek(self, request: Request, user: User) -> Response:
        reader = self._reader(request, user)
        check_may_read(reader, user)
        query = request.query_params
        filters = _filters_in(query)
        encoding, truncate = query.get("encoding", "auto"), number_of(request, "truncate", None)
        if encoding not in ("auto", "base64"):
            raise BadRequest("Unsupported encoding. Please use auto or base64.")
        found = await result_of_steps(
            peeked(
                reader,
                filters,
                start=number_of(request, "from", None),
                count=number_of(request, "count", COUNT, most=COUNT_MAX),
            )
        )
        messages = [_described(message, encoding, truncate) for message in found.messages]
        return reply({"messages": messages, "scanned": found.scanned, "next": found.next})

    async def show_timeline(self, request: Request, user: User) -> Response:
        reader, offset = self._reader(request, user), segment(request, "offset")
        check_may_read(reader, user)
        work = timeline(self._broker, reader, _number(offset, "offset"))
        return reply(jsonable(await result_of_steps(work)))

    async def show_timelines(self, request: Request, user: User) -> Response:
        """Answer with the timelines of all messages of an id, because publishers may repeat themselves."""
        reader = self._reader(request, user)
        check_may_read(reader, user)
        message_id = request.query_params.get("message_id")
        if message_id is None:
            raise BadRequest("message_id is missing; it must be the property of the message.")
        filters = Filters(message_id=message_id, states=STATES)
        start = number_of(request, "from", reader.queue.log.first)
        found = await result_of_steps(peeked(reader, filters, start=start, count=_TIMELINES_MAX))
        offsets = [message.offset for message in found.messages]
        timelines = [await result_of_steps(timeline(self._broker, reader, each)) for each in offsets]
        return reply({"timelines": jsonable(timelines), "scanned": found.scanned, "next": found.next})

    async def show_stuck(self, request: Request, user: User) -> Response:
        work = stuck.stuck(
            self._broker,
            visible(self._broker, user),
            age_s=number_of(request, "age_s", stuck.AGE_S, most=_AGE_MAX_S),
            returns=number_of(request, "returns", stuck.RETURNS),
            limit=number_of(request, "limit", stuck.LIMIT, most=stuck.LIMIT_MAX),
        )
        return reply(jsonable(await result_of_steps(work)))

    def _reader(self, request: Request, user: User) -> Reader:
        vhost, query = enter(self._broker, user, segment(request, "vhost")), request.query_params
        group, subject = query.get("group"), query.get("subject")
        return reader_of(self._broker, vhost, segment(request, "name"), group=group, subject=subject)


def _filters_in(query: QueryParams) -> Filters:
    """Return the filters of a query; raise for a parameter that is none, because it would filter nothing."""
    headers: dict[str, str] = {}
    fields: dict[str, str] = {}
    for name, value in query.multi_items():
        kind, dot, rest = name.partition(".")
        if dot and rest and kind in ("header", "json"):
            (headers if kind == "header" else fields)[rest] = value
        elif name not in _PEEK_PARAMETERS:
            raise BadRequest(f"{name} is not a parameter of this request; see header.NAME and json.PATH.")
    if len(headers) + len(fields) > FILTERS_MAX:
        raise BadRequest(f"{len(headers) + len(fields)} filters are too many; use at most {FILTERS_MAX}.")
    states = [state for state in query.get("state", "").split(",") if state]
    if unknown := [state for state in states if state not in STATES]:
        raise BadRequest(f"'{unknown[0]}' is not a state; use {', '.join(STATES)}.")
    regex = query.get("use_regex") == "true"
    return Filters(headers, fields, query.get("key"), query.get("message_id"), states, regex)


def _described(message: Seen, encoding: str, truncate: int | None) -> dict[str, object]:
    return {
        "offset": message.offset,
        "state": message.state,
        "stored_ms": message.time_us // 1000,
        "returns": message.returns,
        "redelivered": message.redelivered,
        "exchange": text(message.exchange),
        "routing_key": text(message.key),
        "properties": jsonable(message.properties),
        "payload_bytes": len(message.body),
        **payload_of(message.body[:truncate], encoding),
    }


async def result_of_steps(work: Steps[T]) -> T:
    """Return the result of a generator; the event loop runs between its steps, about every 2 ms."""
    now = asyncio.get_running_loop().time
    until_s = now() + _PAUSE_S
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if now() >= until_s:
            await asyncio.sleep(0)
            until_s = now() + _PAUSE_S


def number_of(request: Request, name: str, default: T, *, most: int = 1 << 62) -> int | T:
    """Return a whole number of the query, at most `most`; raise if it is negative or not a number."""
    value = request.query_params.get(name)
    return default if value is None else min(_number(value, name), most)


def _number(value: str, name: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        raise BadRequest(f"{name} is '{value}'; it must be a whole number of at least 0.")
    return int(value)
