"""Errors of the HTTP API, and the table from the broker's errors to HTTP statuses.

    HTTPException           (Starlette's) unknown path, wrong method
    └─ Problem              a status, a word, a sentence: `{"error": word, "reason": sentence}`
       ├─ NotAuthenticated  401, with the header that asks for a name and a password
       ├─ TokenRefused      401 for a bearer token that is unknown or has ended
       ├─ NotAuthorised     401: the user is known, but lacks a permission
       └─ NotFound          404

Statuses and words are RabbitMQ's. This package may not import the store, so `StorageError` is recognised by
its attributes (`StorageFailure`). Any other exception is a bug of the broker: the client gets a 500, and the
log the traceback.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol, runtime_checkable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from leveret.broker import errors as broker_errors
from leveret.broker.errors import (
    AccessRefused,
    BrokerError,
    Locked,
    Malformed,
    PreconditionFailed,
    UnknownExchangeType,
    Unsupported,
)
from leveret.fronts.http.json_replies import jsonable, reply, text

STATUSES: dict[type[BrokerError], tuple[int, str]] = {
    AccessRefused: (401, "not_authorised"),
    broker_errors.NotFound: (404, "Object Not Found"),
    Locked: (400, "bad_request"),
    PreconditionFailed: (400, "bad_request"),
    UnknownExchangeType: (400, "bad_request"),
    Unsupported: (501, "not_implemented"),
    Malformed: (400, "bad_request"),
}

REALM = "Leveret"


@runtime_checkable
class StorageFailure(Protocol):
    """The attributes of the store's `StorageError`."""

    message: str
    hint: str


class Problem(HTTPException):
    """`Problem(400, "bad_request", "the name is too long")`."""

    def __init__(
        self,
        status: int,
        word: str,
        sentence: str | list[object],
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        """RabbitMQ has some reasons that are lists: `["not_boolean", "yes"]`."""
        super().__init__(status, str(sentence), headers)
        self.word = word
        self.reason = sentence


class NotAuthenticated(Problem):
    def __init__(self) -> None:
        super().__init__(
            401, "not_authorized", "Login failed", headers={"www-authenticate": f'Basic realm="{REALM}"'}
        )


class TokenRefused(Problem):
    def __init__(self) -> None:
        # Without `Basic` in it, no browser asks people for a password in a window of its own.
        challenge = f'Bearer realm="{REALM}", error="invalid_token"'
        sentence = "The token is unknown or has ended. Log in again."
        super().__init__(401, "not_authorized", sentence, headers={"www-authenticate": challenge})


class NotAuthorised(Problem):
    def __init__(self, sentence: str) -> None:
        super().__init__(401, "not_authorised", sentence)


class NotFound(Problem):
    def __init__(self) -> None:
        super().__init__(404, "Object Not Found", "Not Found")


def problem_of(error: Exception) -> Problem | None:
    """Return the `Problem` for an error of the broker or the store; None for other exceptions.

    >>> problem_of(Locked("queue 'q' is locked")).status_code
    400
    """
    if isinstance(error, BrokerError):
        status, word = next(STATUSES[base] for base in type(error).__mro__ if base in STATUSES)
        return Problem(status, word, error.sentence)
    if isinstance(error, StorageFailure):
        return Problem(503, "unavailable", str(error))
    return None


async def answer(request: Request, error: Exception) -> Response:
    """Return the response for an error. All error responses are made in this function."""
    if isinstance(error, Problem):
        reason = text(error.reason) if isinstance(error.reason, str) else jsonable(error.reason)
        return reply({"error": error.word, "reason": reason}, error.status_code, error.headers)
    if isinstance(error, HTTPException) and error.status_code != 404:
        phrase = HTTPStatus(error.status_code).phrase
        word = phrase.lower().replace(" ", "_")
        return reply({"error": word, "reason": phrase}, error.status_code, error.headers)
    if isinstance(error, HTTPException):
        return await answer(request, NotFound())
    return reply({"error": "internal_error", "reason": "See the broker's log."}, 500)
