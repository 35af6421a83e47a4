"""A few kills of the soak (`make soak`), for every run of the tests: one of each victim.

Only the Flight process is left to `test_pipeline_kills`.
"""

import pytest

from tests.soak.gated import AFTER_ACK, BEFORE_COMMIT, RUNNING, STAGED
from tests.soak.kills import CLUSTER
from tests.soak.pipeline import FILE, QUEUE
from tests.soak.settings import Setting, Stage

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

SETTING = Setting((FILE, QUEUE), master=CLUSTER, networked=True)
"""One session of Spark for all: with executors and through a network, which do not hinder other kills."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("kills")) as ready:
        yield ready


@pytest.mark.full
def test_a_broker_is_killed_while_tasks_run(stage):
    stage.play(SETTING, FILE, victim="broker", phase=RUNNING, rounds=1)


def test_the_network_is_cut_when_the_broker_has_acked_and_spark_has_not_heard_of_it(stage):
    stage.play(SETTING, FILE, victim="network", phase=AFTER_ACK, rounds=1)


def test_a_python_worker_is_killed_while_it_reads(stage):
    stage.play(SETTING, FILE, victim="python-worker", phase=RUNNING, rounds=1)


def test_an_executor_is_killed_whose_task_has_staged_its_rows(stage):
    stage.play(SETTING, QUEUE, victim="executor", phase=STAGED, rounds=1)


@pytest.mark.full
def test_a_driver_is_killed_when_rows_are_staged_and_not_committed(stage):
    stage.play(SETTING, QUEUE, victim="driver", phase=BEFORE_COMMIT, rounds=1)


@pytest.mark.full
@pytest.mark.needs_rabbitmq
def test_a_python_worker_is_killed_that_has_published_its_rows_to_rabbitmq(stage):
    setting = Setting((QUEUE,), on_rabbitmq=True)
    stage.play(setting, QUEUE, victim="python-worker", phase=STAGED, rounds=1)
