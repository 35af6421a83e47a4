"""The brokers that commands are tried on: Leveret in this process, and a real RabbitMQ.

A test that takes `amqp_url` runs on both, one that takes `leveret_url` on Leveret alone. Both live as long as
the session, so names come from `fresh`.
"""

import pytest

from leveret.testing.broker import Broker
from tests.client.conftest import amqp_url, fresh, leveret_session  # noqa: F401  (fixtures)


@pytest.fixture
def leveret_url(leveret_session: Broker) -> str:  # noqa: F811  (the fixture above)
    return leveret_session.url
