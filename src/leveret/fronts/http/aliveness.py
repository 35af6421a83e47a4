"""`GET /api/aliveness-test/{vhost}`: declares the queue `aliveness-test`, publishes a message and gets it.

The answer is 200 when the message has gone through the queue, else 503 with the reason. The user needs all
permissions on the queue, which stays. `health_checks` has checks that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import messages, queues
from leveret.broker.operations.messages import GotMessage, NewMessage, Publication, RequestChannel
from leveret.broker.operations.queues import QueueDeclaration
from leveret.broker.operations.requester import Requester
from leveret.broker.views.overview import health
from leveret.fronts.http import amqp_refusals
from leveret.fronts.http.auth import enter
from leveret.fronts.http.cross_site import check_site
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotAuthorised
from leveret.fronts.http.json_replies import reply
from leveret.fronts.http.messages import result_of
from leveret.fronts.http.path_segments import segment

_QUEUE: Final = "aliveness-test"
_MESSAGE: Final = NewMessage("", _QUEUE, {}, b"test_message")


class Aliveness:
    def __init__(self, broker: Broker, *, changed: Callable[[], None], wait_s: float) -> None:
        """`wait_s` is the time in which the disk must have a change."""
        self._broker = broker
        self._changed = changed
        self._wait_s = wait_s

    def routes(self, make: Endpoints) -> list[Route]:
        return [Route("/api/aliveness-test/{vhost}", make.reading(self.check))]

    async def check(self, request: Request, user: User) -> Response:
        # A GET that changes something.
        check_site(request.headers)
        vhost = enter(self._broker, user, segment(request, "vhost"))
        if vhost not in user.permissions:
            # An administrator sees all virtual hosts.
            raise NotAuthorised("Access refused.")
        with amqp_refusals.of_gets():
            requester = Requester(user, self._broker.vhosts[vhost])
            queues.declare(self._broker, requester, QueueDeclaration(_QUEUE, {}), begin=self._changed)
        blocked = health(self._broker, most=0).blocked
        if blocked is not None:
            return _failed(f"Publishers are blocked: {blocked}.")
        with RequestChannel(self._broker, user, vhost, begin=self._changed) as channel:

            def publish(done: Callable[[Publication], None]) -> None:
                with amqp_refusals.of_gets():
                    messages.publish(channel, _MESSAGE, done)

            def get(done: Callable[[GotMessage | None], None]) -> None:
                with amqp_refusals.of_gets():
                    messages.get(channel, _QUEUE, no_ack=True, done=done)

            publication = await result_of(publish, wait_s=self._wait_s)
            if publication.refused:
                return _failed("The test message was refused.")
            got = await result_of(get, wait_s=self._wait_s)
        return _failed("The test message was not in the queue.") if got is None else reply({"status": "ok"})


def _failed(reason: str) -> Response:
    return reply({"status": "failed", "reason": reason}, 503)
