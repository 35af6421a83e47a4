"""Alarms of the broker: what counts as low on memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.server.alarms import MachineMeasure


def test_memory_that_was_freed_and_kept_is_given_back_before_anybody_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = [900]
    monkeypatch.setattr("leveret.server.alarms.resident_bytes", lambda pid: resident[0])
    monkeypatch.setattr("leveret.server.alarms.give_back", lambda: resident.__setitem__(0, resident[0] - 300))
    measure = MachineMeasure(str(tmp_path), memory_max_bytes=500)
    assert measure([]).memory, "600 are still too many"
    assert not measure([]).memory


def test_the_memory_of_helper_processes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.server.alarms.resident_bytes", lambda pid: 300)
    monkeypatch.setattr("leveret.server.alarms.own_bytes", {17: 150, 18: 100}.__getitem__)
    measure = MachineMeasure(str(tmp_path), memory_max_bytes=500)
    assert not measure([17]).memory
    assert measure([17, 18]).memory
