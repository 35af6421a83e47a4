"""Random histories of a broker, with power cuts and full disks: the audit's figures are the model's."""

import os
from functools import lru_cache
from pathlib import Path

import pytest

from leveret.audit import accounting
from leveret.broker import accounts
from leveret.storage import events
from tests.audit.audited_history import replay
from tests.audit.two_readers import TwoReaders

FIRST = int(os.environ.get("LEVERET_SEED", "0"))
HISTORIES = int(os.environ.get("LEVERET_HISTORIES", "24"))
CHUNK_BITS = 14


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker would hash the same password anew; chunks are as large as these histories need."""
    monkeypatch.setattr(accounts, "is_password", lru_cache(accounts.is_password))
    for module in (accounting, events):
        monkeypatch.setattr(module, "CHUNK_BITS", CHUNK_BITS)
        monkeypatch.setattr(module, "CHUNK", 1 << CHUNK_BITS)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + HISTORIES))
def test_the_figures_of_the_audit_are_those_of_the_model(seed: int, tmp_path: Path) -> None:
    """Replay one with LEVERET_SEED=n LEVERET_HISTORIES=1; look for more with other numbers."""
    replay(seed, tmp_path)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + HISTORIES))
def test_whatever_two_readers_do_the_audit_tells_it(seed: int, tmp_path: Path) -> None:
    TwoReaders(seed, tmp_path).run()
