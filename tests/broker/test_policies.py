"""Policies: what they may hold, which one applies, and how several sources of a limit are merged."""

import doctest
from typing import Any

import pytest

from leveret.broker.errors import PreconditionFailed
from leveret.broker.queues.arguments import declared_settings
from leveret.broker.vhosts import policies
from leveret.broker.vhosts.policies import Policy, matching, merged, policy_of, with_definition

WRONG = {
    "no pattern": ({"definition": {"expires": 1}}, "[{key_missing,pattern}]"),
    "nothing": ({}, "[{key_missing,pattern},{key_missing,definition}]"),
    "an empty definition": ({"pattern": "", "definition": {}}, "no policy provided"),
    "a pattern that is no text": ({"pattern": 5, "definition": {"expires": 1}}, "but was 5"),
    "a bad pattern": ({"pattern": "(", "definition": {"expires": 1}}, "pattern should be regular expression"),
    "somewhere else": (
        {"pattern": "", "definition": {"expires": 1}, "apply-to": "users"},
        "apply-to 'users' unrecognised; should be 'queues', 'exchanges' or 'all'",
    ),
    "a priority that is no number": (
        {"pattern": "", "definition": {"expires": 1}, "priority": "x"},
        'priority should be a number, actually was <<"x">>',
    ),
    "an unknown key": (
        {"pattern": "", "definition": {"max-lengthx": 1}},
        '[{<<"max-lengthx">>,1}] are not recognised policy settings',
    ),
}
BAD_VALUES = {
    "message-ttl": ("x", '<<"x">> is not a valid message TTL'),
    "expires": (0, "0 is not a valid queue expiry"),
    "max-length": (-1, "-1 is not a valid maximum length"),
    "max-length-bytes": (-5, "-5 is not a valid maximum length in bytes"),
    "max-in-memory-length": ("x", '<<"x">> is not a valid maximum memory in bytes'),
    "delivery-limit": (-5, "-5 is not a valid delivery limit"),
    "overflow": ("x", '<<"x">> is not a valid overflow value'),
    "dead-letter-exchange": (5, "5 is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (5, "5 is not a valid dead letter routing key"),
    "dead-letter-strategy": ("x", '<<"x">> is not a valid dead letter strategy'),
    "max-age": ("5x", '<<"5x">> is not a valid max age'),
    "stream-max-segment-size-bytes": ("x", '<<"x">> is not a valid segment size'),
    "queue-mode": ("x", '<<"x">> is not a valid queue-mode value'),
    "queue-version": (3, "3 is not a valid queue-version value"),
    "queue-leader-locator": ("x", '<<"x">> is not a valid queue leader locator value'),
    "alternate-exchange": (5, "5 is not a valid alternate exchange name"),
    "consumer-timeout": (0, "0 is not a valid consumer timeout"),
    "retry-multiplier": (0.5, "is not a valid retry multiplier"),
}
"""What RabbitMQ 3.10 says, where it knows the key."""


def policy(name: str, definition: dict[str, Any], **more: Any) -> Policy:
    return policy_of(name, {"pattern": "", "definition": definition, **more}, operator=False)


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(policies).failed == 0


@pytest.mark.parametrize(("document", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_policy_is_refused_with_a_reason(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        policy_of("p", document, operator=False)
    assert reason in refused.value.sentence


@pytest.mark.parametrize("key", BAD_VALUES)
def test_a_wrong_value_is_refused_in_the_words_of_rabbitmq(key: str) -> None:
    value, reason = BAD_VALUES[key]
    with pytest.raises(PreconditionFailed) as refused:
        policy("p", {key: value})
    assert reason in refused.value.sentence
    assert refused.value.sentence.startswith("Validation failed\n\n")


@pytest.mark.parametrize("key", ["overflow", "dead-letter-exchange", "alternate-exchange", "retry-delay-ms"])
def test_an_operator_policy_sets_limits_and_nothing_else(key: str) -> None:
    with pytest.raises(PreconditionFailed, match="are not recognised policy settings"):
        policy_of("p", {"pattern": "", "definition": {key: "x"}}, operator=True)
    assert policy_of("p", {"pattern": "", "definition": {"max-length": 1}}, operator=True)


def test_the_matching_policy_with_the_highest_priority_applies() -> None:
    low = policy("low", {"max-length": 1}, pattern="^a")
    high = policy("high", {"max-length": 2}, pattern="b$", priority=3, **{"apply-to": "queues"})
    exchanges = policy("exchanges", {"alternate-exchange": "x"}, priority=9, **{"apply-to": "exchanges"})
    known = [low, high, exchanges]
    assert matching(known, "ab", kind="queues") is high
    assert matching(known, "a", kind="queues") is low
    assert matching(known, "c", kind="queues") is None
    assert matching(known, "ab", kind="exchanges") is exchanges
    assert matching([low], "ab", kind="exchanges") is low, "a policy for all applies to exchanges too"


def test_the_smaller_limit_holds_and_otherwise_the_first_source() -> None:
    first = policy("first", {"max-length": 5, "max-age": "7D", "overflow": "drop-head"})
    operators = Policy("o", "", definition={"max-length": 9, "message-ttl": 10})
    definition = merged(first, operators)
    assert definition == {"max-length": 5, "max-age": "7D", "overflow": "drop-head", "message-ttl": 10}
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish", "x-message-ttl": 50, "x-mine": 1}
    known = ("x-max-length", "x-overflow", "x-message-ttl")
    assert with_definition(arguments, definition, known) == {**arguments, "x-message-ttl": 10}
    assert with_definition({"x-max-age": "1h"}, {"max-age": "7D"}, ["x-max-age"]) == {"x-max-age": "1h"}
    assert with_definition({"x-max-age": "9D"}, {"max-age": "7D"}, ["x-max-age"]) == {"x-max-age": "7D"}


def test_a_definition_makes_settings_as_arguments_do() -> None:
    table = with_definition({}, {"max-length": 5, "retry-delay-ms": 7}, ["x-max-length", "x-retry-delay-ms"])
    settings = declared_settings(table, queue="q", vhost="/")
    assert (settings.max_length, settings.retry_delay_ms) == (5, 7)
