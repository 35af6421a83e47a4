"""`POST …/publish` and `POST …/get`: messages of clients that have no connection.

    POST /api/exchanges/{vhost}/{name}/publish
         {"properties": {}, "routing_key": "k", "payload": "text", "payload_encoding": "string"}
    POST /api/queues/{vhost}/{name}/get
         {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 50000}

`payload_encoding` is `string` or `base64`. A publish is answered when the message is on disk. The rule: a
`get` holds no more than `_GET_BYTES_MAX` of payloads in memory, so it may return fewer messages than asked
for; it takes no message that is not in its answer.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import messages as operations
from leveret.broker.operations.messages import GotMessage, NewMessage, Publication, RequestChannel
from leveret.broker.views.overview import health
from leveret.fronts.http import amqp_refusals
from leveret.fronts.http.auth import enter
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotAuthorised, NotFound, Problem
from leveret.fronts.http.json_replies import jsonable, reply, text
from leveret.fronts.http.json_tables import check_short, properties_in
from leveret.fronts.http.path_segments import exchange_segment, segment
from leveret.fronts.http.request_bodies import BadRequest, Body, check_present, integer_in

_GET_BYTES_MAX: Final = 16 << 20
_AT_ONCE: Final = 32
"""Messages that are got without a pause."""
_ACK_MODES: Final = ("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")

T = TypeVar("T")


class Messages:
    def __init__(self, broker: Broker, *, changed: Callable[[], None], wait_s: float) -> None:
        """`wait_s` is the time in which the disk must have a change."""
        self._broker = broker
        self._changed = changed
        self._wait_s = wait_s

    def routes(self, make: Endpoints) -> list[Route]:
        publish = make.changing(self.publish, body_max_bytes=make.limits.publish_max_bytes)
        return [
            Route("/api/queues/{vhost}/{name}/get", make.changing(self.get), methods=["POST"]),
            Route("/api/exchanges/{vhost}/{name}/publish", publish, methods=["POST"]),
        ]

    async def publish(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._enter(request, user)
        check_present(body, ["routing_key", "properties", "payload", "payload_encoding"])
        message = NewMessage(
            exchange_segment(request, "name"),
            _key_in(body),
            properties_in(body, "properties"),
            _payload_in(body),
        )
        blocked = health(self._broker, most=0).blocked
        if blocked is not None:
            raise Problem(503, "unavailable", f"Publishers are blocked: {blocked}. Try again later.")
        with self._channel(user, vhost) as channel:

            def begin(done: Callable[[Publication], None]) -> None:
                with amqp_refusals.of_publishes():
                    operations.publish(channel, message, done)

            publication = await result_of(begin, wait_s=self._wait_s)
        if publication.refused:
            raise BadRequest("rejected")
        return reply({"routed": publication.routed})

    async def get(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._enter(request, user)
        check_present(body, ["count", "ackmode", "encoding"])
        count, mode, encoding = integer_in(body, "count"), body["ackmode"], body["encoding"]
        truncate = integer_in(body, "truncate") if "truncate" in body else None
        if encoding not in ("auto", "base64"):
            raise BadRequest("Unsupported encoding. Please use auto or base64.")
        if mode not in _ACK_MODES:
            raise BadRequest(f"Unsupported ackmode. Please use {', '.join(_ACK_MODES)}.")
        if truncate is not None and truncate < 0:
            raise BadRequest(f"truncate is {truncate}; it must be at least 0.")
        with self._channel(user, vhost) as channel:
            got = await self._get(channel, segment(request, "name"), count, mode)
            if mode.startswith("reject"):
                self._changed()
                operations.settle(channel, len(got), requeue=mode == "reject_requeue_true")
        return reply([_described(message, encoding, truncate) for message in got])

    async def _get(self, channel: RequestChannel, queue: str, count: int, mode: str) -> list[GotMessage]:
        """Return up to `count` messages of a queue; all that fit if the count is negative, as in RabbitMQ."""
        got: list[GotMessage] = []
        left_bytes = _GET_BYTES_MAX

        def begin(done: Callable[[GotMessage | None], None]) -> None:
            with amqp_refusals.of_gets():
                operations.get(channel, queue, no_ack=mode == "ack_requeue_false", done=done)

        while len(got) != count and left_bytes > 0:
            if len(got) % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            self._changed()
            message = await result_of(begin, wait_s=self._wait_s)
            if message is None:
                break
            got.append(message)
            left_bytes -= len(message.body) + _AT_ONCE
        return got

    def _enter(self, request: Request, user: User) -> str:
        """Return the name of the path's virtual host; RabbitMQ does not tell why it can't be entered."""
        try:
            vhost = enter(self._broker, user, segment(request, "vhost"))
        except NotFound:
            raise NotAuthorised("Access refused.") from None
        if vhost not in user.permissions:
            # An administrator sees all virtual hosts.
            raise NotAuthorised("Access refused.")
        return vhost

    def _channel(self, user: User, vhost: str) -> RequestChannel:
        return RequestChannel(self._broker, user, vhost, begin=self._changed)


async def result_of(begin: Callable[[Callable[[T], None]], None], *, wait_s: float) -> T:
    """Return the result that `begin` passes to its argument, at once or when the disk has the changes."""
    result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(value: T) -> None:
        # A cancelled request has cancelled its future.
        if not result.done():
            result.set_result(value)

    begin(done)
    try:
        return await asyncio.wait_for(result, wait_s)
    except TimeoutError:
        raise Problem(
            503, "unavailable", f"The disk has not answered for {wait_s:g} s: check the broker's disk."
        ) from None


def _key_in(body: Body) -> str:
    key = body["routing_key"]
    if not isinstance(key, str):
        raise BadRequest(["not_string", "routing_key"])
    check_short("routing_key", key)
    return key


def _payload_in(body: Body) -> bytes:
    payload, encoding = body["payload"], body["payload_encoding"]
    if not isinstance(payload, str):
        raise BadRequest("payload_not_string")
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise BadRequest(["unsupported_encoding", encoding])
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(["not_base64", payload]) from None


def _described(message: GotMessage, encoding: str, truncate: int | None) -> dict[str, object]:
    return {
        "payload_bytes": len(message.body),
        "redelivered": message.redelivered,
        "exchange": text(message.exchange),
        "routing_key": text(message.key),
        "message_count": message.left,
        # RabbitMQ shows no properties as an empty list.
        "properties": jsonable(dict(message.properties)) or [],
        **payload_of(message.body[:truncate], encoding),
    }


def payload_of(body: bytes, encoding: str) -> dict[str, Any]:
    if encoding == "auto":
        try:
            return {"payload": body.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": b64encode(body).decode("ascii"), "payload_encoding": "base64"}
