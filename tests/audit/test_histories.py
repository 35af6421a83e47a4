"""Random histories of a broker, with power cuts and full disks: the audit agrees with a model."""

from pathlib import Path

import pytest

from leveret.audit import accounting
from leveret.storage import message_events
from tests.audit.audited_history import AuditedHistory
from tests.audit.cursor_history import CursorHistory

CHUNK_BITS = 14


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks small, because these histories have few offsets."""
    for module in (accounting, message_events):
        monkeypatch.setattr(module, "CHUNK_BITS", CHUNK_BITS)
        monkeypatch.setattr(module, "CHUNK", 1 << CHUNK_BITS)


@pytest.mark.histories(sample=6, full=24)
def test_the_audit_of_a_broker_agrees_with_its_ledger(seed: int, tmp_path: Path) -> None:
    AuditedHistory(seed, tmp_path).run()


@pytest.mark.histories(sample=6, full=24)
def test_the_audit_of_two_cursors_agrees_with_their_model(seed: int, tmp_path: Path) -> None:
    CursorHistory(seed, tmp_path).run()
