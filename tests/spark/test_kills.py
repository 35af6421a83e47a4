"""A few kills of the soak (`make soak`), for every run of the tests: a driver, a broker, a network."""

import pytest

from tests.soak.gated import AFTER_ACK, BEFORE_COMMIT, RUNNING
from tests.soak.pipeline import FILE, QUEUE
from tests.soak.settings import Setting, Stage

pytestmark = [pytest.mark.needs_java, pytest.mark.timeout(900)]

SETTING = Setting((FILE, QUEUE), networked=True)
"""One session of Spark for all; through a network, which does not hinder the other kills."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("kills")) as ready:
        yield ready


def test_a_broker_is_killed_while_tasks_run(stage):
    stage.play(SETTING, FILE, victim="broker", phase=RUNNING, rounds=1)


def test_the_network_is_cut_when_the_broker_has_acked_and_spark_has_not_heard_of_it(stage):
    stage.play(SETTING, FILE, victim="network", phase=AFTER_ACK, rounds=1)


def test_a_driver_is_killed_when_rows_are_staged_and_not_committed(stage):
    stage.play(SETTING, QUEUE, victim="driver", phase=BEFORE_COMMIT, rounds=1)
