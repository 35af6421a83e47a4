"""Arguments of queues, consumers and exchanges: their checks and their typed values.

Owns RabbitMQ's checks, their order and their texts, and the typed form in which a queue reads its arguments.
What a queue does with its arguments is left to the queue. Unknown arguments are accepted, as in RabbitMQ. The
rule: a text is RabbitMQ 3.10's, to the letter, wherever RabbitMQ has one. Arguments that only Leveret has
(`x-retry-…`, `x-consumer-timeout…`, `x-dedup…`, `x-audit…`) are refused in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from leveret.broker.canonical import Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues import argument_checks as checks
from leveret.broker.queues.argument_checks import Check, Table
from leveret.broker.queues.erlang_terms import are_identical, as_term, as_text, quoted, type_name
from leveret.broker.queues.queue_settings import DEFAULT_DEDUP_WINDOW, DEFAULT_RETRY_MULTIPLIER, QueueSettings

OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
TIMEOUT_ACTIONS: Final = ("cancel", "retry", "dead-letter")
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
SEGMENT_BYTES_MAX: Final = 3_000_000_000

_T = TypeVar("_T")
_PLAIN_ATOM: Final = re.compile(r"[a-z][A-Za-z0-9_@]*")
_LEADING_INTEGER: Final = re.compile(r"[+-]?[0-9]+")

# --- known arguments, in the order in which RabbitMQ checks them -------------------------------------------

_QUEUE_TYPE: Final[Mapping[str, Check]] = {
    "x-queue-type": checks.one_of(QUEUE_TYPES, lambda word: quoted(f"unsupported queue type '{word}'")),
}
_CHECKS: Final[Mapping[str, Check]] = {
    "x-expires": checks.lifetime,
    "x-message-ttl": checks.expiry,
    "x-dead-letter-routing-key": checks.dead_letter_routing_key,
    "x-dead-letter-strategy": checks.one_of(
        ("at-most-once", "at-least-once"), lambda _: "invalid_dlx_strategy"
    ),
    "x-max-length": checks.not_negative,
    "x-max-length-bytes": checks.not_negative,
    "x-max-age": checks.age,
    "x-stream-max-segment-size-bytes": checks.not_negative,
    "x-initial-cluster-size": checks.positive,
    "x-max-in-memory-length": checks.not_negative,
    "x-max-in-memory-bytes": checks.not_negative,
    "x-max-priority": checks.priorities,
    "x-overflow": checks.one_of(OVERFLOWS, lambda _: "invalid_overflow"),
    "x-queue-mode": checks.one_of(
        ("default", "lazy"), lambda word: quoted(f"unsupported queue mode '{word}'")
    ),
    "x-queue-version": checks.queue_version,
    "x-single-active-consumer": checks.boolean,
    "x-quorum-initial-group-size": checks.positive,
    "x-queue-leader-locator": checks.one_of(
        ("client-local", "balanced", "random", "least-leaders"), lambda _: "invalid_queue_locator_arg"
    ),
}
_OUR_CHECKS: Final[Mapping[str, Check]] = {
    "x-delivery-limit": checks.not_negative,
    "x-consumer-timeout": checks.positive,
    "x-consumer-timeout-action": checks.one_of(TIMEOUT_ACTIONS, lambda _: "invalid_consumer_timeout_action"),
    "x-retry-delay-ms": checks.expiry,
    "x-retry-multiplier": checks.multiplier,
    "x-retry-delay-max-ms": checks.expiry,
    "x-dedup": checks.boolean,
    "x-dedup-window": checks.positive,
    "x-audit-window": checks.lifetime,
    "x-audit-bodies": checks.boolean,
}
_CONSUMER_CHECKS: Final[Mapping[str, Check]] = {
    "x-priority": checks.integer,
    "x-cancel-on-ha-failover": checks.boolean,
}
_CONSUMER_OUR_CHECKS: Final[Mapping[str, Check]] = {
    "x-consumer-timeout": checks.positive,
    "x-peek": checks.boolean,
    "x-begun-marks": checks.boolean,
}

COMPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "classic": (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-master-locator",
    ),
    "quorum": (
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-message-ttl",
        "x-queue-leader-locator",
    ),
    "stream": (
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
"""Known arguments of each queue type, in the order in which two declarations are compared."""

_KNOWN: Final = frozenset(argument for arguments in COMPARED.values() for argument in arguments)
OUR_ARGUMENTS: Final = frozenset(_OUR_CHECKS) - {"x-delivery-limit"}
"""Leveret's own arguments, accepted for queues of all types."""

CONSUMER_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "classic": ("x-cancel-on-ha-failover", "x-priority", "x-credit"),
    "quorum": ("x-priority", "x-credit"),
    "stream": ("x-stream-offset", "x-credit"),
}
_CONSUMER_KNOWN: Final = frozenset(
    argument for arguments in CONSUMER_ARGUMENTS.values() for argument in arguments
)


def _foreign(argument: str, queue_type: str, *, queue: str, vhost: str) -> PreconditionFailed:
    """Return the error for an argument that is known only for queues of another type."""
    return PreconditionFailed(
        f"invalid arg '{argument}' for queue '{queue}' in vhost '{vhost}' "
        f"of queue type rabbit_{queue_type}_queue"
    )


def _check(checks_by_argument: Mapping[str, Check], table: Table, *, queue: str, vhost: str) -> None:
    for argument, check in checks_by_argument.items():
        if argument in table and (wrong := check(table[argument], table)) is not None:
            raise PreconditionFailed(
                f"invalid arg '{argument}' for queue '{queue}' in vhost '{vhost}': {wrong}"
            )


def _queue_type(table: Table) -> str:
    return _get(table, "x-queue-type", str) or "classic"


def _get(table: Table, argument: str, type_: type[_T]) -> _T | None:
    """Return the value of an argument that has passed its check, or None."""
    value = table.get(argument)
    assert value is None or isinstance(value, type_)
    return value


# --- queues ----------------------------------------------------------------------------------------------


def declared_settings(table: Table, *, queue: str, vhost: str) -> QueueSettings:
    """Return the settings that the arguments of a `queue.declare` ask for, completed by the defaults.

    Raises `PreconditionFailed` for the first argument that RabbitMQ would complain about.

    >>> declared_settings({"x-message-ttl": 60_000}, queue="q", vhost="/").message_ttl_ms
    60000
    >>> declared_settings({"x-message-ttl": "soon"}, queue="q", vhost="/")
    Traceback (most recent call last):
    leveret.broker.errors.PreconditionFailed: invalid arg 'x-message-ttl' for queue 'q' in vhost '/': \
"expected integer, got longstr"
    """
    if not table:
        return QueueSettings()
    check_queue_arguments(table, queue=queue, vhost=vhost)
    factor = table.get("x-retry-multiplier")
    is_stream = _queue_type(table) == "stream"
    return QueueSettings(
        message_ttl_ms=_get(table, "x-message-ttl", int),
        expires_ms=_get(table, "x-expires", int),
        max_length=_get(table, "x-max-length", int),
        max_length_bytes=None if is_stream else _get(table, "x-max-length-bytes", int),
        kept_bytes=_get(table, "x-max-length-bytes", int) if is_stream else None,
        overflow=_get(table, "x-overflow", str) or "drop-head",
        dead_letter_exchange=_get(table, "x-dead-letter-exchange", str),
        dead_letter_routing_key=_get(table, "x-dead-letter-routing-key", str),
        max_priority=_get(table, "x-max-priority", int) or 0,
        single_active_consumer=_get(table, "x-single-active-consumer", bool) or False,
        queue_type=_queue_type(table),
        delivery_limit=_get(table, "x-delivery-limit", int),
        consumer_timeout_ms=_get(table, "x-consumer-timeout", int),
        consumer_timeout_action=_get(table, "x-consumer-timeout-action", str) or "cancel",
        retry_delay_ms=_get(table, "x-retry-delay-ms", int),
        retry_multiplier=DEFAULT_RETRY_MULTIPLIER if factor is None else float(checks.number(factor)),
        retry_delay_max_ms=_get(table, "x-retry-delay-max-ms", int),
        max_age_us=None if table.get("x-max-age") is None else checks.duration_us(table["x-max-age"]),
        segment_bytes=_get(table, "x-stream-max-segment-size-bytes", int),
        dedup=_get(table, "x-dedup", bool) or False,
        dedup_window=_get(table, "x-dedup-window", int) or DEFAULT_DEDUP_WINDOW,
        audit_us=1000 * (_get(table, "x-audit-window", int) or 0),
        audit_bodies=_get(table, "x-audit-bodies", bool) or False,
    )


def arguments_of_type(queue_type: str) -> frozenset[str]:
    """Return the arguments that mean something to a queue of this type."""
    return frozenset(COMPARED[queue_type]) | (
        frozenset() if queue_type == "stream" else frozenset(_OUR_CHECKS)
    )


def check_queue_arguments(table: Table, *, queue: str, vhost: str) -> None:
    """Check the queue type, then the arguments of that type, those of other types, and Leveret's own."""
    exchange_name("x-dead-letter-exchange", table, f"queue '{queue}' in vhost '{vhost}'")
    _check(_QUEUE_TYPE, table, queue=queue, vhost=vhost)
    queue_type = _queue_type(table)
    known = COMPARED[queue_type]
    known_checks = {argument: check for argument, check in _CHECKS.items() if argument in known}
    _check(known_checks, table, queue=queue, vhost=vhost)
    for argument in table:
        ours = OUR_ARGUMENTS if queue_type == "stream" else _OUR_CHECKS
        if argument in _KNOWN and argument not in known and argument not in ours:
            raise _foreign(argument, queue_type, queue=queue, vhost=vhost)
    _check(_OUR_CHECKS, table, queue=queue, vhost=vhost)


def check_server_named(table: Table) -> None:
    """Raise `PreconditionFailed` if a queue without a name is not a classic queue."""
    queue_type = table.get("x-queue-type", "classic")
    if queue_type in QUEUE_TYPES and queue_type != "classic":
        raise PreconditionFailed(f"Cannot declare a server-named queue for type rabbit_{queue_type}_queue")


def check_lasting(*, queue: str, vhost: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    """Raise `PreconditionFailed` for a property that a quorum queue or a stream can't have."""
    refused = ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable"))
    for is_set, name in refused:
        if is_set:
            raise PreconditionFailed(f"invalid property '{name}' for queue '{queue}' in vhost '{vhost}'")


def check_segment_bytes(settings: QueueSettings) -> None:
    """Check the segment size of a stream, which RabbitMQ checks last and with another text."""
    if settings.segment_bytes is not None and settings.segment_bytes > SEGMENT_BYTES_MAX:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")


# --- repeated declarations ------------------------------------------------------------------------------


def check_equivalent(current: Table, given: Table, *, kind: str, name: str, vhost: str) -> None:
    """Raise `PreconditionFailed` if a queue or exchange (`kind`) is declared again with other arguments."""
    for argument in _compared(current, kind):
        if argument in current and argument in given:
            check_same(argument, current[argument], given[argument], kind=kind, name=name, vhost=vhost)
        elif argument in current or argument in given:
            if argument == "x-queue-type" and "classic" in (current.get(argument), given.get(argument)):
                # No queue type and the type `classic` are equivalent.
                continue
            received, present = _with_type(argument, given), _with_type(argument, current)
            raise _inequivalent(argument, received, present, kind=kind, name=name, vhost=vhost)


def check_same(argument: str, current: Value, given: Value, *, kind: str, name: str, vhost: str) -> None:
    """Raise `PreconditionFailed` if an argument or a property (`durable`, `type` …) has changed.

    >>> check_same("durable", False, True, kind="queue", name="q", vhost="/")
    Traceback (most recent call last):
    leveret.broker.errors.PreconditionFailed: inequivalent arg 'durable' for queue 'q' in vhost '/': \
received 'true' but current is 'false'
    """
    if not are_identical(current, given):
        show = _atom if argument == "type" else _shown
        received, present = f"'{show(given)}'", f"'{show(current)}'"
        raise _inequivalent(argument, received, present, kind=kind, name=name, vhost=vhost)


def _compared(current: Table, kind: str) -> tuple[str, ...]:
    if kind == "exchange":
        return ("alternate-exchange",)
    return (*COMPARED[_queue_type(current)], *_OUR_CHECKS)


def _inequivalent(
    argument: str, received: str, present: str, *, kind: str, name: str, vhost: str
) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{argument}' for {kind} '{name}' in vhost '{vhost}': "
        f"received {received} but current is {present}"
    )


def _with_type(argument: str, table: Table) -> str:
    if argument not in table:
        return "none"
    value = table[argument]
    return f"the value '{_shown(value)}' of type '{type_name(value)}'"


def _shown(value: Value) -> str:
    return as_text(value) if isinstance(value, str | bytes | bytearray) else as_term(value)


def _atom(value: Value) -> str:
    """Return an exchange's type as RabbitMQ prints its Erlang atom: in quotes unless it is a plain word."""
    word = _shown(value)
    return word if _PLAIN_ATOM.fullmatch(word) else f"'{word}'"


# --- consumers, messages, exchanges ------------------------------------------------------------------------


def check_consumer(arguments: Table, *, queue: str, vhost: str, queue_type: str = "classic") -> None:
    """Raise `PreconditionFailed` for arguments that `basic.consume` can't have on a queue of this type."""
    known = CONSUMER_ARGUMENTS[queue_type]
    known_checks = {argument: check for argument, check in _CONSUMER_CHECKS.items() if argument in known}
    _check(known_checks, arguments, queue=queue, vhost=vhost)
    for argument in arguments:
        if argument in _CONSUMER_KNOWN and argument not in known:
            raise _foreign(argument, queue_type, queue=queue, vhost=vhost)
    _check(_CONSUMER_OUR_CHECKS, arguments, queue=queue, vhost=vhost)


def consumer_priority(arguments: Table, *, queue: str, vhost: str) -> int:
    """Return `x-priority` of a consumer; consumers with a higher priority are served first."""
    check_consumer(arguments, queue=queue, vhost=vhost)
    return _get(arguments, "x-priority", int) or 0


def consumer_timeout_ms(arguments: Table, *, queue: str, vhost: str) -> int | None:
    """Return `x-consumer-timeout` of a consumer; None leaves the timeout to the queue."""
    check_consumer(arguments, queue=queue, vhost=vhost)
    return _get(arguments, "x-consumer-timeout", int)


def marks_begun(arguments: Table) -> bool:
    """Return whether a consumer reports when it begins with a delivery; its arguments are already checked."""
    return _get(arguments, "x-begun-marks", bool) or False


def parse_expiration(value: bytes) -> int:
    """Return a message's time to live in milliseconds, which clients send as a string of digits.

    >>> parse_expiration(b"60000")
    60000
    """
    text = value.decode("utf-8", "surrogateescape")
    digits = _LEADING_INTEGER.match(text)
    if digits is None:
        raise PreconditionFailed(f"invalid expiration '{text}': no_integer")
    if rest := text[digits.end() :]:
        raise PreconditionFailed(f"invalid expiration '{text}': {{leftover_string,{quoted(rest)}}}")
    time_ms = int(digits.group())
    if wrong := checks.wrong_expiry(time_ms):
        raise PreconditionFailed(f"invalid expiration '{text}': {wrong}")
    return time_ms


def alternate_exchange(arguments: Table, *, name: str, vhost: str) -> str | None:
    """Return the name of the exchange for unroutable messages, or None; that exchange need not exist."""
    return exchange_name("alternate-exchange", arguments, f"exchange '{name}' in vhost '{vhost}'")


def exchange_name(argument: str, table: Table, owner: str) -> str | None:
    """Return an argument that names an exchange, or None. RabbitMQ checks it first, with another text."""
    if argument not in table:
        return None
    value = table[argument]
    if isinstance(value, str):
        return value
    raise PreconditionFailed(f"invalid type '{type_name(value)}' for arg '{argument}' in {owner}")
