"""The receipt of a publish: what became of the message, in one object.

A receipt is *pending* first. Then it is resolved, once and for ever, as one of

    confirmed   every queue has the message (persistent and durable: on disk)
    returned    no queue took the message, in any attempt: reply code and text
    nacked      the broker refused the message, and took it in no earlier attempt
    lost        unknown: the connection ended, or the deadline passed, before an answer; see `cause`.
                If a later attempt was returned or refused, see `reason`

or as *sent*, for a publisher without confirms. A return comes before its confirm, and sets `reply_code`. A
receipt keeps the encoded message. Sending it, and sending it again, is left to the publisher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from enum import Enum, Flag, auto
from typing import Final

from leveret.client.errors import ClientError


class Status(Enum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    RETURNED = "returned"
    NACKED = "nacked"
    LOST = "lost"
    SENT = "sent"


class Doubt(Flag):
    """Why a message may be stored although it was not confirmed."""

    CUT_OFF = auto()
    """Before the confirm, the connection ended, or the broker closed the channel for another message."""
    SUSPECT = auto()
    """The broker closed the channel for this message or for another one."""


CERTAIN: Final = Doubt(0)


class Receipt:
    """`receipt = await publisher.publish(...)`; or `receipt = publisher.send(...)`, then `await receipt`."""

    __slots__ = (
        "_correlation_id",
        "_ended_s",
        "_message_id",
        "_waiters",
        "attempts",
        "body",
        "callback",
        "cause",
        "deadline_s",
        "doubt",
        "exchange",
        "header",
        "method",
        "reason",
        "reply_code",
        "reply_text",
        "routing_key",
        "seq",
        "started_s",
        "status",
    )

    def __init__(
        self,
        seq: int,
        method: bytes,
        header: bytes,
        body: bytes,
        *,
        exchange: str,
        routing_key: str,
        message_id: str | Callable[[int], str],
        correlation_id: str | None,
        started_s: float,
        deadline_s: float,
        callback: Callable[[Receipt], None] | None,
    ) -> None:
        self.status = Status.PENDING
        self.seq = seq
        self.exchange = exchange
        self.routing_key = routing_key
        self.attempts = 0
        """How often the message was written to a socket."""
        self.reply_code = 0
        self.reply_text = ""
        self.reason = ""
        """Why the broker did not take the message in the last attempt, if known."""
        self.cause: ClientError | None = None
        """The error behind a loss, or the channel error behind a nack."""
        self.doubt = CERTAIN
        self.method, self.header, self.body = method, header, body
        self.started_s = started_s
        self.deadline_s = deadline_s
        self._ended_s = 0.0
        self._message_id = message_id
        self._correlation_id = correlation_id
        self.callback = callback
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def message_id(self) -> str:
        return self._message_id if isinstance(self._message_id, str) else self._message_id(self.seq)

    @property
    def correlation_id(self) -> str:
        """The correlation id that the caller gave, or the message id."""
        return self._correlation_id or self.message_id

    @property
    def done(self) -> bool:
        return self.status is not Status.PENDING

    @property
    def confirmed(self) -> bool:
        return self.status is Status.CONFIRMED

    @property
    def returned(self) -> bool:
        """Whether no queue took the message. Known before the confirm comes.

        False if an earlier attempt is in doubt, because that one may have stored the message. Such a receipt
        is resolved as *lost*, and its `reply_code` says that the last attempt was returned.
        """
        return bool(self.reply_code) and not self.doubt

    @property
    def nacked(self) -> bool:
        return self.status is Status.NACKED

    @property
    def lost(self) -> bool:
        return self.status is Status.LOST

    @property
    def latency_s(self) -> float | None:
        """Time from the call to the answer, with the wait for a place in the window; None while pending."""
        return self._ended_s - self.started_s if self.done else None

    def check(self) -> Receipt:
        """Return the receipt if it is confirmed (without confirms: sent). Otherwise raise why it is not."""
        where = f"message {self.message_id} to exchange '{self.exchange}', key '{self.routing_key}',"
        if self.status is Status.RETURNED:
            sentence = f"{where} was returned: {self.reply_code} {self.reply_text}"
            raise MessageReturned(sentence, receipt=self)
        if self.status is Status.NACKED:
            sentence = f"{where} was refused: {self.reason or 'the broker gave no reason'}"
            raise MessageNacked(sentence, receipt=self) from self.cause
        if self.status is Status.LOST:
            why = self.reason if self.reply_code else self.cause
            sentence = f"{where} may or may not be stored after {self.attempts} attempts: {why}"
            raise MessageLost(sentence, receipt=self) from self.cause
        return self

    def __await__(self) -> Generator[object, None, Receipt]:
        if self.status is Status.PENDING:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            yield from waiter
        return self

    def resolve(self, status: Status, now_s: float) -> None:
        """Set the final status. Called by the publisher."""
        self.status = status
        self._ended_s = now_s
        # It is not sent again.
        self.body = self.header = b""
        if status in (Status.CONFIRMED, Status.RETURNED):
            # The cause was that of an earlier attempt.
            self.cause = None
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None

    def __repr__(self) -> str:
        more = ""
        if self.returned:
            more = f" {self.reply_code} {self.reply_text}"
        elif self.reason or self.cause:
            more = f" ({self.reason or self.cause})"
        return f"<Receipt {self.message_id} {self.status.value}{more}, attempts {self.attempts}>"


class PublishFailed(ClientError):
    """Raised by `receipt.check()`, and carries the receipt."""

    def __init__(self, sentence: str, *, receipt: Receipt, hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.receipt = receipt


class MessageReturned(PublishFailed):
    hint = "no queue is bound for this routing key"


class MessageNacked(PublishFailed):
    retryable = True
    hint = "it was not stored everywhere; publish it again when the cause is gone"


class MessageLost(PublishFailed):
    retryable = True
    hint = "it may or may not be stored; publish it again if a duplicate does no harm"


class ConfirmsFailed(ClientError):
    """Raised at the end of `publisher.block()`; `receipts` are those that are not confirmed."""

    retryable = True
    hint = "look at the receipts: each says what became of its message"

    def __init__(self, sentence: str, *, receipts: Sequence[Receipt], hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.receipts = receipts


class PublishInterrupted(ClientError):
    """Raised when `publish_many` can't go on; `receipts` are those of earlier messages, resolved or not."""

    retryable = True
    hint = "await the receipts; the message at which it stopped, and all later ones, were not sent"

    def __init__(self, sentence: str, *, receipts: Sequence[Receipt], hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.receipts = receipts
