"""Power cuts and kills at any moment of a group's life. See `group_history.py`."""

import os
from functools import lru_cache

import pytest

from leveret.broker import accounts
from tests.faults.group_history import GroupHistory

FIRST = int(os.environ.get("LEVERET_SEED", "0"))
HISTORIES = int(os.environ.get("LEVERET_HISTORIES", "40"))
GROUPS = 4


@pytest.fixture(autouse=True)
def _quick_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker would hash the same password anew."""
    monkeypatch.setattr(accounts, "is_password", lru_cache(accounts.is_password))


@pytest.mark.parametrize("group", range(GROUPS))
def test_after_any_crash_a_group_is_where_it_was(group: int) -> None:
    """Replay one with LEVERET_SEED=n LEVERET_HISTORIES=1; look for more with other numbers."""
    for seed in range(FIRST + group, FIRST + HISTORIES, GROUPS):
        try:
            GroupHistory(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}: LEVERET_SEED={seed} LEVERET_HISTORIES=1 replays it")
            raise
