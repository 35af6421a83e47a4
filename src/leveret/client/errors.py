"""What can go wrong for a user of the toolkit, as types that carry the decision.

    ClientError                `.retryable`: whether the same call may succeed later; `.hint`: what to do
    ├─ NotConnected            there is no connection, and none came in the time that was given
    │  ├─ LoginRefused         the broker is there and refuses us: user, password, vhost
    │  └─ ConnectionBlocked    the broker takes no messages at present (`connection.blocked`)
    ├─ ConnectionLost          the connection ended while something was under way
    ├─ ChannelClosed           the broker closed the channel: its code and text
    ├─ ChannelsExhausted       the connection has no channel left
    ├─ ConfirmTimeout          the message was sent, and nothing came back in time
    ├─ WindowFull              as many messages are unconfirmed as the publisher allows
    ├─ PublishFailed           of a receipt: it is not *confirmed*
    │  ├─ MessageReturned      nobody takes the message
    │  ├─ MessageNacked        the broker refused it
    │  └─ MessageLost          nobody knows
    ├─ PublishInterrupted      publish_many could not go on
    ├─ ConfirmsFailed          not everything in a block was confirmed
    ├─ NoReply                 a request was published, and no reply came in time
    ├─ TopologyMismatch        something exists with other arguments than declared
    ├─ QueueLocked             a queue is another connection's alone
    ├─ SeenFailed              the memory of processed messages can't be read or written
    ├─ ConversionError         a body is not what it should be
    ├─ HandlerTimeout          a handler did not finish by its deadline
    ├─ AttemptsUsedUp          handlers began with a message as often as they may, and were lost with it
    └─ Closed                  used after its end

Errors that carry receipts (`PublishFailed` and those below it, `PublishInterrupted`, `ConfirmsFailed`) are in
`receipt.py`. Codes and texts of the broker are kept as they came. Which publish or call an error belongs to
is decided where it is raised; nothing here is logged and forgotten.
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


class ConnectionBlocked(NotConnected):
    hint = "the broker is short of memory or disk; it takes messages again when that is over"


class _Replied(ClientError):
    """An error with which the broker ended something: `code` and `text` as they came, if any did."""

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
        405: "it belongs to another connection alone",
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
    """One argument of something that exists: what was declared, and what there is."""

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
    """The queue is another connection's alone: perhaps of the one before this, which is not given up yet."""

    retryable = True
    hint = "it is free when that connection ends; a name of one's own avoids the wait"


class SeenFailed(ClientError):
    """The file can't be read or written: nothing is known of these ids, and nothing was remembered."""

    retryable = True
    hint = "look at the file, its permissions, the free space, and who else holds a lock on it"


class ConversionError(ClientError):
    hint = "the message is rejected: the same bytes will not convert the next time either"


class HandlerTimeout(ClientError):
    """`running` is the call itself, if it goes on in a thread."""

    retryable = True
    running: asyncio.Future[object] | None = None


class AttemptsUsedUp(ClientError):
    """Handlers began with a message as often as its policy allows, and the last of them was lost with its
    process or its connection. The message goes to the recoverer without another call."""

    hint = "it may end the process that handles it"


class Closed(ClientError):
    hint = "make a new one"
