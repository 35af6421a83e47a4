"""One channel: calls and their answers; confirms, returns and deliveries.

Calls are answered in their order (AMQP 0-9-1, 2.2.2), so a reply belongs to the oldest call that waits.
Everything else goes to the owner of the channel, through the `on_...` attributes. When the broker closes the
channel, its reason goes to every waiting call and to the owner, and the channel number is free again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pamqp import commands

from leveret.amqp.events import Settlement
from leveret.amqp.methods import Method, make
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ChannelClosed, ClientError, Closed

_CLOSE_S: Final = 5.0


class Content(NamedTuple):
    """A received method with a message: basic.return or basic.get-ok."""

    method: Method
    header: bytes
    body: bytes


class Session(Protocol):
    """What channels and their owners use of their connection (`leveret.client.session`)."""

    frame_max: int
    blocked: str | None
    writable: bool
    on_writable: list[Callable[[], None]]

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def is_leveret(self) -> bool: ...

    def has(self, capability: str) -> bool: ...

    def write(self, channel: int, method: Method) -> None: ...

    def send(self, data: bytes) -> None: ...

    def flush(self) -> None: ...

    def pause_reading(self, paused: bool) -> None: ...

    def fail(self, sentence: str) -> None: ...

    def forget(self, channel: Channel) -> None: ...


class Channel:
    """`reply = await channel.call(method)`; made by `Session.open_channel`."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.error: ClientError | None = None
        """Why the channel ended, or None."""
        self.on_settled: Callable[[Settlement], None] = _ignore
        self.on_returned: Callable[[Content], None] = _ignore
        self.on_deliveries: Callable[[list[tuple[bytes, bytes, bytes]]], None] = _ignore
        self.on_cancelled: Callable[[str], None] = _ignore
        self.on_ended: Callable[[ClientError], None] = _ignore
        self._waiting: deque[asyncio.Future[Method | Content]] = deque()
        self._closing = False

    @property
    def open(self) -> bool:
        """Whether the channel has neither ended nor is being closed, so that it may be written to."""
        return self.error is None and not self._closing

    async def call(self, method: Method) -> Method:
        """Send a method and return its answer. Raises the reason if the channel ends first."""
        reply = await self._ask(method)
        assert not isinstance(reply, Content)
        return reply

    async def get(self, queue: str, *, no_ack: bool = False) -> Content | None:
        """Return one message of the queue, or None if none is ready."""
        reply = await self._ask(make(commands.Basic.Get, ticket=0, queue=queue, no_ack=no_ack))
        return reply if isinstance(reply, Content) else None

    async def _ask(self, method: Method) -> Method | Content:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._closing:
            raise Closed("the channel is being closed")
        return await self._answer_to(method)

    async def _answer_to(self, method: Method) -> Method | Content:
        answer: asyncio.Future[Method | Content] = asyncio.get_running_loop().create_future()
        self.session.write(self.number, method)
        self._waiting.append(answer)
        return await answer

    def write(self, method: Method) -> None:
        """Send a method that has no answer."""
        if self.open:
            self.session.write(self.number, method)

    async def close(self) -> None:
        if self.error is None and not self._closing:
            self._closing = True
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await self._answer_to(_close())
            except ClientError:
                # The channel has ended, as it should.
                return
            except TimeoutError:
                self.session.fail(f"the broker did not answer a channel.close in {_CLOSE_S:g} s")

    def abandon(self) -> None:
        """Close the channel without waiting for the answer."""
        if self.open:
            self._closing = True
            self.session.write(self.number, _close())

    # called by the session

    def take(self, method: Method) -> None:
        if isinstance(method, commands.Channel.Close):
            self.session.write(self.number, make(commands.Channel.CloseOk))
            self.session.forget(self)
            sentence = f"the broker closed the channel: {method.reply_code} {method.reply_text}"
            self.end(ChannelClosed(sentence, code=method.reply_code or 0, text=method.reply_text))
        elif isinstance(method, commands.Channel.CloseOk):
            self.session.forget(self)
            if self._waiting:
                self._answer(method)
            self.end(Closed("the channel was closed"))
        elif isinstance(method, commands.Basic.Cancel):
            self.on_cancelled(method.consumer_tag or "")
        elif isinstance(method, commands.Channel.Flow):
            self.write(make(commands.Channel.FlowOk, active=method.active))
        elif self._waiting:
            self._answer(method)

    def take_content(self, method: Method, header: bytes, body: bytes) -> None:
        content = Content(method, header, body)
        if isinstance(method, commands.Basic.Return):
            self.on_returned(content)
        elif self._waiting:
            self._answer(content)

    def _answer(self, reply: Method | Content) -> None:
        waiting = self._waiting.popleft()
        # The caller may have been cancelled.
        if not waiting.done():
            waiting.set_result(reply)

    def end(self, error: ClientError) -> None:
        if self.error is not None:
            return
        self.error = error
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(error)
        self.on_ended(error)


def _close() -> commands.Channel.Close:
    return make(commands.Channel.Close, reply_code=200, reply_text="bye", class_id=0, method_id=0)


def _ignore(_: object) -> None:
    return None
