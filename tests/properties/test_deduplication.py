"""A queue with `x-dedup` against a set of sequences, whatever is published, refused, undone and survived."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.queues import deduplication
from tests.examples import examples
from tests.faults.dedup_history import TRANSIENT, DedupHistory, Name

names = st.tuples(st.sampled_from(["a", "b", TRANSIENT]), st.integers(0, 20))
runs = st.builds(
    lambda producer, first, count: [(producer, number) for number in range(first, first + count)],
    st.sampled_from(["a", "b", TRANSIENT]),
    st.integers(0, 40),
    st.integers(1, 20),
)
batches = st.one_of(st.lists(names, min_size=1, max_size=12), runs)

Step = tuple[Callable[..., object], object]


def step(action: Callable[..., object], argument: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(action), argument)


def publish_in_two_turns(history: DedupHistory, batch: list[Name]) -> None:
    history.publish(batch)
    history.turn()
    history.publish(batch[::-1])


steps = st.one_of(
    step(DedupHistory.publish, batches),
    step(publish_in_two_turns, batches),
    step(DedupHistory.commit, batches),
    step(DedupHistory.roll_back, batches),
    step(DedupHistory.consume, st.integers(1, 10)),
    step(lambda history, _: history.turn(), st.none()),
    step(lambda history, _: history.sync(), st.none()),
    step(lambda history, _: history.checkpoint(), st.none()),
    step(DedupHistory.fail, st.integers(1, 3)),
    step(lambda history, _: history.heal(), st.none()),
    step(lambda history, _: history.restart(), st.none()),
    step(lambda history, power_loss: history.crash(power_loss=power_loss), st.booleans()),
)


@pytest.fixture(autouse=True, scope="module")
def _often_whole() -> Iterator[None]:
    """Records with everything are written every few turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplication, "WHOLE_AFTER_BYTES", 200)
        yield


@examples(150)
@given(st.lists(steps, max_size=25), st.sampled_from([None, 3, 10]), st.integers(0, 1 << 16))
def test_a_sequence_is_stored_once_and_known_if_and_only_if_it_is_stored(
    script: list[Step], limit: int | None, seed: int
) -> None:
    history = DedupHistory(seed, limit=limit)
    for action, argument in script:
        action(history, argument)
        history.check()
    history.restart()
    history.check()
