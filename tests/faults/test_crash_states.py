"""Power cuts and kills at any moment of generated histories. See `history.py` for what is checked."""

import pytest

from tests.faults.history import History


@pytest.mark.histories(sample=100, full=2000)
def test_after_any_crash_the_store_holds_what_it_promised(seed: int) -> None:
    History(seed).run()
