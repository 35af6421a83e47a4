"""Who has which partition: even, sticky, and the same whenever the same is asked."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.groups.assignment import assign

MEMBERS = ["ann", "bob", "cid", "dan", "eve"]
members = st.lists(st.sampled_from(MEMBERS), unique=True, max_size=5)
partitions = st.integers(0, 12).map(lambda count: [f"p{number}" for number in range(count)])


def test_without_members_nobody_has_anything() -> None:
    assert assign(["a", "b"], [], {"a": "ann"}) == {}


def test_without_partitions_nobody_has_anything() -> None:
    assert assign([], ["ann"], {}) == {}


def test_one_member_has_all() -> None:
    assert assign(["a", "b", "c"], ["ann"], {}) == {"a": "ann", "b": "ann", "c": "ann"}


def test_more_members_than_partitions_leave_some_with_nothing_and_nobody_loses() -> None:
    current = {"a": "bob", "b": "cid"}
    assert assign(["a", "b"], MEMBERS, current) == current


def test_a_leaver_is_forgotten_and_its_partitions_go_to_those_with_least() -> None:
    current = {"a": "ann", "b": "ann", "c": "bob", "d": "bob", "e": "cid", "f": "cid"}
    after = assign(list("abcdef"), ["ann", "bob"], current)
    assert {name: after[name] for name in "abcd"} == {name: current[name] for name in "abcd"}
    assert Counter(after.values()) == {"ann": 3, "bob": 3}


def test_one_that_comes_gets_its_share_and_no_more() -> None:
    current = {f"p{number}": ("ann", "bob")[number % 2] for number in range(8)}
    after = assign(list(current), ["ann", "bob", "cid"], current)
    assert Counter(after.values()) == {"ann": 3, "bob": 3, "cid": 2}
    assert sum(after[name] != current[name] for name in current) == 2


def test_partitions_that_are_gone_count_for_nobody() -> None:
    current = {"old": "ann", "older": "ann", "a": "bob", "b": "bob"}
    assert Counter(assign(["a", "b"], ["ann", "bob"], current).values()) == {"ann": 1, "bob": 1}


@pytest.mark.parametrize("count", [1, 7, 64])
def test_nothing_moves_where_nothing_has_changed(count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    once = assign(names, MEMBERS, {})
    assert assign(names, MEMBERS, once) == once
    assert assign(names, MEMBERS[::-1], once) == once


@given(
    partitions,
    members,
    st.dictionaries(st.sampled_from([f"p{n}" for n in range(14)]), st.sampled_from(MEMBERS)),
)
def test_it_is_even_and_moves_as_little_as_that_takes(
    names: list[str], present: list[str], current: dict[str, str]
) -> None:
    after = assign(names, present, current)
    if not present:
        assert after == {}
        return
    assert list(after) == names
    assert set(after.values()) <= set(present)
    shares = Counter(dict.fromkeys(present, 0))
    shares.update(after.values())
    assert max(shares.values()) - min(shares.values()) <= 1
    assert assign(names, present, current) == after
    before = Counter(owner for name, owner in current.items() if name in names and owner in present)
    least, more = divmod(len(names), len(present))
    rich = sorted((before[member] for member in present), reverse=True)
    can_stay = sum(min(had, least + (place < more)) for place, had in enumerate(rich))
    stayed = sum(after[name] == current.get(name) for name in names)
    assert stayed == can_stay, "more moved than had to"
