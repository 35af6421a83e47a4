"""The Leveret that is compared with RabbitMQ: one broker for the whole run, and one with its HTTP API."""

from collections.abc import Iterator

import pytest

from leveret.testing.broker import Broker
from tests.differential.management import Management
from tests.fronts.http.conftest import Api
from tests.rabbitmq.node import RabbitMQ


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


@pytest.fixture(scope="module")
def leveret_management() -> Iterator[Management]:
    with Broker() as broker:
        api = Api(broker)
        api.run(api.listener.start())
        yield Management(api.listener.port, broker.port, "/")
        api.run(api.listener.stop())


@pytest.fixture(scope="module")
def rabbitmq_management(rabbitmq: RabbitMQ) -> Iterator[Management]:
    """With a virtual host of its own: lists show what other tests have left in theirs."""
    management = Management(rabbitmq.http_port, rabbitmq.port, f"{rabbitmq.vhost}m")
    assert management.ask("PUT", "/api/vhosts/{vhost}", {}).status < 300
    yield management
    management.ask("DELETE", "/api/vhosts/{vhost}")
