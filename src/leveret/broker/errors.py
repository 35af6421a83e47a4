"""The errors with which the broker refuses a request; the type says why.

    BrokerError              a sentence for the client; each front maps the type to its protocol's code
    ├─ AccessRefused         the user lacks the permission, or another user has exclusive access
    ├─ NotFound              the named queue, exchange, group, user … does not exist
    ├─ Locked                the exclusive queue belongs to another session
    ├─ PreconditionFailed    the arguments are wrong or do not fit the state of the object
    │  └─ QueryRefused       a query or a sink can't go on; has a kind for programs and a hint
    ├─ UnknownExchangeType   no exchange can have the declared type
    ├─ Unsupported           the object never supports the operation
    └─ Malformed             the bytes of a message can't be decoded

A `StorageError` is not a refusal: the store has failed. Each front maps it to a code, too.

The rule: where RabbitMQ has a text for an error, the sentence is exactly RabbitMQ's, because clients match on
it.
"""

from __future__ import annotations

from leveret.storage.errors import StorageError

__all__ = [
    "AccessRefused",
    "BrokerError",
    "Locked",
    "Malformed",
    "NotFound",
    "PreconditionFailed",
    "StorageError",
    "UnknownExchangeType",
    "Unsupported",
]


class BrokerError(Exception):
    """`NotFound("no queue 'q' in vhost '/'")`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class AccessRefused(BrokerError):
    """The user lacks the permission, or another user has exclusive access."""


class NotFound(BrokerError):
    """An object that the request names does not exist."""


class Locked(BrokerError):
    """The exclusive queue belongs to another session."""


class PreconditionFailed(BrokerError):
    """The arguments of the request are wrong, or do not fit the state of the object."""


class QueryRefused(PreconditionFailed):
    """A request of a query or a sink is refused; `kind` is the reason for programs."""

    def __init__(self, kind: str, sentence: str, *, hint: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.hint = hint


class UnknownExchangeType(BrokerError):
    """No exchange can have the declared type."""


class Unsupported(BrokerError):
    """The object that the request names never supports this operation."""


class Malformed(BrokerError):
    """The properties of a message can't be decoded."""
