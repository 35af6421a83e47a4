"""Patterns of permissions: RabbitMQ's meaning, in linear time, and never an error while a name is checked."""

from __future__ import annotations

import pytest

from leveret.amqp.names import to_text
from leveret.broker.access.accounts import Permissions, User
from leveret.broker.access.permission_patterns import check_pattern, matches
from leveret.broker.errors import PreconditionFailed

EVIL = ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){20}$", "(a?){60}a{60}$"]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_that_makes_others_backtrack_is_checked_in_linear_time(pattern):
    assert not matches(pattern, "a" * 59 + "!" * 100)


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("", "", True),
        ("", "q", False),
        (".*", "", True),
        ("^own-", "own-queue", True),
        ("^own-", "not-own-queue", False),
        ("own", "not-own-queue", True),
        ("^(amq\\.default|orders)$", "orders", True),
        ("(?i)^ORDERS$", "orders", True),
        ("\\bq\\b", "the q here", True),
        ("[[:digit:]]{3}$", "q123", True),
        ("^größe$", "größe", True),
        (".", to_text(b"\xff"), True),
        ("^..$", "ü", True),
    ],
)
def test_a_pattern_is_searched_for_byte_by_byte_as_in_rabbitmq(pattern, name, found):
    assert matches(pattern, name) is found


@pytest.mark.parametrize(
    "pattern", ["(", "*a", "a{1,100000}", "(?=a)b", "(?!amq)", "(?<=a)b", "(a)\\1", "a++"]
)
def test_a_pattern_that_can_not_be_used_is_refused_with_the_reason(pattern):
    with pytest.raises(PreconditionFailed) as refused:
        check_pattern("read", pattern)
    assert refused.value.sentence.startswith(f"read: '{pattern}' is not a regular expression of RE2: ")
    assert "no look-around" in refused.value.sentence


def test_a_pattern_that_is_too_large_is_refused():
    with pytest.raises(PreconditionFailed, match="too large"):
        check_pattern("read", "[a-z]{1000}" * 100)


@pytest.mark.parametrize("pattern", ["(", "(?=a)a", "\ud800"])
def test_a_pattern_from_before_that_can_not_be_used_matches_nothing_and_raises_nothing(pattern):
    user = User("ann", "", permissions={"/": Permissions(read=pattern)})
    assert not user.may("read", "/", "a")


@pytest.mark.parametrize("name", ["\ud800", "a" * 256])
def test_what_can_be_no_name_in_amqp_is_matched_by_nothing(name):
    assert not matches(".*", name)
