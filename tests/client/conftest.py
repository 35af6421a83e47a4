"""The brokers that the toolkit is tested on: Leveret in this process, and a real RabbitMQ.

A test that takes `amqp_url` runs on both; one that takes `leveret_broker` runs on Leveret alone, with its
faults and its clock. Both live as long as the session, so names come from `fresh`.
"""

import itertools
import re
import uuid
from collections.abc import Callable, Iterator

import pytest

from leveret.testing.broker import Broker


@pytest.fixture(scope="session")
def leveret_session() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(params=["leveret", pytest.param("rabbitmq", marks=pytest.mark.needs_rabbitmq)])
def amqp_url(request: pytest.FixtureRequest) -> str:
    """Of Leveret, then of RabbitMQ."""
    name = "leveret_session" if request.param == "leveret" else "rabbitmq"
    return str(request.getfixturevalue(name).url)


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names nobody else uses."""
    test = re.sub(r"\W+", "-", request.node.name)[:80]
    numbers = itertools.count(1)
    return lambda what="queue": f"client.{test}.{what}.{next(numbers)}.{uuid.uuid4().hex[:8]}"
