"""A few kills around declared pipelines for every run of the tests; `make soak` has them at all phases."""

from types import SimpleNamespace

import pytest

from leveret.spark.pipelines import running
from leveret.spark.pipelines.batches import Batches
from leveret.spark.pipelines.checkpoint_files import Status
from tests.soak.declared import DECLARED, PUBLISHED, REJECTED
from tests.soak.settings import Setting, Stage
from tests.spark.rejecting import declared

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

SETTING = Setting((DECLARED,))


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("kills")) as ready:
        yield ready


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        pytest.param("broker", PUBLISHED, marks=pytest.mark.full),
        pytest.param("flight-process", REJECTED, marks=pytest.mark.full),
        pytest.param("driver", PUBLISHED, marks=pytest.mark.full),
    ],
)
def test_every_message_is_in_the_table_or_among_the_rejects_once(stage, victim, phase):
    stage.play(SETTING, DECLARED, victim=victim, phase=phase, rounds=1)


def test_the_first_batch_after_a_restart_knows_no_lag(tmp_path):
    """Spark writes `null` where a source has not looked yet."""
    source = SimpleNamespace(latestOffset="null")
    last = SimpleNamespace(sources=[source], batchId=3, processedRowsPerSecond=2.0, batchDuration=500)
    batches = Batches(declared({"queue": "orders"}, tmp_path, name="lake", rejected="orders.rejected"))
    status = running.progressed(Status.first("lake"), SimpleNamespace(lastProgress=last), batches)
    assert (status.batch, status.batch_s, status.lag) == (3, 0.5, None)
