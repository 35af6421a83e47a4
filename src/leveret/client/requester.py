"""Requests with direct replies: publish a request, and wait for its reply on the publisher's channel.

    async with Requester(connection) as requester:
        reply = await requester.request({"article": 7}, "prices")
        print(reply.value)

This module matches replies to requests, and ends those that time out. Publishing, with receipts, is left to
the requester's own `Publisher`, whose channel takes the replies (`Replies`). The rule: each request ends with
a reply or an error, by its timeout at the latest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import Any, Self, Unpack

from leveret.client.callbacks import call_back
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.delivery import Delivery
from leveret.client.direct_replies import REPLY_TO, Replies
from leveret.client.errors import ClientError, Closed, ConnectionLost, NoReply
from leveret.client.message import Properties
from leveret.client.publisher import TIMEOUT_S, Publisher


@dataclass(slots=True)
class _Request:
    reply: asyncio.Future[Delivery]
    published: bool = False
    """Whether the broker has confirmed the request, so that it is not sent again on another channel."""


class Requester:
    """`reply = await requester.request(body, "queue")`."""

    def __init__(
        self, connection: Connection, *, timeout_s: float = TIMEOUT_S, codecs: Codecs | None = None
    ) -> None:
        codecs = codecs or Codecs()
        self._timeout_s = timeout_s
        self._open: dict[str, _Request] = {}
        self._numbers = count(1)
        replies = Replies(codecs, received=self._received, moved=self._moved)
        self.publisher = Publisher(connection, timeout_s=timeout_s, codecs=codecs, replies=replies)
        """The publisher of the requests. It may publish messages without a reply too."""

    async def __aenter__(self) -> Self:
        self.publisher.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the publisher. Requests that wait for a reply raise `Closed`."""
        self._fail(list(self._open.values()), Closed("the requester was closed"))
        await self.publisher.close()

    async def request(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        timeout_s: float | None = None,
        **properties: Unpack[Properties],
    ) -> Delivery:
        """Publish a request and return its reply, which needs no ack.

        Raises what `Receipt.check` raises if the request was not stored, `NoReply` if no reply came in time,
        and `ConnectionLost` if the connection ended before the reply, which is then lost.
        """
        if "reply_to" in properties or "correlation_id" in properties:
            raise ValueError("the requester sets reply_to and correlation_id itself: leave them out")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        name = f"{self.publisher.producer}-request-{next(self._numbers)}"
        request = self._open[name] = _Request(loop.create_future())
        properties["reply_to"], properties["correlation_id"] = REPLY_TO, name
        try:
            receipt = await self.publisher.publish(
                body, routing_key, exchange=exchange, timeout_s=limit_s, **properties
            )
            if not request.reply.done():
                receipt.check()
            request.published = True
            async with asyncio.timeout_at(deadline_s):
                reply = await request.reply
            if (hooks := self.publisher.connection.hooks) is not None:
                call_back(hooks.received, reply)
            return reply
        except TimeoutError:
            raise NoReply(f"no reply to request {name} came in {limit_s:g} s") from None
        finally:
            del self._open[name]
            if request.reply.done() and not request.reply.cancelled():
                # Mark the exception as retrieved.
                request.reply.exception()

    def _received(self, replies: list[Delivery]) -> None:
        """Give replies to their requests. A reply whose request has ended is dropped."""
        for reply in replies:
            try:
                request = self._open.get(reply.correlation_id or "")
            except ClientError:
                # The properties can't be read, so it matches no request.
                continue
            if request is not None and not request.reply.done():
                request.reply.set_result(reply)

    def _moved(self) -> None:
        """Fail the requests that were published on the previous channel: their replies are lost with it."""
        lost = [request for request in self._open.values() if request.published]
        self._fail(lost, ConnectionLost("the connection ended before the reply came"))

    def _fail(self, requests: list[_Request], error: ClientError) -> None:
        for request in requests:
            if not request.reply.done():
                request.reply.set_exception(error)
