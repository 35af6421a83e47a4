"""`/api/queues/{vhost}/{name}/…`: where the messages of a queue are, and what has happened to them.

    GET …/map                            the unsettled map; ?cells=64 ?from= ?to= ?limit=20

`?group=` shows a stream as the group of this name reads it. The views are `broker.views.unsettled` and its
neighbours, and nothing here changes a queue. The rule: an answer of any size is made in steps, between which
the broker serves others.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.views import unsettled
from leveret.broker.views.readers import Reader, Steps, reader_of
from leveret.fronts.http.auth import enter
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.json_replies import jsonable, reply
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import BadRequest

T = TypeVar("T")
_QUEUE = "/api/queues/{vhost}/{name}"


class QueueContents:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self, make: Endpoints) -> list[Route]:
        return [Route(f"{_QUEUE}/map", make.reading(self.show_map))]

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

    def _reader(self, request: Request, user: User) -> Reader:
        vhost, query = enter(self._broker, user, segment(request, "vhost")), request.query_params
        group, subject = query.get("group"), query.get("subject")
        return reader_of(self._broker, vhost, segment(request, "name"), group=group, subject=subject)


async def result_of_steps(work: Steps[T]) -> T:
    """Return the result of a generator; the event loop runs between its steps."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def number_of(request: Request, name: str, default: T, *, most: int = 1 << 62) -> int | T:
    """Return a whole number of the query, at most `most`; raise if it is negative or not a number."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 19):
        raise BadRequest(f"{name} is '{value}'; it must be a whole number of at least 0.")
    return min(int(value), most)
