"""Power cuts, kills and full disks at any moment of a broker's life. See `broker_history.py`."""

import os
from functools import lru_cache

import pytest

from leveret.broker import accounts
from tests.faults.broker_history import BrokerHistory

FIRST = int(os.environ.get("LEVERET_SEED", "0"))
HISTORIES = int(os.environ.get("LEVERET_HISTORIES", "600"))
GROUPS = 10


@pytest.fixture(autouse=True)
def _quick_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker would hash the same password anew."""
    monkeypatch.setattr(accounts, "is_password", lru_cache(accounts.is_password))


@pytest.mark.parametrize("group", range(GROUPS))
def test_after_any_crash_the_broker_holds_what_it_promised(group: int) -> None:
    """Replay one with LEVERET_SEED=n LEVERET_HISTORIES=1; look for more with other numbers."""
    for seed in range(FIRST + group, FIRST + HISTORIES, GROUPS):
        try:
            BrokerHistory(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}: LEVERET_SEED={seed} LEVERET_HISTORIES=1 replays it")
            raise
