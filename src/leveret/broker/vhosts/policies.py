"""Policies: settings for all queues and exchanges whose names match a pattern.

    policy = policy_of("limits", {"pattern": "^temp-", "definition": {"max-length": 100}}, operator=False)

A *policy* is made by a policymaker, an *operator policy* by an administrator who wants to bound what users
set. Owns what a policy may hold, which policy applies to a queue or an exchange, and how policy, operator
policy and the arguments of a declaration are merged. `policy_changes` puts policies in force. The rules and
texts are RabbitMQ 3.10's: of each kind the matching policy with the highest priority applies alone; where two
sources set a limit the smaller value holds; otherwise an argument takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from leveret.broker.access.permission_patterns import check_pattern, matches
from leveret.broker.canonical import Value
from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.argument_checks import EXPIRY_MS_MAX, duration_us
from leveret.broker.queues.arguments import OVERFLOWS, TIMEOUT_ACTIONS
from leveret.broker.queues.erlang_terms import as_term, json_term

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
"""The components of `ParameterRow`s with policies; RabbitMQ has the same names."""
APPLY_TO: Final = ("queues", "exchanges", "all")
_QUEUE, _EXCHANGE = frozenset({"queues", "all"}), frozenset({"exchanges", "all"})

Judge = Callable[[Any], bool]


class _Key(NamedTuple):
    """A key of a definition."""

    is_valid: Judge
    what: str
    """How RabbitMQ names a value of this key in an error."""
    smaller_wins: bool = False
    """Whether the smaller of two values holds; otherwise the first source takes precedence."""
    for_operators: bool = False
    """Whether an operator policy may set the key."""


def _is_integer(least: int, most: int | None = None) -> Judge:
    def check(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and value >= least and (most is None or value <= most)

    return check


def _is_one_of(*words: object) -> Judge:
    return lambda value: value in words


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _limit(is_valid: Judge, what: str) -> _Key:
    return _Key(is_valid, what, smaller_wins=True, for_operators=True)


_COUNT, _LIFETIME = _is_integer(0), _is_integer(1, EXPIRY_MS_MAX)
_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders", "min-masters")
OUR_KEYS: Final[Mapping[str, _Key]] = {
    "consumer-timeout": _limit(_is_integer(1), "consumer timeout"),
    "consumer-timeout-action": _Key(_is_one_of(*TIMEOUT_ACTIONS), "consumer timeout action"),
    "retry-delay-ms": _Key(_is_integer(0, EXPIRY_MS_MAX), "retry delay"),
    "retry-delay-max-ms": _Key(_is_integer(0, EXPIRY_MS_MAX), "maximum retry delay"),
    "retry-multiplier": _Key(
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value >= 1,
        "retry multiplier",
    ),
}
"""Keys that RabbitMQ does not have."""
QUEUE_KEYS: Final[Mapping[str, _Key]] = {
    **OUR_KEYS,
    "message-ttl": _limit(_is_integer(0, EXPIRY_MS_MAX), "message TTL"),
    "expires": _limit(_LIFETIME, "queue expiry"),
    "max-length": _limit(_COUNT, "maximum length"),
    "max-length-bytes": _limit(_COUNT, "maximum length in bytes"),
    "max-in-memory-length": _limit(_COUNT, "maximum memory in bytes"),
    "max-in-memory-bytes": _limit(_COUNT, "maximum memory in bytes"),
    "delivery-limit": _limit(_COUNT, "delivery limit"),
    "overflow": _Key(_is_one_of(*OVERFLOWS), "overflow value"),
    "dead-letter-exchange": _Key(_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": _Key(_is_text, "dead letter routing key"),
    "dead-letter-strategy": _Key(_is_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "max-age": _Key(lambda value: duration_us(value) is not None, "max age", smaller_wins=True),
    "stream-max-segment-size-bytes": _Key(_is_integer(0, 3_000_000_000), "segment size"),
    "queue-mode": _Key(_is_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": _Key(_is_one_of(1, 2), "queue-version value"),
    "queue-leader-locator": _Key(_is_one_of(*_LOCATORS), "queue leader locator value"),
    "queue-master-locator": _Key(_is_one_of(*_LOCATORS), "queue master locator value"),
    # Mirroring: valid, and without effect on one machine.
    "ha-mode": _Key(_is_one_of("all", "exactly", "nodes"), "ha-mode value"),
    "ha-params": _Key(lambda value: True, "ha-params value"),
    "ha-sync-mode": _Key(_is_one_of("manual", "automatic"), "ha-sync-mode value"),
    "ha-sync-batch-size": _Key(_is_integer(1), "ha-sync-batch-size value"),
    "ha-promote-on-shutdown": _Key(_is_one_of("always", "when-synced"), "ha-promote-on-shutdown value"),
    "ha-promote-on-failure": _Key(_is_one_of("always", "when-synced"), "ha-promote-on-failure value"),
}
EXCHANGE_KEYS: Final[Mapping[str, _Key]] = {
    "alternate-exchange": _Key(_is_text, "alternate exchange name"),
}
_KEYS: Final[Mapping[str, _Key]] = {**QUEUE_KEYS, **EXCHANGE_KEYS}


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy: make it with `policy_of`."""

    name: str
    pattern: str
    apply_to: str = "all"
    priority: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_document(cls, name: str, document: Mapping[str, Any]) -> Policy:
        """Return a policy that was checked when it was written down."""
        return cls(
            name, document["pattern"], document["apply-to"], document["priority"], document["definition"]
        )

    def as_document(self) -> dict[str, Any]:
        """Return the policy as RabbitMQ's HTTP API writes it, without name and virtual host."""
        return {
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


class AppliedPolicies(NamedTuple):
    """The names of the policies that apply to a queue or an exchange, and their merged definition."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = MappingProxyType({})


NO_POLICIES: Final = AppliedPolicies()


class Policies:
    """The policies of a virtual host: `policies.by_name[POLICY]["limits"]`."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Policy]] = {POLICY: {}, OPERATOR_POLICY: {}}

    def __bool__(self) -> bool:
        return any(self.by_name.values())

    def applied_to(self, name: str, *, kind: str) -> AppliedPolicies:
        """Return what applies to a queue ("queues") or an exchange ("exchanges") of this name."""
        policy = matching(self.by_name[POLICY].values(), name, kind=kind)
        operator_policy = matching(self.by_name[OPERATOR_POLICY].values(), name, kind=kind)
        if policy is None and operator_policy is None:
            return NO_POLICIES
        return AppliedPolicies(
            None if policy is None else policy.name,
            None if operator_policy is None else operator_policy.name,
            merged(policy, operator_policy),
        )


def policy_of(name: str, document: Mapping[str, Any], *, operator: bool) -> Policy:
    """Return the policy of a JSON document; raise `PreconditionFailed` if it is wrong."""
    missing = [key for key in ("pattern", "definition") if key not in document]
    if missing:
        raise PreconditionFailed(f"[{','.join(f'{{key_missing,{key}}}' for key in missing)}]")
    pattern, definition = document["pattern"], document["definition"]
    apply_to, priority = document.get("apply-to", "all"), document.get("priority", 0)
    if not isinstance(pattern, str):
        raise _invalid(f"pattern should be a binary but was {as_term(pattern)}")
    try:
        check_pattern("pattern", pattern)
    except PreconditionFailed as error:
        raise _invalid(f"pattern should be regular expression but is invalid: {error.sentence}") from None
    if apply_to not in APPLY_TO:
        raise _invalid(f"apply-to '{apply_to}' unrecognised; should be 'queues', 'exchanges' or 'all'")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _invalid(f"priority should be a number, actually was {as_term(priority)}")
    if not isinstance(definition, Mapping) or not definition:
        raise _invalid("no policy provided")
    _check_definition(definition, operator=operator)
    return Policy(name, pattern, apply_to, priority, definition)


def operator_policy_document(name: str, value: Any) -> dict[str, Any]:
    """Return the document of an operator policy that was set as a parameter; raise if the value is wrong."""
    if not isinstance(value, Mapping):
        raise _invalid(f"{name} not a list {json_term(value)}")
    required, known = ("definition", "pattern", "priority"), ("apply-to", "definition", "pattern", "priority")
    unknown = _terms({key: item for key, item in value.items() if key not in known})
    problems = [f"Unrecognised terms {unknown} in {name}"] if set(value) - set(known) else []
    problems += [f'Key "{key}" not found in {name}' for key in required if key not in value]
    if problems:
        raise _invalid("\n".join(problems))
    return policy_of(name, value, operator=True).as_document()


def _terms(items: Mapping[str, Any]) -> str:
    return "[" + ",".join(f'{{<<"{name}">>,{json_term(value)}}}' for name, value in items.items()) + "]"


def _check_definition(definition: Mapping[str, Any], *, operator: bool) -> None:
    known = {name: key for name, key in _KEYS.items() if key.for_operators or not operator}
    unknown = {name: value for name, value in definition.items() if name not in known}
    if unknown:
        raise _invalid(f"{_terms(unknown)} are not recognised policy settings")
    if "ha-mode" not in definition and any(name.startswith("ha-") for name in definition):
        raise _invalid(
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        )
    for name, value in definition.items():
        if not known[name].is_valid(value):
            raise _invalid(f"{as_term(value)} is not a valid {known[name].what}")


def _invalid(reason: str) -> PreconditionFailed:
    return PreconditionFailed(f"Validation failed\n\n{reason}\n")


def matching(policies: Iterable[Policy], name: str, *, kind: str) -> Policy | None:
    """Return the policy that applies to a queue ("queues") or an exchange ("exchanges") of this name."""
    wanted = _QUEUE if kind == "queues" else _EXCHANGE
    candidates = [each for each in policies if each.apply_to in wanted and matches_name(each, name)]
    return max(candidates, key=lambda each: (each.priority, each.name), default=None)


def matches_name(policy: Policy, name: str) -> bool:
    """Return whether the pattern is found in the name. An empty pattern matches every name."""
    return not policy.pattern or matches(policy.pattern, name)


def merged(policy: Policy | None, operator_policy: Policy | None) -> dict[str, Any]:
    """Return the definition that policy and operator policy make together.

    >>> operator_policy = Policy("bounds", "", definition={"expires": 3})
    >>> merged(Policy("p", "", definition={"expires": 5, "max-length": 1}), operator_policy)
    {'expires': 3, 'max-length': 1}
    """
    definition = {} if policy is None else dict(policy.definition)
    for name, value in ({} if operator_policy is None else operator_policy.definition).items():
        definition[name] = _joined(name, definition[name], value) if name in definition else value
    return definition


def with_definition(
    arguments: Mapping[str, Value], definition: Mapping[str, Any], known: Iterable[str]
) -> dict[str, Value]:
    """Return the declared arguments of a queue with the definition of its policies merged in.

    `known` are the arguments of the queue's type. Other keys of the definition have no effect.

    >>> with_definition({"x-max-length": 9}, {"max-length": 5, "overflow": "drop-head"}, ["x-max-length"])
    {'x-max-length': 5}
    """
    result, allowed = dict(arguments), frozenset(known)
    for name, value in definition.items():
        argument = f"x-{name}"
        if name in QUEUE_KEYS and argument in allowed:
            declared = result.get(argument)
            result[argument] = value if declared is None else _joined(name, declared, value)
    if "x-dead-letter-exchange" not in result:
        # A policy may have a routing key for dead letters alone; a declaration may not.
        result.pop("x-dead-letter-routing-key", None)
    return result


def _joined(name: str, first: Any, second: Any) -> Any:
    if not _KEYS[name].smaller_wins:
        return first
    if name == "max-age":
        return min(first, second, key=lambda age: duration_us(age) or 0)
    return min(first, second)
