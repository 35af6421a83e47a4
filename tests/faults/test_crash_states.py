"""Power cuts and kills at any moment of generated histories. See `history.py` for what is checked."""

import os

import pytest

from tests.faults.history import History

FIRST = int(os.environ.get("LEVERET_SEED", "0"))
HISTORIES = int(os.environ.get("LEVERET_HISTORIES", "2000"))
GROUPS = 20


@pytest.mark.parametrize("group", range(GROUPS))
def test_after_any_crash_the_store_holds_what_it_promised(group: int) -> None:
    """Replay one with LEVERET_SEED=n LEVERET_HISTORIES=1; look for more with other numbers."""
    for seed in range(FIRST + group, FIRST + HISTORIES, GROUPS):
        try:
            History(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}: LEVERET_SEED={seed} LEVERET_HISTORIES=1 replays it")
            raise
