"""Whether rows can be written to the exchanges that options name: asked on the driver, before a task runs.

A Leveret is asked over Flight. AMQP has no word on rights before there is a message, so other brokers get one
in a transaction that is rolled back. Exchanges that only rows name show with the rows.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StructType

from leveret.client import ChannelClosed, ClientError, ConnectionLost
from leveret.client.blocking import BlockingConnection
from leveret.client.channel import Channel
from leveret.client.passive_checks import WITHOUT_TRANSACTIONS, is_there_an_exchange, try_publishing
from leveret.flight.actions import Address, Done
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SinkOptions
from leveret.spark.publishing_sink import connected
from leveret.spark.queue_consumer import answered

_TOPIC: Final = "access to topic "
"""How RabbitMQ refuses a routing key: with an authorisation of its own, on exchanges of type topic."""


def check(schema: StructType, options: SinkOptions, endpoint: Endpoint) -> None:
    """`BrokerRefused` if they can't."""
    exchanges = _named(schema, options)
    if exchanges and endpoint.is_leveret:
        with Calls(endpoint) as calls:
            calls.ask(Address(options.vhost, exchanges), Done)
    elif exchanges:
        with connected(options) as connection:
            for name in exchanges:
                _check_over_amqp(name, schema, options, connection)


def _of_rows(schema: StructType, name: str) -> bool:
    return any(field.name.lower() == name for field in schema.fields)


def _named(schema: StructType, options: SinkOptions) -> list[str]:
    named = [] if _of_rows(schema, "exchange") and not options.exchange else [options.exchange]
    return named if options.unroutable_exchange is None else [*named, options.unroutable_exchange]


def _check_over_amqp(
    exchange: str, schema: StructType, options: SinkOptions, connection: BlockingConnection
) -> None:
    ask = _Asking(exchange, options.routing_key or "")
    try:
        connection.run(answered(connection, ask, options.broker_timeout_s))
    except ChannelClosed as error:
        if _TOPIC in error.text and _of_rows(schema, "routing_key"):
            return  # it is of a key that perhaps no row has
        raise BrokerRefused(error.text, code=error.code) from None
    except ClientError as error:
        raise BrokerAway(error.sentence, hint=error.hint) from None
    except TimeoutError:
        raise BrokerAway("no answer about the exchanges of the sink in brokerTimeout") from None


class _Asking:
    """Whether a message may go there; of a broker without transactions only whether the exchange is there."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        self._exchange = exchange
        self._routing_key = routing_key
        self._in_transaction = True

    async def __call__(self, channel: Channel) -> None:
        if self._in_transaction:
            try:
                await try_publishing(channel, self._exchange, self._routing_key)
            except ConnectionLost as lost:
                self._in_transaction = lost.code != WITHOUT_TRANSACTIONS
                raise  # to be asked again on another connection
        elif self._exchange:  # the default one is always there
            await channel.call(is_there_an_exchange(self._exchange))
