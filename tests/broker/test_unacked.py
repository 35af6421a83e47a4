"""Outstanding deliveries: runs of tags, against a model that knows every tag by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.broker.sessions.unacked import Run, Unacked
from tests.examples import examples

Entry = tuple[int, str, int]
"""Offset, holder, since when."""


def flat(runs: list[Run[str]]) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for run in runs:
        for tag in range(run.start, run.stop):
            assert tag not in found
            found[tag] = (tag + run.shift, run.holder, run.since_us)
    return found


def some() -> Unacked[str]:
    unacked: Unacked[str] = Unacked()
    unacked.add(1, [(10, 13), (20, 22)], "a", now_us=100)  # tags 1 2 3, 4 5
    unacked.add(6, [(30, 32)], "b", now_us=200)  # tags 6 7
    return unacked


def test_a_delivery_of_many_is_one_run() -> None:
    unacked: Unacked[str] = Unacked()
    unacked.add(1, [(0, 1000)], "a", now_us=0)
    assert (unacked.count, len(list(unacked))) == (1000, 1)
    for tag in range(1, 500):
        unacked.take(tag, tag)
    assert (unacked.count, len(list(unacked))) == (501, 1)


def test_tags_are_taken_across_runs() -> None:
    taken, unknown = some().take(3, 6)
    assert unknown is None
    assert [run.offsets for run in taken] == [(12, 13), (20, 22), (30, 31)]


def test_the_first_unknown_tag_ends_the_taking() -> None:
    unacked = some()
    unacked.take(5, 5)
    taken, unknown = unacked.take(4, 7)
    assert (flat(taken).keys(), unknown) == ({4}, 5)
    assert unacked.count == 5
    assert unacked.take(8, 9) == ([], 8)
    assert unacked.take(0, 0) == ([], 0)


def test_everything_up_to_a_tag() -> None:
    unacked = some()
    taken, unknown = unacked.take_through(6)
    assert (sorted(flat(taken)), unknown, unacked.count) == ([1, 2, 3, 4, 5, 6], None, 1)
    assert unacked.take_through(3) == ([], 3)


def test_zero_is_everything() -> None:
    unacked = some()
    taken, unknown = unacked.take_through(0)
    assert (len(flat(taken)), unknown, unacked.count) == (7, None, 0)
    assert unacked.take_through(0) == ([], None)


def test_what_one_holder_has() -> None:
    unacked = some()
    assert sorted(flat(unacked.held_by("a"))) == [1, 2, 3, 4, 5]
    assert unacked.count == 7


class Against(RuleBasedStateMachine):
    """The same commands to `Unacked` and to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.unacked: Unacked[str] = Unacked()
        self.model: dict[int, Entry] = {}
        self.next_tag = 1
        self.now_us = 0
        self.set_aside: list[Run[str]] = []

    @rule(
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        holder=st.sampled_from("abc"),
        start=st.integers(0, 1000),
        unheld=st.integers(0, 2),
    )
    def deliver(self, sizes: list[int], holder: str, start: int, unheld: int) -> None:
        self.now_us += 1
        self.next_tag += unheld  # sent to a consumer that does not ack
        ranges = []
        first = self.next_tag
        for size in sizes:
            ranges.append((start, start + size))
            for offset in range(start, start + size):
                self.model[self.next_tag] = (offset, holder, self.now_us)
                self.next_tag += 1
            start += size + 3
        self.unacked.add(first, ranges, holder, now_us=self.now_us)

    @rule(first=st.integers(0, 60), more=st.integers(0, 8))
    def take(self, first: int, more: int) -> None:
        expected: dict[int, Entry] = {}
        unknown = None
        for tag in range(first, first + more + 1):
            if tag not in self.model:
                unknown = tag
                break
            expected[tag] = self.model.pop(tag)
        taken, found = self.unacked.take(first, first + more)
        assert (flat(taken), found) == (expected, unknown)

    @rule(tag=st.integers(0, 60))
    def take_through(self, tag: int) -> None:
        taken, unknown = self.unacked.take_through(tag)
        if tag and tag not in self.model:
            assert (taken, unknown) == ([], tag)
            return
        expected = {each: entry for each, entry in self.model.items() if not tag or each <= tag}
        assert (flat(taken), unknown) == (expected, None)
        for each in expected:
            del self.model[each]

    @rule(holder=st.sampled_from("abc"))
    def held_by(self, holder: str) -> None:
        expected = {tag: entry for tag, entry in self.model.items() if entry[1] == holder}
        assert flat(self.unacked.held_by(holder)) == expected

    @rule(start=st.integers(0, 60), count=st.integers(1, 20))
    def take_within(self, start: int, count: int) -> None:
        expected = {tag: entry for tag, entry in self.model.items() if start <= tag < start + count}
        assert self.unacked.has_all(start, start + count) == (len(expected) == count)
        assert flat(self.unacked.take_within(start, start + count)) == expected
        for tag in expected:
            del self.model[tag]

    @rule()
    def forget_what_is_settled(self) -> None:
        """As it does from time to time."""
        self.unacked._drop_settled()

    @rule(first=st.integers(1, 60), more=st.integers(0, 8))
    def set_some_aside(self, first: int, more: int) -> None:
        taken, _ = self.unacked.take(first, first + more)
        self.set_aside += taken
        for tag in flat(taken):
            del self.model[tag]

    @precondition(lambda self: self.set_aside)
    @rule()
    def restore(self) -> None:
        """As a rollback does."""
        self.model.update(flat(self.set_aside))
        self.unacked.restore(self.set_aside)
        self.set_aside = []

    @invariant()
    def agrees(self) -> None:
        assert flat(list(self.unacked)) == self.model
        assert self.unacked.count == len(self.model)
        assert list(self.unacked._starts) == sorted(self.unacked._starts)
        for start, stop in ((0, 3), (2, 3 + self.next_tag // 2), (self.next_tag // 2, self.next_tag + 2)):
            expected = [tag for tag in sorted(self.model) if start <= tag < stop]
            assert list(flat(self.unacked.within(start, stop))) == expected
            assert self.unacked.has_any(start, stop) == bool(expected)
        for holder in "abc":
            mine = {tag: entry for tag, entry in self.model.items() if entry[1] == holder}
            assert flat(self.unacked.held_by((holder,))) == mine
            for tag, entry in list(mine.items())[:3]:
                found = self.unacked.find(entry[0], (holder,))
                assert found is not None
                assert found.offsets == (entry[0], entry[0] + 1)
                assert self.model[found.start][:2] == entry[:2], tag
        assert self.unacked.find(1 << 40, "abc") is None


Against.TestCase.settings = examples(150, stateful_step_count=30)
TestAgainstADict = Against.TestCase


def test_what_was_sent_one_by_one_is_forgotten_when_it_is_settled() -> None:
    unacked: Unacked[str] = Unacked()
    for tag in range(1, 10_001):
        unacked.add(tag, [(3 * tag, 3 * tag + 1)], "a", now_us=tag)
        if tag > 10:
            unacked.take(tag - 9, tag - 9)
    assert unacked.count == 10
    assert len(unacked._starts) <= 64
    assert flat(list(unacked))[1] == (3, "a", 1)


def test_there_are_not_many_more_stretches_than_are_needed() -> None:
    unacked: Unacked[str] = Unacked()
    most = 0
    for tag in range(1, 60_001):
        unacked.add(tag, [(3 * tag, 3 * tag + 1)], "a", now_us=tag)
        if tag > 5000 and tag % 16:  # every 16th stays
            unacked.take(tag - 5000, tag - 5000)
        most = max(most, len(unacked._starts) - 2 * unacked.count)
    assert most <= 1024
    assert list(flat(list(unacked))) == [
        tag for tag in range(1, 60_001) if tag > 55_000 or (tag + 5000) % 16 == 0
    ]


@given(st.lists(st.integers(1, 30), unique=True, max_size=30))
def test_acks_in_any_order_leave_nothing(tags: list[int]) -> None:
    unacked: Unacked[str] = Unacked()
    unacked.add(1, [(100, 130)], "a", now_us=0)
    for tag in tags:
        taken, unknown = unacked.take(tag, tag)
        assert unknown is None
        assert [run.offsets for run in taken] == [(99 + tag, 100 + tag)]
    assert unacked.count == 30 - len(tags)
