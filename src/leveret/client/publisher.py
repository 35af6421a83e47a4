"""The publisher: a receipt for every message, whatever happens to the connection.

This module owns what callers see: places in the window, receipts, callbacks, deadlines. Sending messages,
again after a lost connection, and finding out what became of them is left to `Sender`. The rules: no more
receipts are pending than the window has places. Each is resolved exactly once, by its deadline at the latest,
so that no call hangs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, Self, Unpack

from leveret.client.callbacks import call_back
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.counters import PublisherCounters
from leveret.client.direct_replies import Replies
from leveret.client.endpoint import Endpoint
from leveret.client.errors import ClientError, Closed, WindowFull
from leveret.client.hooks import Around, overrides
from leveret.client.message import Envelopes, Message, Properties
from leveret.client.receipt import ConfirmsFailed, PublishInterrupted, Receipt, Status
from leveret.client.sender import Sender

ConfirmType = Literal["correlated", "simple", "none"]
WINDOW: Final = 1000
TIMEOUT_S: Final = 30.0
_PRODUCER_BYTES_MAX: Final = 230
"""A message id is a producer's name and a sequence number, in at most 255 bytes."""
_SEQ_MAX: Final = (1 << 63) - 1
_SWEEP_S: Final = 0.02
"""The shortest time between two checks of deadlines."""


class Publisher:
    """
    async with Publisher(connection) as publisher:
        receipt = await publisher.publish({"id": 1}, "orders")
        receipt.check()
    """

    def __init__(
        self,
        connection: Connection,
        *,
        confirm: ConfirmType = "correlated",
        window: int = WINDOW,
        timeout_s: float = TIMEOUT_S,
        mandatory: bool = True,
        producer: str | None = None,
        first_seq: int | None = None,
        codecs: Codecs | None = None,
        on_confirm: Callable[[Receipt], None] | None = None,
        on_return: Callable[[Receipt], None] | None = None,
        replies: Replies | None = None,
    ) -> None:
        """With a `producer` name of your own, queues deduplicate across restarts. Then each publish needs its
        `seq`, or the publisher a `first_seq` that was never used before. `replies` is for `Requester`."""
        if window < 1 or timeout_s <= 0:
            raise ValueError("window must be at least 1, and timeout_s above 0")
        if confirm not in ("correlated", "simple", "none"):
            raise ValueError(f"confirm is 'correlated', 'simple' or 'none', not {confirm!r}")
        if producer is not None and not 0 < len(producer.encode()) <= _PRODUCER_BYTES_MAX:
            raise ValueError(f"a producer's name must have 1 to {_PRODUCER_BYTES_MAX} bytes")
        self.connection = connection
        self._confirm = confirm
        self._window = window
        self._timeout_s = timeout_s
        self._mandatory = mandatory and confirm != "none"
        self._on_confirm = on_confirm
        self._on_return = on_return
        self._hooks = connection.hooks
        self.producer = producer or secrets.token_hex(8)
        self.counters = PublisherCounters()
        hook = self._hooks.publishing if self._hooks else None
        self._envelopes = Envelopes(self.producer, codecs or Codecs(), hook=hook)
        self._sender = Sender(
            connection,
            confirms=confirm != "none",
            resolve=self._resolve,
            returned=self._returned,
            replies=replies,
        )
        self._take = self._accept_watched if overrides(self._hooks, "accepting") else self._accept
        """Accepts a message. Without hooks that watch, there is no call in between."""
        self._seq = 1 if first_seq is None else first_seq
        self._counts = producer is None or first_seq is not None
        """Whether this publisher numbers messages whose caller gives no `seq`."""
        self._open = 0
        """The number of pending receipts."""
        self._promised = 0
        """Places of the window that are kept for callers of `room` whose turn has come."""
        self._rooms: deque[asyncio.Future[None]] = deque()
        """Callers of `room` that wait, in their order."""
        self._blocks: list[list[Receipt]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = float("inf")
        self._closed = False
        self._started = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def start(self) -> None:
        """Join the connection. Messages are sent as soon as there is a channel."""
        if not self._started:
            self._started = True
            self._loop = asyncio.get_running_loop()
            self.connection.add(self._sender)

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait for pending receipts until their deadlines, and leave the connection."""
        if self._closed or not self._started:
            return
        await self.flush(timeout_s)
        self._closed = True
        while self._rooms:
            if not (waiter := self._rooms.popleft()).done():
                waiter.set_exception(Closed("the publisher was closed"))
        self.connection.remove(self._sender)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._sender.close(Closed("the publisher was closed"))

    # publishing

    async def publish(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        timeout_s: float | None = None,
        seq: int | None = None,
        on_confirm: Callable[[Receipt], None] | None = None,
        **properties: Unpack[Properties],
    ) -> Receipt:
        """Publish a message and wait for its receipt (`simple`: only for a place in the window).

        Raises `NotConnected` if the message could not be sent in `timeout_s`. It is then withdrawn.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        message = Message(body, routing_key, exchange, mandatory, seq, on_confirm, properties)
        started_s = asyncio.get_running_loop().time()
        if self._must_wait():
            await self.room(limit_s)
            limit_s -= self._loop.time() - started_s
        receipt = self._take(message, limit_s, started_s=started_s)
        if self._confirm == "simple":
            return receipt
        await receipt
        if receipt.lost and not receipt.attempts and receipt.cause is not None:
            raise receipt.cause
        return receipt

    def send(
        self,
        body: Any,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        timeout_s: float | None = None,
        seq: int | None = None,
        on_confirm: Callable[[Receipt], None] | None = None,
        **properties: Unpack[Properties],
    ) -> Receipt:
        """Take a message, and return its pending receipt at once. `WindowFull`: no place is free."""
        if self._free() <= 0:
            raise WindowFull(f"{self._open} messages are unconfirmed, which is this publisher's window")
        message = Message(body, routing_key, exchange, mandatory, seq, on_confirm, properties)
        return self._take(message, self._timeout_s if timeout_s is None else timeout_s)

    async def publish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish all messages, as fast as the window allows, and return their receipts in order."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        receipts: list[Receipt] = []
        try:
            async for message in _each(messages):
                left_s = limit_s
                started_s = None
                if self._must_wait():
                    started_s = self._loop.time()
                    await self.room(limit_s)
                    left_s -= self._loop.time() - started_s
                    self._check_progress(receipts, limit_s)
                receipts.append(self._take(message, left_s, started_s=started_s))
        except Exception as error:
            sentence = f"publishing stopped after {len(receipts)} messages: {error}"
            raise PublishInterrupted(sentence, receipts=receipts) from error
        # Confirms come in order, so few receipts are pending after the last one.
        for receipt in reversed(receipts):
            if receipt.status is Status.PENDING:
                await receipt
        return receipts

    def _check_progress(self, receipts: Sequence[Receipt], waited_s: float) -> None:
        """Raise if nothing is sent, and a place is free only because an earlier message was given up.

        Otherwise `publish_many` would wait a timeout for each window of messages.
        """
        if not self._sender.sending and any(receipt.lost for receipt in receipts[-self._window :]):
            raise self._sender.failure(waited_s)

    async def room(self, timeout_s: float | None = None) -> None:
        """Wait for a place in the window, in turn. `NotConnected` or `WindowFull`: none is free in time.

        The place is the caller's until it awaits something else.
        """
        if not self._must_wait():
            return
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(waiter)
        try:
            async with asyncio.timeout(limit_s):
                await waiter
        except TimeoutError:
            if not self._sender.sending:
                raise self._sender.failure(limit_s) from None
            raise WindowFull(
                f"all {self._window} places of the window were taken for {limit_s:g} s"
            ) from None
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._promised -= 1
            # A cancelled waiter is passed over when its turn comes.
            waiter.cancel()
            while self._rooms and self._rooms[0].done():
                self._rooms.popleft()
            if not self._closed:
                # The caller may not use its place.
                self._loop.call_soon(self._make_room)

    @asynccontextmanager
    async def block(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Wait at the end of the block until everything published in it is confirmed.

        async with publisher.block(timeout_s=5):
            for order in orders:
                await publisher.publish(order, "orders")

        Raises `ConfirmsFailed` with the receipts that are not confirmed.
        """
        receipts: list[Receipt] = []
        self._blocks.append(receipts)
        try:
            yield
        finally:
            self._blocks = [block for block in self._blocks if block is not receipts]
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for receipt in receipts:
                    await receipt
        failed = [receipt for receipt in receipts if receipt.status not in (Status.CONFIRMED, Status.SENT)]
        if failed:
            sentence = f"{len(failed)} of {len(receipts)} messages were not confirmed within {limit_s:g} s"
            raise ConfirmsFailed(sentence, receipts=failed)

    async def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until no receipt is pending. Return False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                for receipt in self.unconfirmed():
                    await receipt
        except TimeoutError:
            return False
        return True

    def unconfirmed(self, *, older_than_s: float = 0.0) -> list[Receipt]:
        """Return the pending receipts, the oldest first."""
        before_s = asyncio.get_running_loop().time() - older_than_s
        return [receipt for receipt in self._sender.open_receipts() if receipt.started_s <= before_s]

    @property
    def unconfirmed_count(self) -> int:
        """The number of pending receipts. May be read from any thread."""
        return self._open

    @property
    def has_room(self) -> bool:
        """Whether `room()` would return at once."""
        return not self._must_wait()

    @property
    def ready(self) -> bool:
        """Whether messages are sent at once."""
        return self._sender.sending

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker that is connected, or None."""
        session = self.connection.session
        return session.endpoint if session else None

    @property
    def blocked_by(self) -> str | None:
        """Why the broker takes no messages at present, or None."""
        session = self.connection.session
        return session.blocked if session else None

    # from acceptance to receipt

    def _accept_watched(
        self, message: Message, timeout_s: float, *, started_s: float | None = None
    ) -> Receipt:
        """Accept a message inside `hooks.accepting`, as the hook has changed the message."""
        hooks = self._hooks
        assert hooks is not None
        with Around(lambda message: hooks.accepting(message, self), message) as changed:
            return self._accept(changed or message, timeout_s, started_s=started_s)

    def _accept(self, message: Message, timeout_s: float, *, started_s: float | None = None) -> Receipt:
        """Give a message that has a place in the window to the sender, and return its receipt.

        `started_s` is when the caller began to wait for the place.
        """
        if self.connection.closed:
            raise Closed("the connection was closed")
        if self._closed or not self._started:
            hint = "use it as `async with Publisher(connection) as publisher`"
            raise Closed("the publisher is not open", hint=hint)
        self._check_loop()
        body, routing_key, exchange, mandatory, given_seq, on_confirm, properties = message
        if mandatory and self._confirm == "none":
            raise ValueError("mandatory needs confirms: with confirm='none' a return has no receipt")
        if given_seq is None and not self._counts:
            sentence = f"producer '{self.producer}' may have used any sequence number before"
            raise ValueError(f"{sentence}: give seq with each publish, or first_seq to the publisher")
        seq = self._seq if given_seq is None else given_seq
        if not 0 <= seq <= _SEQ_MAX:
            raise ValueError(f"seq must be from 0 to 2**63 - 1, not {seq}")
        method, header, body = self._envelopes.make(
            body,
            routing_key,
            exchange,
            mandatory=self._mandatory if mandatory is None else mandatory,
            seq=seq,
            given=properties,
        )
        self._sender.check_size(header)
        if seq >= self._seq:
            self._seq = seq + 1
        now_s = self._loop.time()
        deadline_s = now_s + timeout_s
        receipt = Receipt(
            seq,
            method,
            header,
            body,
            exchange=exchange,
            routing_key=routing_key,
            message_id=properties.get("message_id") or self._envelopes.message_id,
            correlation_id=properties.get("correlation_id"),
            started_s=now_s if started_s is None else started_s,
            deadline_s=deadline_s,
            callback=on_confirm,
        )
        self._open += 1
        self.counters.published += 1
        for block in self._blocks:
            block.append(receipt)
        if deadline_s < self._sweep_s:
            self._sweep_at(deadline_s)
        self._sender.put(receipt)
        return receipt

    def _check_loop(self) -> None:
        """Raise if the caller is not on the publisher's event loop, before any state has changed."""
        try:
            is_own_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_own_loop = False
        if not is_own_loop:
            hint = "from threads, use a BlockingConnection, or App.blocking_publisher"
            raise ClientError("a publisher belongs to the event loop it was started on", hint=hint)

    def _returned(self, receipt: Receipt) -> None:
        if self._on_return is not None:
            call_back(self._on_return, receipt)

    def _resolve(self, receipts: Iterable[Receipt], status: Status) -> None:
        """Resolve receipts, call their callbacks, and free their places in the window."""
        now_s = self._loop.time()
        counters = self.counters
        receipts = list(receipts)
        # Before the callbacks, because one may send the next message.
        self._open -= len(receipts)
        setattr(counters, status.value, getattr(counters, status.value) + len(receipts))
        for receipt in receipts:
            final = status
            if receipt.reply_code:
                final = _with_return(receipt, status)
                setattr(counters, status.value, getattr(counters, status.value) - 1)
                setattr(counters, final.value, getattr(counters, final.value) + 1)
            receipt.resolve(final, now_s)
            if receipt.callback is not None:
                call_back(receipt.callback, receipt)
            if self._on_confirm is not None:
                call_back(self._on_confirm, receipt)
            if self._hooks is not None:
                call_back(self._hooks.receipt, receipt)
        self._make_room()

    def _free(self) -> int:
        """Return the number of places in the window that are neither taken nor promised."""
        return self._window - self._open - self._promised

    def _must_wait(self) -> bool:
        """Return whether a caller must wait: no place is free, or other callers came first."""
        return self._free() <= 0 or bool(self._rooms) or self._promised > 0

    def _make_room(self) -> None:
        """Promise free places to the callers that wait, in turn."""
        while self._rooms and self._free() > 0:
            waiter = self._rooms.popleft()
            if not waiter.done():
                self._promised += 1
                waiter.set_result(None)

    # deadlines

    def _sweep_at(self, when_s: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep_s = max(when_s, self._loop.time() + _SWEEP_S)
        self._sweeper = self._loop.call_at(self._sweep_s, self._sweep)

    def _sweep(self) -> None:
        """Give up receipts past their deadline, and set the timer for the next deadline."""
        self._sweeper, self._sweep_s = None, float("inf")
        self._sender.give_up(self._loop.time())
        deadlines = [receipt.deadline_s for receipt in self._sender.open_receipts()]
        if deadlines:
            self._sweep_at(min(deadlines))


def _with_return(receipt: Receipt, status: Status) -> Status:
    """Return the status of a receipt whose last attempt was returned, whether its confirm came or not.

    The last attempt stored nothing. If an earlier attempt is in doubt, the message may be stored, so the
    receipt is *lost*. A nack says more than a return.
    """
    if status is Status.NACKED:
        receipt.reply_code, receipt.reply_text = 0, ""
        return status
    if not receipt.doubt:
        return Status.RETURNED
    why = "" if receipt.cause is None else f" ({receipt.cause.sentence})"
    reply = f"{receipt.reply_code} {receipt.reply_text}"
    receipt.reason = f"it may be stored from an earlier attempt{why}; the last one was returned: {reply}"
    return Status.LOST


async def _each(messages: Iterable[Message] | AsyncIterable[Message]) -> AsyncIterator[Message]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
