"""Errors for users of the toolkit. The type tells whether to try again, and what to do.

    ClientError                `.retryable`: whether the call may succeed later; `.hint`: what to do
    ├─ NotConnected            no connection could be opened in the given time
    │  ├─ LoginRefused         the broker refuses user, password or vhost
    │  ├─ TlsFailed            a certificate is refused, or one side does not speak TLS
    │  └─ ConnectionBlocked    the broker takes no messages at present (`connection.blocked`)
    ├─ ConnectionLost          the connection ended during a call
    ├─ ChannelClosed           the broker closed the channel: its code and text
    ├─ ChannelsExhausted       the connection has no channel left
    ├─ ConfirmTimeout          the message was sent, and no confirm came in time
    ├─ WindowFull              as many messages are unconfirmed as the publisher allows
    ├─ PublishFailed           a receipt is not *confirmed*
    │  ├─ MessageReturned      no queue took the message
    │  ├─ MessageNacked        the broker refused the message
    │  └─ MessageLost          the message may or may not be stored
    ├─ PublishInterrupted      publish_many could not go on
    ├─ ConfirmsFailed          not everything in a block was confirmed
    ├─ NoReply                 a request was published, and no reply came in time
    ├─ TopologyMismatch        something exists with other arguments than declared
    ├─ QueueLocked             only another connection may use a queue
    ├─ SeenFailed              the memory of processed messages can't be read or written
    ├─ ConversionError         a body can't be converted
    ├─ HandlerTimeout          a handler did not finish by its deadline
    ├─ AttemptsUsedUp          handlers began with a message as often as they may, and were lost
    └─ Closed                  an object was used after it was closed

Errors that carry receipts (`PublishFailed` and its subclasses, `PublishInterrupted`, `ConfirmsFailed`) are in
`receipt.py`. Codes and texts of the broker are kept unchanged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar


class ClientError(Exception):
    """`ClientError("what happened", hint="what to do")`."""

    retryable: ClassVar[bool] = False
    hint: str = ""

    def __init__(self, sentence: str, *, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.sentence} ({self.hint})" if self.hint else self.sentence


class NotConnected(ClientError):
    retryable = True
    hint = "check that the broker runs and that the URL is right"


class LoginRefused(NotConnected):
    hint = "check user, password and vhost in the URL"
    retryable = False


class TlsFailed(NotConnected):
    """A certificate, or a file with one, is wrong, or only one side speaks TLS: the sentence says which."""

    hint = "check the certificates, their files and the scheme of the URL"
    retryable = False


class ConnectionBlocked(NotConnected):
    hint = "the broker is short of memory or disk; it takes messages again when that is over"


class _Replied(ClientError):
    """The broker closed a channel or a connection. `code` and `text` are the broker's, if it gave any."""

    def __init__(self, sentence: str, *, code: int = 0, text: str = "", hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.code = code
        self.text = text


class ConnectionLost(_Replied):
    retryable = True


class ChannelClosed(_Replied):
    """The broker closed the channel: 403, 404, 405 or 406."""

    hints: ClassVar[dict[int, str]] = {
        403: "ask for the permission, or use another name",
        404: "declare it first, in the topology for example",
        405: "it is exclusive to another connection",
        406: "something exists with other arguments, or a rule was broken: the text says which",
    }

    def __init__(self, sentence: str, *, code: int = 0, text: str = "", hint: str = "") -> None:
        super().__init__(sentence, code=code, text=text, hint=hint or self.hints.get(code, ""))


class ChannelsExhausted(ClientError):
    retryable = True
    hint = "use fewer publishers and listeners on one connection, or more connections"


class ConfirmTimeout(ClientError):
    retryable = True
    hint = "the message may or may not be stored; publish it again if a duplicate does no harm"


class WindowFull(ClientError):
    retryable = True
    hint = "wait for `await publisher.room()`, or use publish() or publish_many(), which do"


class NoReply(ClientError):
    retryable = True
    hint = "it may have been processed or not; ask again if that does no harm"


@dataclass(frozen=True, slots=True)
class Difference:
    """An argument with which something exists, and which differs from the declaration."""

    what: str
    argument: str
    declared: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: {self.argument} is declared as {self.declared}, but it is {self.found}"


class TopologyMismatch(ClientError):
    hint = "change the declaration, delete the old one, or give the topology on_mismatch='ignore'"

    def __init__(self, sentence: str, *, differences: tuple[Difference, ...] = (), hint: str = "") -> None:
        super().__init__(sentence, hint=hint)
        self.differences = differences


class QueueLocked(ClientError):
    """The queue is exclusive to another connection: perhaps to our previous one, which has not ended yet."""

    retryable = True
    hint = "it is free when that connection ends; a queue name that nobody else uses avoids the wait"


class SeenFailed(ClientError):
    """The file can't be read or written. Whether the ids were seen is unknown, and none was remembered."""

    retryable = True
    hint = "look at the file, its permissions, the free space, and who else holds a lock on it"


class ConversionError(ClientError):
    hint = "the message is rejected: the same bytes will not convert the next time either"


class HandlerTimeout(ClientError):
    """A handler did not finish in time. `running` is its call, if that goes on in a thread."""

    retryable = True
    running: asyncio.Future[object] | None = None


class AttemptsUsedUp(ClientError):
    """Handlers began with a message as often as its policy allows, and the last one was lost.

    It was lost with its process or its connection. The recoverer gets the message without another call.
    """

    hint = "it may end the process that handles it"


class Closed(ClientError):
    hint = "make a new one"
