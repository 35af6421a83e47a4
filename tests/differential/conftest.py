"""The two servers that are compared: one RabbitMQ and one Leveret for the whole run."""

from collections.abc import Iterator

import pytest

from leveret.testing.broker import Broker
from tests.differential.rabbitmq import rabbitmq

__all__ = ["leveret_port", "rabbitmq"]


@pytest.fixture(scope="session")
def leveret_port() -> Iterator[int]:
    with Broker() as broker:
        yield broker.port
