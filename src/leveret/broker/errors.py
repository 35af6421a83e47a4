"""Why the broker refuses a request, as types that carry the decision.

    BrokerError              a sentence for the client; each front says it in its protocol's codes
    ├─ AccessRefused         the user has no right to it, or somebody else has it for themselves
    ├─ NotFound              there is no such queue, exchange, group, user …
    ├─ Locked                an exclusive queue of another session
    ├─ PreconditionFailed    the request is wrong: its arguments, or the state of what it is about
    │  └─ QueryRefused       a query or a sink can't go on: why, for programs, and what to do
    ├─ Unsupported           the object can't do this at all
    └─ Malformed             the bytes of a message are not what they must be

A `StorageError` is no refusal: the store can't do now what it should. Each front has a word for that.

The rule: a sentence that RabbitMQ has is RabbitMQ's, to the letter, because clients match on it.
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
    "Unsupported",
]


class BrokerError(Exception):
    """`NotFound("no queue 'q' in vhost '/'")`."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class AccessRefused(BrokerError):
    """The user has no right to this, or somebody else has it for themselves."""


class NotFound(BrokerError):
    """What the request names is not there."""


class Locked(BrokerError):
    """An exclusive queue belongs to another session."""


class PreconditionFailed(BrokerError):
    """The arguments of the request are wrong, or do not fit the state of what it is about."""


class QueryRefused(PreconditionFailed):
    """What a query or a sink asks for can't be given: `kind` says why, for programs."""

    def __init__(self, kind: str, sentence: str, *, hint: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.hint = hint


class Unsupported(BrokerError):
    """The object that the request names can't do this at all."""


class Malformed(BrokerError):
    """The bytes of a message are not what they must be: its properties can't be read."""
