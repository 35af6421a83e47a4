"""Power cuts and kills at any moment of generated histories. See `history.py` for what is checked."""

from dataclasses import replace
from random import Random

import pytest

from tests.faults.history import SMALL, History


@pytest.mark.histories(sample=100, full=2000)
def test_after_any_crash_the_store_holds_what_it_promised(
    seed: int, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    reserve_ahead = random.choice([4, SMALL.reserve_ahead])
    state_bytes = random.choice([0, 150, SMALL.state_bytes])
    options = replace(SMALL, reserve_ahead=reserve_ahead, state_bytes=state_bytes)
    monkeypatch.setattr("tests.faults.history.SMALL", options)
    History(seed).run()
