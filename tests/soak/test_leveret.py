"""Queries between queues of Leveret and tables, or other queues, while everything around them is killed."""

import pytest

from tests.soak.gated import SINK_PHASES, SOURCE_PHASES, WRITTEN
from tests.soak.kills import CLUSTER
from tests.soak.pipeline import EACH, FILE, QUEUE
from tests.soak.settings import CELL_TIMEOUT_S, Setting, cells

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(CELL_TIMEOUT_S)]

LOCAL = Setting((FILE, EACH, QUEUE))
VICTIMS = {
    "python-worker": LOCAL,
    "broker": LOCAL,
    "flight-process": LOCAL,
    "network": LOCAL._replace(networked=True),
    "executor": LOCAL._replace(master=CLUSTER),
    "driver": None,
}


@cells(VICTIMS, {phase: EACH if phase == WRITTEN else FILE for phase in SOURCE_PHASES})
def test_a_table_has_every_message_once_and_the_queue_is_empty(stage, setting, victim, phase, kind):
    stage.play(setting, kind, victim=victim, phase=phase)


@cells(VICTIMS, dict.fromkeys(SINK_PHASES, QUEUE))
def test_a_queue_gets_every_row_once(stage, setting, victim, phase, kind):
    stage.play(setting, kind, victim=victim, phase=phase)
