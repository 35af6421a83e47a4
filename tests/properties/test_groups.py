"""A group over a real broker, against a model: whoever joins, leaves, fails, is late, and whatever is moved.

Members come and go in every way, acks are right, late or of many, time passes, settings change, operators
seek and skip, the broker is stopped or killed. Invariants, after every step: what is settled is never
delivered again, what is not is never forgotten, progress moves back by a seek only, deliveries respect span,
credit and time, and in orderly mode there is one message of a partition at a time, in order, with its owner.
At the end everything can be consumed. What is done is in `group_walk.py`, the model in `group_model.py`.
"""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.examples import examples
from tests.properties.group_walk import WEIGHTS, GroupWalk

numbers = st.integers(0, 9999)


class Groups(RuleBasedStateMachine):
    """One rule with a weighted choice: Hypothesis would leave most of seventeen rules out of each run."""

    walk: GroupWalk | None = None

    @initialize(
        partitions=st.integers(1, 3),
        orderly=st.booleans(),
        ages=st.sampled_from([False, False, True]),
        seed=numbers,
    )
    def begin(self, partitions: int, orderly: bool, ages: bool, seed: int) -> None:
        self.walk = GroupWalk(partitions=partitions, orderly=orderly, ages=ages, seed=seed)
        self.walk.begin()

    @rule(
        name=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]),
        one=numbers,
        two=numbers,
        hasty=st.sampled_from([False, False, False, True]),
    )
    def step(self, name: str, one: int, two: int, hasty: bool) -> None:
        assert self.walk is not None
        self.walk.step(name, one, two, hasty=hasty)

    def teardown(self) -> None:
        if self.walk is not None and sys.exc_info()[0] is None:
            self.walk.drain()


def test_a_group_is_what_the_model_says() -> None:
    run_state_machine_as_test(Groups, settings=examples(40, stateful_step_count=50))
