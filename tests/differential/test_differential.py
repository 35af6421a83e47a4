"""Leveret answers as RabbitMQ does: the same scenarios on both, and the transcripts compared line by line."""

import difflib

import pytest

from tests.differential.deviations import INSTEAD, comparable, expected
from tests.differential.generated import walk
from tests.differential.play import Scenario, played
from tests.differential.scenarios import all_scenarios
from tests.fronts.http.conftest import Api
from tests.rabbitmq.node import RabbitMQ

SCENARIOS = all_scenarios()

pytestmark = pytest.mark.needs_rabbitmq


def compare(name: str, scenario: Scenario, rabbitmq: RabbitMQ, leveret: Api) -> None:
    judge = expected(name, played(scenario, rabbitmq.port, rabbitmq.vhost, http_port=rabbitmq.http_port))
    ours = comparable(played(scenario, leveret.broker.port, http_port=leveret.listener.port))
    if ours != judge:
        difference = difflib.unified_diff(judge, ours, "RabbitMQ", "Leveret", lineterm="", n=6)
        pytest.fail(f"{name}\n" + "\n".join(difference), pytrace=False)


@pytest.mark.parametrize("name", SCENARIOS)
def test_leveret_answers_as_rabbitmq_does(name, rabbitmq, leveret_api):
    compare(name, SCENARIOS[name], rabbitmq, leveret_api)


@pytest.mark.histories(sample=10, full=40)
def test_leveret_answers_as_rabbitmq_does_on_a_random_walk(seed, rabbitmq, leveret_api):
    compare(f"walk {seed}", walk(seed), rabbitmq, leveret_api)


def test_every_deviation_is_about_a_scenario_there_is():
    assert {deviation.scenario for deviation in INSTEAD} <= set(SCENARIOS)
