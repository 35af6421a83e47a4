"""Refusals of requests that RabbitMQ passes on to an AMQP channel: their statuses, words and reasons.

RabbitMQ answers them in three ways. Declarations and bindings hide why access was refused. A `get` tells the
reason with the name of the AMQP code, and a `publish` is a bad request whatever the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.errors import (
    AccessRefused,
    BrokerError,
    Locked,
    Malformed,
    NotFound,
    PreconditionFailed,
    Unsupported,
)
from leveret.broker.views.vhosts import vhost_names
from leveret.fronts.http.auth import enter
from leveret.fronts.http.errors import NotAuthorised, Problem
from leveret.fronts.http.request_bodies import BadRequest

_CODES: Final[dict[type[BrokerError], str]] = {
    AccessRefused: "403 ACCESS_REFUSED - ",
    NotFound: "404 NOT_FOUND - ",
    Locked: "405 RESOURCE_LOCKED - ",
    PreconditionFailed: "406 PRECONDITION_FAILED - ",
    Malformed: "502 ",
    Unsupported: "540 ",
}


def enter_to_declare(broker: Broker, user: User, vhost: str) -> str:
    """Return the name of a virtual host that the user may enter: `auth.enter` with RabbitMQ's other words."""
    if vhost not in vhost_names(broker):
        raise Problem(404, "not_found", "vhost_not_found")
    return enter(broker, user, vhost)


@contextmanager
def of_declarations() -> Iterator[None]:
    """Answer refusals as RabbitMQ does for declarations, deletions and bindings."""
    try:
        yield
    except NotFound as error:
        raise Problem(404, "not_found", error.sentence) from error
    except AccessRefused as error:
        raise NotAuthorised("Access refused.") from error
    except BrokerError as error:
        raise BadRequest(error.sentence) from error


@contextmanager
def of_gets() -> Iterator[None]:
    """Answer refusals as RabbitMQ does when messages are got."""
    try:
        yield
    except NotFound as error:
        raise Problem(404, "not_found", f"NOT_FOUND - {error.sentence}") from error
    except AccessRefused as error:
        raise NotAuthorised(f"ACCESS_REFUSED - {error.sentence}") from error
    except BrokerError as error:
        raise BadRequest(_with_code(error)) from error


@contextmanager
def of_publishes() -> Iterator[None]:
    """Answer refusals as RabbitMQ does when a message is published."""
    try:
        yield
    except BrokerError as error:
        raise BadRequest(_with_code(error)) from error


def _with_code(error: BrokerError) -> str:
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), "")
    return f"{code}{error.sentence}"
