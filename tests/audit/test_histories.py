"""Random histories of a broker, with power cuts and full disks: the audit's figures are the model's."""

from pathlib import Path

import pytest

from leveret.audit import accounting
from leveret.storage import message_events
from tests.audit.audited_history import AuditedHistory
from tests.audit.cursor_history import CursorHistory

CHUNK_BITS = 14


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks as large as these histories need."""
    for module in (accounting, message_events):
        monkeypatch.setattr(module, "CHUNK_BITS", CHUNK_BITS)
        monkeypatch.setattr(module, "CHUNK", 1 << CHUNK_BITS)


@pytest.mark.histories(sample=6, full=24)
def test_the_figures_of_the_audit_are_those_of_the_model(seed: int, tmp_path: Path) -> None:
    AuditedHistory(seed, tmp_path).run()


@pytest.mark.histories(sample=6, full=24)
def test_the_audit_tells_what_two_cursors_of_a_log_did(seed: int, tmp_path: Path) -> None:
    CursorHistory(seed, tmp_path).run()
