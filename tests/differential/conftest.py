"""The Leveret that is compared with RabbitMQ: one broker for the whole run, with its HTTP API."""

from collections.abc import Iterator

import pytest

from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api


@pytest.fixture(scope="session")
def leveret_api() -> Iterator[Api]:
    with Broker() as broker:
        api = Api(broker)
        api.run(api.listener.start())
        yield api
        api.run(api.listener.stop())


@pytest.fixture(scope="session")
def leveret_port(leveret_api: Api) -> int:
    return leveret_api.broker.port
