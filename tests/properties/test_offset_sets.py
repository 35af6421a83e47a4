"""`OffsetSet` and `AckSet` against the plainest model there is, on offsets that crowd around chunk borders.

The model is a byte per offset, 1 for a member. (A Python `set` would say the same, but makes these tests
take ten times as long, since whole chunks are added and removed.)
"""

import contextlib
import re
from collections.abc import Iterator
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leveret.storage.ack_set import AckSet
from leveret.storage.offset_chunk import CHUNK_SIZE
from leveret.storage.offset_set import OffsetSet, Range

END = 3 * CHUNK_SIZE

near_zero = st.integers(0, 300)
near_border = st.sampled_from([CHUNK_SIZE, 2 * CHUNK_SIZE]).flatmap(
    lambda at: st.integers(at - 150, at + 150)
)
offsets = st.one_of(near_zero, near_border, st.integers(0, END))
widths = st.one_of(st.just(1), st.integers(1, 200), st.integers(CHUNK_SIZE - 200, CHUNK_SIZE + 200))
ranges = st.builds(lambda start, width: (start, start + width), offsets, widths)
narrow = st.builds(lambda start, width: (start, start + width), offsets, st.integers(1, 3))
combs = st.builds(  # enough single offsets to make a bitmap, or to thin one out
    lambda start, step, n: [(start + i * step, start + i * step + 1) for i in range(n)],
    offsets,
    st.integers(2, 9),
    st.integers(1, 120),
)
batches = st.one_of(st.lists(narrow, max_size=20), combs, st.builds(lambda comb: comb[::-1], combs))


class Model:
    """Which offsets are members: one byte each."""

    def __init__(self) -> None:
        self.bytes = bytearray(END + 2 * CHUNK_SIZE)
        self.size = 0

    def put(self, spans: list[Range], member: bool) -> int:
        """Make all of them members, or none; return how many changed."""
        changed = 0
        for start, stop in spans:
            changed += self.bytes.count(not member, start, stop)
            self.bytes[start:stop] = bytes([member]) * (stop - start)
        self.size += changed if member else -changed
        return changed

    def runs(self, start: int = 0, stop: int | None = None, *, member: bool = True) -> Iterator[Range]:
        stop = len(self.bytes) if stop is None else stop
        pattern = re.compile(b"\x01+" if member else b"\x00+")
        return (match.span() for match in pattern.finditer(self.bytes, start, stop))

    def lowest(self, n: int, before: int | None) -> list[Range]:
        """The `n` lowest members below `before`, as maximal runs."""
        places = list(islice(re.compile(b"\x01").finditer(self.bytes, 0, before or len(self.bytes)), n))
        if not places or before == 0:
            return []
        return list(self.runs(0, places[-1].end()))


class OffsetSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = OffsetSet()
        self.model = Model()

    @initialize(initial=st.lists(ranges, max_size=2))
    def start(self, initial: list[Range]) -> None:
        self.offsets = OffsetSet(initial)
        self.model.put(initial, True)

    @rule(span=ranges)
    def add(self, span: Range) -> None:
        assert self.offsets.add(*span) == self.model.put([span], True)

    @rule(span=ranges)
    def remove(self, span: Range) -> None:
        assert self.offsets.remove(*span) == self.model.put([span], False)

    @rule(batch=batches)
    def add_many(self, batch: list[Range]) -> None:
        assert self.offsets.add_many(batch) == self.model.put(batch, True)

    @rule(batch=batches)
    def remove_many(self, batch: list[Range]) -> None:
        assert self.offsets.remove_many(batch) == self.model.put(batch, False)

    @rule(batch=batches, span=st.lists(ranges, max_size=1))
    def add_set(self, batch: list[Range], span: list[Range]) -> None:
        self.offsets.add_set(OffsetSet(batch + span))
        self.model.put(batch + span, True)

    @rule(batch=batches, span=st.lists(ranges, max_size=1))
    def cut(self, batch: list[Range], span: list[Range]) -> None:
        other = OffsetSet(batch + span)
        both = [run for asked in other.ranges() for run in self.model.runs(*asked)]
        assert list(self.offsets.cut(other).ranges()) == both
        self.model.put(both, False)

    @rule(n=st.integers(0, 300), before=st.none() | offsets)
    def take(self, n: int, before: int | None) -> None:
        lowest = self.model.lowest(n, before)
        assert self.offsets.take(n, before=before) == lowest
        self.model.put(lowest, False)

    @rule(span=ranges)
    def ask_about_a_range(self, span: Range) -> None:
        count = self.model.bytes.count(1, *span)
        assert self.offsets.count(*span) == count
        assert self.offsets.covers(*span) == (count == span[1] - span[0])
        pieces = [(span[0], span[0] + 1), span, (span[1], span[1] + 1)]
        found = [each for piece in pieces for each in self.offsets.ranges(*piece)]
        assert self.offsets.members_in(pieces) == found
        assert list(self.offsets.ranges(*span)) == list(self.model.runs(*span))
        assert self.offsets.count_runs(*span) == len(list(self.model.runs(*span)))

    @rule(offset=offsets)
    def ask_about_an_offset(self, offset: int) -> None:
        found = self.model.bytes.find(1, offset)
        assert self.offsets.first(offset) == (None if found < 0 else found)
        assert self.offsets.first_absent(offset) == self.model.bytes.find(0, offset)
        assert (offset in self.offsets) == (found == offset)

    @rule()
    def go_through_bytes(self) -> None:
        data = self.offsets.encode()
        decoded = OffsetSet.decode(data)
        assert decoded == self.offsets
        assert decoded.encode() == data
        self.offsets = decoded

    @rule()
    def go_on_with_a_copy(self) -> None:
        twin = self.offsets.copy()
        self.offsets.clear()
        self.offsets = twin

    @invariant()
    def it_has_as_many_members_as_the_model(self) -> None:
        assert len(self.offsets) == self.model.size
        assert bool(self.offsets) == (self.model.size > 0)

    @invariant()
    def it_ends_where_the_model_ends(self) -> None:
        last = self.model.bytes.rfind(1)
        assert self.offsets.last() == (None if last < 0 else last)

    def teardown(self) -> None:
        runs = list(self.model.runs())
        assert list(self.offsets.ranges()) == runs
        assert self.offsets == OffsetSet(runs)
        assert self.offsets.encode() == OffsetSet(runs).encode()


class AckSetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.acks = AckSet()
        self.model = Model()

    @initialize(low=offsets, above=st.lists(narrow, max_size=5))
    def start(self, low: int, above: list[Range]) -> None:
        self.acks = AckSet(low, above)
        self.model.put([(0, low), *above], True)

    @rule(span=ranges)
    def settle(self, span: Range) -> None:
        assert self.acks.settle(*span) == self.model.put([span], True)

    @rule(batch=batches)
    def settle_many(self, batch: list[Range]) -> None:
        assert self.acks.settle_many(batch) == self.model.put(batch, True)

    @rule()
    def close_the_lowest_hole(self) -> None:
        low = self.acks.low
        assert self.acks.settle(low, low + 1) == self.model.put([(low, low + 1)], True)

    @rule(span=ranges)
    def ask_about_a_range(self, span: Range) -> None:
        assert list(self.acks.unsettled(*span)) == list(self.model.runs(*span, member=False))

    @rule(offset=offsets)
    def ask_about_an_offset(self, offset: int) -> None:
        unsettled = self.model.bytes.find(0, offset)
        assert self.acks.next_unsettled(offset) == unsettled
        assert (offset in self.acks) == (offset != unsettled)
        stop = min(offset, self.model.bytes.rfind(1) + 1)
        assert self.acks.holes(offset) == len(list(self.model.runs(0, stop, member=False)))

    @rule()
    def go_through_bytes(self) -> None:
        decoded = AckSet.decode(self.acks.encode())
        assert decoded == self.acks
        self.acks = decoded.copy()

    @invariant()
    def the_watermark_is_the_lowest_unsettled_offset(self) -> None:
        assert self.acks.low == self.model.bytes.find(0)
        assert self.acks.low + len(self.acks.settled_above) == self.model.size

    @invariant()
    def it_ends_where_the_model_ends(self) -> None:
        highest = self.model.bytes.rfind(1)
        assert self.acks.highest == highest
        assert self.acks.span == highest + 1 - self.acks.low

    def teardown(self) -> None:
        runs = [run for run in self.model.runs() if run[0] > 0]
        assert list(self.acks.settled_above.ranges()) == runs
        assert self.acks.holes() == len(runs)


TestOffsetSetAgainstTheModel = OffsetSetMachine.TestCase
TestAckSetAgainstTheModel = AckSetMachine.TestCase


@given(st.lists(st.one_of(ranges, narrow), max_size=40).flatmap(st.permutations))
def test_the_order_of_settlements_makes_no_difference(batch: list[Range]) -> None:
    at_once = AckSet()
    one_by_one = AckSet()
    assert at_once.settle_many(batch) == sum(one_by_one.settle(*span) for span in batch)
    assert at_once == one_by_one == AckSet(0, sorted(batch))
    one_by_one.settle(0, 2 * END)
    assert one_by_one.memory_bytes == 0


@given(st.lists(narrow, max_size=30), combs, st.data())
def test_damaged_bytes_are_refused_or_make_a_sound_set(
    some: list[Range], comb: list[Range], data: st.DataObject
) -> None:
    encoded = bytearray(OffsetSet(some + comb).encode())
    index = data.draw(st.integers(0, min(len(encoded), 200) - 1))
    encoded[index] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):
        decoded = OffsetSet.decode(bytes(encoded))
        assert sum(stop - start for start, stop in decoded.ranges()) == len(decoded)
        assert decoded.encode() == bytes(encoded) or OffsetSet.decode(decoded.encode()) == decoded


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_value_error(junk: bytes) -> None:
    for decode in (OffsetSet.decode, AckSet.decode):
        with contextlib.suppress(ValueError):
            decode(junk)
