"""Exchanges, queues and bindings to be declared, and checks that need no broker.

This module owns the named arguments, their checks (`ValueError`, with what would be right), and the method
that declares each part. Collecting parts and declaring them is left to `topology`. The rule: a declaration
never changes after it is made, and equal declarations are equal bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from pamqp import commands

from leveret.amqp.errors import SHORT_STRING_BYTES_MAX
from leveret.amqp.methods import Method, make
from leveret.amqp.names import to_bytes
from leveret.amqp.tables import Value, encode_table

_EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
_EXPIRY_MS_MAX: Final = 315_360_000_000
"""Ten years, the longest time that RabbitMQ takes."""

# --- checks ----------------------------------------------------------------------------------------------

Check: TypeAlias = Callable[[Any], str | None]
"""Returns what a value should be, or None if it is right."""


def _whole_number(least: int, most: int) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if fits else f"a whole number from {least} to {most}"

    return check


def _factor(value: Any) -> str | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
    return None if fits else "a number of at least 1"


def _one_of(*words: str) -> Check:
    return lambda value: None if value in words else f"one of {', '.join(words)}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _short(value: Any) -> str | None:
    fits = isinstance(value, str) and len(to_bytes(value)) <= SHORT_STRING_BYTES_MAX
    return None if fits else f"a str of at most {SHORT_STRING_BYTES_MAX} bytes"


_COUNT: Final = _whole_number(0, 2**63 - 1)
_TIME_MS: Final = _whole_number(0, _EXPIRY_MS_MAX)
_LIFETIME_MS: Final = _whole_number(1, _EXPIRY_MS_MAX)


def _require(part: object, **checks: tuple[Any, Check]) -> None:
    for name, (value, check) in checks.items():
        if (expected := check(value)) is not None:
            raise ValueError(f"{part}: {name} is {expected}, not {value!r}")


def _check_name(kind: str, name: Any) -> None:
    _require(f"{kind} {name!r}", name=(name, _short))
    if name.startswith("amq."):
        raise ValueError(
            f"{kind} '{name}': names that start with amq. are reserved for the broker; use another name"
        )
    if "\r" in name or "\n" in name:
        raise ValueError(f"{kind} {name!r}: brokers drop line ends from names; leave them out")


def _keep_arguments(part: Part, own: Mapping[str, Value]) -> None:
    """Store copies, which cannot change later. `table` is sorted, so that equal arguments are equal bytes."""
    try:
        arguments = deepcopy(dict(part.arguments))
        table = dict(sorted({**arguments, **own}.items()))
        encode_table(table)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{part}: these arguments can't be sent: {error}") from error
    if twice := arguments.keys() & own.keys():
        raise ValueError(f"{part}: {', '.join(sorted(twice))} is given twice, by name and in arguments")
    object.__setattr__(part, "arguments", arguments)
    object.__setattr__(part, "table", table)


# --- parts -----------------------------------------------------------------------------------------------


def _table() -> Any:
    return field(init=False, repr=False, compare=False)


def _arguments() -> Any:
    return field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Exchange:
    """`Exchange("shop", "topic", alternate="unrouted")`.

    `alternate` is the exchange for messages that no binding takes. Types of plugins start with `x-`.
    """

    name: str
    type: str = "direct"
    _: KW_ONLY
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None
    arguments: Mapping[str, Value] = _arguments()
    table: Mapping[str, Value] = _table()
    """All arguments, as they are sent."""

    def __post_init__(self) -> None:
        _check_name("exchange", self.name)
        if not self.name:
            raise ValueError("the default exchange always exists, with every queue bound to it: leave it out")
        _require(
            self,
            durable=(self.durable, _flag),
            auto_delete=(self.auto_delete, _flag),
            internal=(self.internal, _flag),
        )
        if self.type not in _EXCHANGE_TYPES and not str(self.type).startswith("x-"):
            known = ", ".join(_EXCHANGE_TYPES)
            raise ValueError(f"{self}: type is one of {known}, or a plugin's, x-…, not {self.type!r}")
        own: dict[str, Value] = {}
        if self.alternate is not None:
            _require(self, alternate=(self.alternate, _short))
            own["alternate-exchange"] = self.alternate
        _keep_arguments(self, own)

    def __str__(self) -> str:
        return f"exchange '{self.name}'"

    def method(self) -> Method:
        return make(
            commands.Exchange.Declare,
            ticket=0,
            exchange=self.name,
            exchange_type=self.type,
            passive=False,
            durable=self.durable,
            auto_delete=self.auto_delete,
            internal=self.internal,
            nowait=False,
            arguments=dict(self.table),
        )


def _argument(name: str, check: Check, default: Any = None) -> Any:
    """Make a field for a named argument. It is not sent while it is None or False."""
    return field(default=default, metadata={"argument": name, "check": check})


@dataclass(frozen=True, slots=True)
class Queue:
    """`Queue("orders", max_length=10_000, overflow="reject-publish")`.

    Each field after `auto_delete` is one `x-…` argument. All others go into `arguments`. The fields from
    `delivery_limit` on are Leveret's: RabbitMQ has `delivery_limit` for quorum queues only, and ignores the
    others. Names made by the broker are not supported, because they change with each reconnect: use
    `f"replies.{uuid4()}"` with `exclusive=True`.
    """

    name: str
    _: KW_ONLY
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    type: Literal["classic", "quorum", "stream"] | None = _argument(
        "x-queue-type", _one_of("classic", "quorum", "stream")
    )
    message_ttl_ms: int | None = _argument("x-message-ttl", _TIME_MS)
    expires_ms: int | None = _argument("x-expires", _LIFETIME_MS)
    max_length: int | None = _argument("x-max-length", _COUNT)
    max_length_bytes: int | None = _argument("x-max-length-bytes", _COUNT)
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None = _argument(
        "x-overflow", _one_of("drop-head", "reject-publish", "reject-publish-dlx")
    )
    dead_letter_exchange: str | None = _argument("x-dead-letter-exchange", _short)
    dead_letter_key: str | None = _argument("x-dead-letter-routing-key", _short)
    max_priority: int | None = _argument("x-max-priority", _whole_number(1, 255))
    single_active_consumer: bool = _argument("x-single-active-consumer", _flag, default=False)
    delivery_limit: int | None = _argument("x-delivery-limit", _COUNT)
    retry_delay_ms: int | None = _argument("x-retry-delay-ms", _TIME_MS)
    retry_multiplier: float | None = _argument("x-retry-multiplier", _factor)
    retry_delay_max_ms: int | None = _argument("x-retry-delay-max-ms", _TIME_MS)
    consumer_timeout_ms: int | None = _argument("x-consumer-timeout", _LIFETIME_MS)
    consumer_timeout_action: Literal["cancel", "retry", "dead-letter"] | None = _argument(
        "x-consumer-timeout-action", _one_of("cancel", "retry", "dead-letter")
    )
    dedup: bool = _argument("x-dedup", _flag, default=False)
    dedup_window: int | None = _argument("x-dedup-window", _whole_number(1, 2**63 - 1))
    audit_window_ms: int | None = _argument("x-audit-window", _LIFETIME_MS)
    audit_bodies: bool = _argument("x-audit-bodies", _flag, default=False)
    arguments: Mapping[str, Value] = _arguments()
    table: Mapping[str, Value] = _table()
    """All arguments, as they are sent."""

    def __post_init__(self) -> None:
        _check_name("queue", self.name)
        if not self.name:
            raise ValueError(
                "a queue needs a name, because one made by the broker changes with each reconnect"
            )
        _require(
            self,
            durable=(self.durable, _flag),
            exclusive=(self.exclusive, _flag),
            auto_delete=(self.auto_delete, _flag),
        )
        _keep_arguments(self, self._named_arguments())
        self._check_together()

    def _named_arguments(self) -> dict[str, Value]:
        own: dict[str, Value] = {}
        for argument in fields(self):
            if "argument" not in argument.metadata or (value := getattr(self, argument.name)) is None:
                continue
            _require(self, **{argument.name: (value, argument.metadata["check"])})
            if value is not False:
                own[argument.metadata["argument"]] = value
        return own

    def _check_together(self) -> None:
        if "x-dead-letter-routing-key" in self.table and "x-dead-letter-exchange" not in self.table:
            raise ValueError(f"{self}: dead_letter_key is given without a dead_letter_exchange")
        type_ = self.table.get("x-queue-type", "classic")
        if type_ != "classic" and (self.exclusive or self.auto_delete or not self.durable):
            raise ValueError(f"{self}: a {type_!s} queue must be durable, not exclusive and not auto_delete")

    def __str__(self) -> str:
        return f"queue '{self.name}'"

    def method(self, *, passive: bool = False) -> Method:
        return make(
            commands.Queue.Declare,
            ticket=0,
            queue=self.name,
            passive=passive,
            durable=self.durable,
            exclusive=self.exclusive,
            auto_delete=self.auto_delete,
            nowait=False,
            arguments=dict(self.table),
        )


@dataclass(frozen=True, slots=True)
class Binding:
    """`Binding("shop", "orders", "order.#")`: from an exchange to a queue, or to an exchange if asked.

    Both ends may be declared elsewhere: `Binding("amq.topic", "orders", "#")`.
    """

    source: str
    destination: str
    key: str = ""
    _: KW_ONLY
    to_exchange: bool = False
    arguments: Mapping[str, Value] = _arguments()
    table: Mapping[str, Value] = _table()
    """The arguments, as they are sent."""

    def __post_init__(self) -> None:
        _require(
            self,
            source=(self.source, _short),
            destination=(self.destination, _short),
            key=(self.key, _short),
            to_exchange=(self.to_exchange, _flag),
        )
        if not self.source or (self.to_exchange and not self.destination):
            raise ValueError(f"{self}: the default exchange takes no bindings; every queue is bound to it")
        if not self.destination:
            raise ValueError(f"{self}: the name of the queue is missing")
        _keep_arguments(self, {})

    def __str__(self) -> str:
        kind = "exchange" if self.to_exchange else "queue"
        return f"binding of {kind} '{self.destination}' to exchange '{self.source}' with key '{self.key}'"

    def method(self) -> Method:
        ends = {"routing_key": self.key, "ticket": 0, "nowait": False, "arguments": dict(self.table)}
        if self.to_exchange:
            return make(commands.Exchange.Bind, source=self.source, destination=self.destination, **ends)
        return make(commands.Queue.Bind, exchange=self.source, queue=self.destination, **ends)


Part: TypeAlias = Exchange | Queue | Binding
