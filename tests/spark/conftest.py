"""What tests on Spark share: one session, brokers of both kinds, names nobody else uses.

The session starts a JVM, which takes some seconds: tests that can do without it should.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leveret.testing.broker import Broker
from tests.client.conftest import fresh  # noqa: F401  (a fixture)
from tests.rabbitmq.cluster import Cluster
from tests.rabbitmq.node import RabbitMQ
from tests.spark.settings import SETTINGS
from tests.tools import reason_to_skip


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """On two threads, without the pages it shows; `format("leveret")` is found, not registered."""
    if reason := reason_to_skip("needs_java"):
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("leveret-tests")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.config("spark.sql.warehouse.dir", str(place / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def leveret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a Flight endpoint, for as long as the session."""
    with Broker(tmp_path_factory.mktemp("leveret") / "data", flight=True) as broker:
        yield broker


@pytest.fixture
def own_leveret(tmp_path: Path) -> Iterator[Broker]:
    """One that a test may restart."""
    with Broker(tmp_path / "data", flight=True) as broker:
        yield broker


@pytest.fixture
def impatient(own_rabbitmq: Cluster) -> Iterator[RabbitMQ]:
    """A RabbitMQ node that gives new channels half a second to ack, and checks five times a second."""
    rabbitmq = own_rabbitmq.nodes[0].server
    shorter = {"consumer_timeout": 500, "channel_tick_interval": 200}
    before = {name: rabbitmq.rabbitmqctl("eval", f"application:get_env(rabbit, {name}).") for name in shorter}
    for name, value in shorter.items():
        rabbitmq.rabbitmqctl("eval", f"application:set_env(rabbit, {name}, {value}).")
    yield rabbitmq
    for name, value in before.items():
        number = value.strip().removeprefix("{ok,").removesuffix("}")
        rabbitmq.rabbitmqctl("eval", f"application:set_env(rabbit, {name}, {number}).")
