"""The Leveret that is compared with RabbitMQ: one broker for the whole run."""

from collections.abc import Iterator

import pytest

from leveret.testing.broker import Broker


@pytest.fixture(scope="session")
def leveret_port() -> Iterator[int]:
    with Broker() as broker:
        yield broker.port
