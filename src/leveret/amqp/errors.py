"""Errors between two AMQP peers. The type decides what is closed.

    AmqpError               a reply code, its name, a sentence, sent to the peer
    ├─ ChannelException     closes the channel; the connection goes on
    │  ├─ ContentTooLarge      311    ├─ ResourceLocked       405
    │  ├─ AccessRefused        403    └─ PreconditionFailed   406
    │  └─ NotFound             404
    └─ ConnectionException  closes the connection
       ├─ ConnectionForced     320    ├─ ChannelError         504
       ├─ FrameError           501    ├─ UnexpectedFrame      505
       ├─ SyntaxError_         502    ├─ NotAllowed           530
       ├─ CommandInvalid       503    ├─ NotImplemented_      540
       └─ InternalError        541    └─ ResourceError        506

The codes are those of AMQP 0-9-1, section 1.2; RabbitMQ's table decides which close a channel and which a
connection. The reply text is `NAME - sentence`, as RabbitMQ writes it, because clients match on it. Errors
are raised where a rule is checked, and caught where frames are written.
"""

from __future__ import annotations

from typing import ClassVar

SHORT_STRING_BYTES_MAX = 255


class AmqpError(Exception):
    """Base of all AMQP errors. Example: `NotFound("no queue 'q' in vhost '/'")`.

    `method` is (class id, method id) of the cause: (0, 0) if the catching code fills it in, None if no method
    caused the error.
    """

    code: ClassVar[int] = 541
    name: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, sentence: str, *, method: tuple[int, int] | None = (0, 0)) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.method = method

    @property
    def reply_text(self) -> str:
        """The reply text as sent, cut to the size of a short string as RabbitMQ does."""
        text = f"{self.name} - {self.sentence}".encode("utf-8", "surrogateescape")
        if len(text) > SHORT_STRING_BYTES_MAX:
            text = text[: SHORT_STRING_BYTES_MAX - 3] + b"..."
        return text.decode("utf-8", "surrogateescape")


class ChannelException(AmqpError):
    """A request can't be met: its channel is closed."""


class ContentTooLarge(ChannelException):
    """The broker has no room for the message at present; the peer may try again later."""

    code = 311
    name = "CONTENT_TOO_LARGE"


class AccessRefused(ChannelException):
    code = 403
    name = "ACCESS_REFUSED"


class NotFound(ChannelException):
    code = 404
    name = "NOT_FOUND"


class ResourceLocked(ChannelException):
    code = 405
    name = "RESOURCE_LOCKED"


class PreconditionFailed(ChannelException):
    code = 406
    name = "PRECONDITION_FAILED"


class ConnectionException(AmqpError):
    """The peer broke the protocol, or the connection can't continue: the connection is closed."""


class ConnectionForced(ConnectionException):
    code = 320
    name = "CONNECTION_FORCED"


class LoginRefused(ConnectionException):
    """A 403 during the handshake, where no channel is open."""

    code = 403
    name = "ACCESS_REFUSED"


class FrameError(ConnectionException):
    code = 501
    name = "FRAME_ERROR"


class SyntaxError_(ConnectionException):  # noqa: N801  (the name is taken)
    code = 502
    name = "SYNTAX_ERROR"


class CommandInvalid(ConnectionException):
    code = 503
    name = "COMMAND_INVALID"


class ChannelError(ConnectionException):
    code = 504
    name = "CHANNEL_ERROR"


class UnexpectedFrame(ConnectionException):
    code = 505
    name = "UNEXPECTED_FRAME"


class ResourceError(ConnectionException):
    code = 506
    name = "RESOURCE_ERROR"


class NotAllowed(ConnectionException):
    code = 530
    name = "NOT_ALLOWED"


class NotImplemented_(ConnectionException):  # noqa: N801  (the name is taken)
    code = 540
    name = "NOT_IMPLEMENTED"


class InternalError(ConnectionException):
    code = 541
    name = "INTERNAL_ERROR"
