"""What can be set of a group, what it means, and the sentences for what makes no sense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.errors import PreconditionFailed
from leveret.broker.groups import settings as group_settings
from leveret.broker.groups.settings import BadSetting, Settings

DEFAULT = Settings.default()


def test_the_defaults_are_rocketmqs() -> None:
    assert (DEFAULT.mode, DEFAULT.max_span, DEFAULT.max_reconsume) == ("concurrent", 2000, 16)
    assert DEFAULT.consume_timeout_ms == 15 * 60 * 1000
    assert len(DEFAULT.delays_ms) == 18
    assert [DEFAULT.retry_delay_after(returns) // 1000 for returns in (0, 1, 2, 14, 15, 16, 1000)] == [
        *(10, 30, 60),
        *(3600, 7200, 7200, 7200),
    ]


def test_a_change_is_a_copy() -> None:
    changed = DEFAULT.changed({"max_span": 5, "paused": True})
    assert (changed.max_span, changed.paused, DEFAULT.max_span, DEFAULT.paused) == (5, True, 2000, False)
    assert changed.changed({}) == changed


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ("1s", (1000,)),
        ("10ms 2s 3m 4h 5d", (10, 2000, 180_000, 14_400_000, 432_000_000)),
        (" 1s   2s\n", (1000, 2000)),
        ([0, 1500], (0, 1500)),
        (["1s", 250], (1000, 250)),
        ((7,), (7,)),
    ],
)
def test_delays_are_times_or_milliseconds(delays: Any, expected: tuple[int, ...]) -> None:
    changed = DEFAULT.changed({"delays": delays})
    assert (changed.delays_ms, changed.first_level) == (expected, 1)


def test_a_table_of_ones_own_may_begin_with_another_level() -> None:
    changed = DEFAULT.changed({"delays": "1s 2s 3s", "first_level": 2})
    assert [changed.retry_delay_after(returns) for returns in range(4)] == [2000, 3000, 3000, 3000]
    assert changed.changed({"first_level": 99}).retry_delay_after(0) == 3000


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"span": 1}, "a group has no setting 'span'; its settings are consume_timeout_ms, delays, "),
        ({"mode": "QUERY"}, "a group's mode is 'QUERY'; it can be concurrent or orderly"),
        ({"mode": ["orderly"]}, "a group's mode is ['orderly']; it can be concurrent or orderly"),
        ({"max_span": 0}, "max_span is 0; it must be a whole number of at least 1"),
        ({"max_span": 1.0}, "max_span is 1.0; it must be a whole number of at least 1"),
        ({"consume_timeout_ms": -1}, "consume_timeout_ms is -1; it must be a number of milliseconds"),
        ({"max_reconsume": -2}, "max_reconsume is -2; it must be a whole number, or -1 for no limit"),
        ({"first_level": 0}, "first_level is 0; it must be a level of the delay table, counted from 1"),
        ({"paused": 1}, "paused is 1; it must be true or false"),
        ({"delays": " "}, "delays is ' '; a group needs at least one delay, like 10s 30s 1m"),
        ({"delays": {"1s": 1}}, "delays is {'1s': 1}; a group needs at least one delay"),
        ({"delays": "1s 1.5s"}, "delays contains '1.5s'; a delay is a time like 10s, or milliseconds"),
        ({"delays": [None]}, "delays contains None; a delay is a time like 10s, or milliseconds"),
        ({"delays": "1234567890123s"}, "delays contains '1234567890123s'; a delay is a time"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(wanted: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting) as refused:
        DEFAULT.changed(wanted)
    assert sentence in str(refused.value)
    assert isinstance(refused.value, PreconditionFailed)


@given(
    st.dictionaries(
        st.sampled_from([*DEFAULT.shown(), "other"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(),
            st.lists(st.one_of(st.integers(), st.text())),
        ),
    )
)
def test_whatever_is_asked_for_is_either_refused_or_a_group_can_live_with_it(wanted: dict[str, Any]) -> None:
    try:
        changed = DEFAULT.changed(wanted)
    except BadSetting:
        return
    assert changed.max_span >= 1
    assert changed.consume_timeout_ms >= 0
    assert all(changed.retry_delay_after(returns) >= 0 for returns in range(30))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=Settings) == changed


def test_what_is_shown_can_be_set() -> None:
    changed = DEFAULT.changed({"delays": "1s 2s", "first_level": 2, "mode": "orderly", "max_reconsume": -1})
    assert DEFAULT.changed(changed.shown()) == changed


def test_arguments_of_a_member_are_settings() -> None:
    table = {"x-group": "billing", "x-group-mode": "orderly", "x-group-consume-timeout": 5, "x-other": 1}
    assert group_settings.of_arguments(table) == {"mode": "orderly", "consume_timeout_ms": 5}
