from collections.abc import Iterator

import pytest

from leveret.broker.limits import Limits
from leveret.testing.broker import Broker
from tests.fronts.http.conftest import Api
from tests.rabbitmq.node import RabbitMQ
from tests.rights.brokers import AmqpSide, Leveret, RabbitMQHttp, add_users_to_rabbitmq


@pytest.fixture(scope="module")
def leveret_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leveret]:
    """One Leveret for all rows, with AMQP, HTTP and Flight. It does not delay logins: many of them fail."""
    limits = Limits(login_delay_max_ms=0)
    with Broker(tmp_path_factory.mktemp("rights") / "data", flight=True, limits=limits) as broker:
        api = Api(broker)
        api.run(api.listener.start())
        side = Leveret(broker, api)
        yield side
        side.amqp.close()
        api.run(api.listener.stop())


@pytest.fixture(scope="module")
def rabbitmq_side(rabbitmq: RabbitMQ) -> Iterator[AmqpSide]:
    suffix = f"-{rabbitmq.vhost}"
    add_users_to_rabbitmq(rabbitmq, suffix)
    side = AmqpSide(rabbitmq.port, rabbitmq.vhost, suffix)
    side.root.exchange_declare("plain-x")
    yield side
    side.root.exchange_delete("plain-x")
    side.root.queue_delete("aliveness-test")
    side.close()


@pytest.fixture(scope="module")
def rabbitmq_http(rabbitmq: RabbitMQ, rabbitmq_side: AmqpSide) -> RabbitMQHttp:
    return RabbitMQHttp(rabbitmq, rabbitmq_side)
