"""The publisher: a receipt for every message, whatever happens to the connection.

Owns what callers see: places in the window, receipts, callbacks, deadlines. Getting messages onto the wire,
again if need be, and finding out what became of them is left to `Sender`. The rules: no more receipts are
open than the window has places; each is resolved exactly once, by its deadline at the latest, so that
nothing here ever hangs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack

from leveret.client.callbacks import call_back
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.counters import PublisherCounters
from leveret.client.direct_replies import Replies
from leveret.client.errors import ClientError, Closed, WindowFull
from leveret.client.message import Envelopes, Message, Properties
from leveret.client.receipt import ConfirmsFailed, PublishInterrupted, Receipt, Status
from leveret.client.sender import Sender

ConfirmType = Literal["correlated", "simple", "none"]
WINDOW: Final = 1000
TIMEOUT_S: Final = 30.0
_PRODUCER_BYTES_MAX: Final = 230
"""With a sequence it makes a message id."""
_SEQ_MAX: Final = (1 << 63) - 1
_SWEEP_S: Final = 0.02
"""Deadlines are looked at no more often than this."""


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
        """A `producer` of one's own is deduplicated across restarts: then each publish needs its `seq`, or
        the publisher its `first_seq`, a number that was never used before. `replies` is for `Requester`."""
        if window < 1 or timeout_s <= 0:
            raise ValueError("a publisher has a window of at least 1 and a timeout above 0")
        if confirm not in ("correlated", "simple", "none"):
            raise ValueError(f"confirm is 'correlated', 'simple' or 'none', not {confirm!r}")
        if producer is not None and not 0 < len(producer.encode()) <= _PRODUCER_BYTES_MAX:
            raise ValueError(f"a producer's name has 1 to {_PRODUCER_BYTES_MAX} bytes")
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
        self._seq = 1 if first_seq is None else first_seq
        self._counts = producer is None or first_seq is not None
        """Whether it may give out sequences by itself."""
        self._open = 0
        """Receipts that are not resolved."""
        self._promised = 0
        """Places that are kept for those who were told that there is one."""
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._blocks: list[list[Receipt]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = float("inf")
        self._closed = False
        self._started = False

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Moves in on the connection; messages go out as soon as there is a channel."""
        if not self._started:
            self._started = True
            self._loop = asyncio.get_running_loop()
            self.connection.add(self._sender)

    async def close(self, timeout_s: float | None = None) -> None:
        """Waits for what is unconfirmed, as long as its deadlines allow, and moves out."""
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
        **said: Unpack[Properties],
    ) -> Receipt:
        """Publishes and waits for the receipt (`simple`: only for a place in the window).

        Raises `NotConnected` when the message could not be sent at all in `timeout_s`; it is then withdrawn.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        message = Message(body, routing_key, exchange, mandatory, seq, on_confirm, said)
        started_s = asyncio.get_running_loop().time()
        if self._must_wait():
            await self.room(limit_s)
            limit_s -= self._loop.time() - started_s
        receipt = self._accept(message, limit_s, started_s=started_s)
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
        **said: Unpack[Properties],
    ) -> Receipt:
        """Takes a message and returns at once, with the receipt to await later; `WindowFull` if there is no
        room.
        """
        if self._free() <= 0:
            raise WindowFull(f"{self._open} messages are unconfirmed, which is this publisher's window")
        message = Message(body, routing_key, exchange, mandatory, seq, on_confirm, said)
        return self._accept(message, self._timeout_s if timeout_s is None else timeout_s)

    async def publish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publishes all, as fast as the window allows, and waits once; receipts in the order given."""
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
                receipts.append(self._accept(message, left_s, started_s=started_s))
        except Exception as error:
            sentence = f"publishing stopped after {len(receipts)} messages: {error}"
            raise PublishInterrupted(sentence, receipts=receipts) from error
        for receipt in reversed(receipts):  # confirms come in order: after the last there is little to do
            if receipt.status is Status.PENDING:
                await receipt
        return receipts

    def _check_progress(self, receipts: Sequence[Receipt], waited_s: float) -> None:
        """A place that is free only because its message was given up is no reason to go on.

        Or many to nobody would be given up one window after the other, each after its time.
        """
        if not self._sender.sending and any(each.lost for each in receipts[-self._window :]):
            raise self._sender.failure(waited_s)

    async def room(self, timeout_s: float | None = None) -> None:
        """Waits for a place in the window, in turn; `NotConnected` or `WindowFull` if none gets free in time.

        The place is the caller's until it waits for something else.
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
            waiter.cancel()  # it is passed over when its turn comes
            while self._rooms and self._rooms[0].done():
                self._rooms.popleft()
            if not self._closed:
                self._loop.call_soon(self._make_room)  # if the place is not taken after all

    @asynccontextmanager
    async def block(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Waits at its end until everything published since its beginning is confirmed.

        async with publisher.block(timeout_s=5):
            for order in orders:
                await publisher.publish(order, "orders")

        Raises `ConfirmsFailed` with the receipts of those that are not.
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
            sentence = (
                f"{len(failed)} of {len(receipts)} messages are not confirmed after {limit_s:g} s at most"
            )
            raise ConfirmsFailed(sentence, receipts=failed)

    async def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is unconfirmed; False if that took longer than allowed."""
        try:
            async with asyncio.timeout(timeout_s):
                for receipt in self.unconfirmed():
                    await receipt
        except TimeoutError:
            return False
        return True

    def unconfirmed(self, *, older_than_s: float = 0.0) -> list[Receipt]:
        """Receipts that are still open, the oldest first."""
        before_s = asyncio.get_running_loop().time() - older_than_s
        return [receipt for receipt in self._sender.open_receipts() if receipt.started_s <= before_s]

    @property
    def unconfirmed_count(self) -> int:
        """How many receipts are still open; any thread may ask."""
        return self._open

    @property
    def has_room(self) -> bool:
        """Whether `room()` would return at once."""
        return not self._must_wait()

    @property
    def ready(self) -> bool:
        """Whether messages go out at once."""
        return self._sender.sending

    @property
    def blocked_by(self) -> str | None:
        """Why the broker takes no messages at present."""
        session = self.connection.session
        return session.blocked if session else None

    # from acceptance to receipt

    def _accept(self, message: Message, timeout_s: float, *, started_s: float | None = None) -> Receipt:
        """Take a message that has a place in the window. `started_s` is when its caller began to wait."""
        if self.connection.closed:
            raise Closed("the connection was closed")
        if self._closed or not self._started:
            hint = "use it as `async with Publisher(connection) as publisher`"
            raise Closed("the publisher is not open", hint=hint)
        self._check_loop()
        body, routing_key, exchange, mandatory, given_seq, on_confirm, said = message
        if mandatory and self._confirm == "none":
            raise ValueError("without confirms nobody can be told of a return: mandatory needs confirms")
        if given_seq is None and not self._counts:
            sentence = f"producer '{self.producer}' may have used any sequence before"
            raise ValueError(f"{sentence}: give seq with each publish, or first_seq to the publisher")
        seq = self._seq if given_seq is None else given_seq
        if not 0 <= seq <= _SEQ_MAX:
            raise ValueError(f"a sequence is a number from 0 to 2**63 - 1, not {seq}")
        method, header, body = self._envelopes.make(
            body,
            routing_key,
            exchange,
            mandatory=self._mandatory if mandatory is None else mandatory,
            seq=seq,
            said=said,
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
            message_id=said.get("message_id") or self._envelopes.message_id,
            correlation_id=said.get("correlation_id"),
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
        """Before anything is counted: from another thread half of it would happen."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            hint = "from threads, use a BlockingConnection, or App.blocking_publisher"
            raise ClientError("a publisher belongs to the event loop it was started on", hint=hint)

    def _returned(self, receipt: Receipt) -> None:
        if self._on_return is not None:
            call_back(self._on_return, receipt)

    def _resolve(self, receipts: Iterable[Receipt], status: Status) -> None:
        """What became of these; there is as much room as there are."""
        now_s = self._loop.time()
        counters = self.counters
        receipts = list(receipts)
        self._open -= len(receipts)  # a callback may send the next message
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
        """Places of the window that anybody may take."""
        return self._window - self._open - self._promised

    def _must_wait(self) -> bool:
        """Nobody overtakes those who wait for a place, or were promised one."""
        return self._free() <= 0 or bool(self._rooms) or self._promised > 0

    def _make_room(self) -> None:
        """Places that are free go to those who wait, in turn."""
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
        """Gives up what is past its deadline; looks again when the next one is due."""
        self._sweeper, self._sweep_s = None, float("inf")
        self._sender.give_up(self._loop.time())
        deadlines = [receipt.deadline_s for receipt in self._sender.open_receipts()]
        if deadlines:
            self._sweep_at(min(deadlines))


def _with_return(receipt: Receipt, status: Status) -> Status:
    """Return the status of a receipt whose last attempt was returned, whether its confirm came or not.

    The last attempt stored nothing. If nothing is known of an earlier one, the message may be stored, and is
    *lost*. A nack says more than a return.
    """
    if status is Status.NACKED:
        receipt.reply_code, receipt.reply_text = 0, ""
        return status
    if not receipt.doubt:
        return Status.RETURNED
    why = "" if receipt.cause is None else f" ({receipt.cause.sentence})"
    said = f"{receipt.reply_code} {receipt.reply_text}"
    receipt.reason = f"it may be stored from an earlier attempt{why}; the last one was returned: {said}"
    return Status.LOST


async def _each(messages: Iterable[Message] | AsyncIterable[Message]) -> AsyncIterator[Message]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in messages:
            yield message
