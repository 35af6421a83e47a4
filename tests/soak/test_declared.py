"""Declared pipelines while everything is killed: each message is in the table, or a reject, and once."""

import pytest

from tests.soak.declared import DECLARED, DECLARED_PHASES, STEPPED
from tests.soak.gated import SOURCE_PHASES
from tests.soak.kills import CLUSTER
from tests.soak.settings import CELL_TIMEOUT_S, Setting, cells

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(CELL_TIMEOUT_S)]

PHASES = (*SOURCE_PHASES, *DECLARED_PHASES)


def victims(kind: str) -> dict[str, Setting | None]:
    local = Setting((kind,))
    return {
        "python-worker": local,
        "broker": local,
        "flight-process": local,
        "network": local._replace(networked=True),
        "executor": local._replace(master=CLUSTER),
        "driver": local,
    }


@cells(victims(DECLARED), dict.fromkeys(PHASES, DECLARED))
def test_every_message_is_in_the_table_or_among_the_rejects_once(stage, setting, victim, phase, kind):
    stage.play(setting, kind, victim=victim, phase=phase)


@cells(victims(STEPPED), dict.fromkeys(PHASES, STEPPED))
def test_also_where_a_step_rejects_some(stage, setting, victim, phase, kind):
    stage.play(setting, kind, victim=victim, phase=phase)
