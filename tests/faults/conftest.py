"""Fixtures of histories that crash."""

from __future__ import annotations

from random import Random

import pytest


@pytest.fixture
def small_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In some histories a mark is used up, and a round is full, after a few messages."""
    random = Random(seed)
    monkeypatch.setattr("leveret.storage.cursor.MARK_AHEAD", random.choice([10, 40, 65_536]))
    monkeypatch.setattr("leveret.storage.store.ROUND_BYTES_MAX", random.choice([500, 5000, 1 << 30]))
