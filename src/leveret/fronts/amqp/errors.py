"""The table from the broker's errors to AMQP's: which reply code the client gets, and what it closes."""

from __future__ import annotations

from leveret.amqp import errors as amqp
from leveret.broker import errors

AMQP_ERRORS: dict[type[errors.BrokerError], type[amqp.AmqpError]] = {
    errors.AccessRefused: amqp.AccessRefused,
    errors.NotFound: amqp.NotFound,
    errors.Locked: amqp.ResourceLocked,
    errors.PreconditionFailed: amqp.PreconditionFailed,
    errors.UnknownExchangeType: amqp.CommandInvalid,
    errors.Unsupported: amqp.NotImplemented_,
    errors.Malformed: amqp.SyntaxError_,
}


def as_amqp(error: errors.BrokerError) -> amqp.AmqpError:
    """Return the AMQP error for an error of the broker.

    >>> as_amqp(errors.NotFound("no queue 'q' in vhost '/'")).reply_text
    "NOT_FOUND - no queue 'q' in vhost '/'"
    """
    kind = next(kind for kind in type(error).__mro__ if kind in AMQP_ERRORS)
    return AMQP_ERRORS[kind](error.sentence)
