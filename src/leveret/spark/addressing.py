"""Checks on the driver, before a task runs, that rows can be written to the exchanges in the options.

A Leveret is asked over Flight. AMQP has no method that checks permissions, so other brokers get a message in
a transaction that is rolled back. Exchanges that only rows name are not checked here.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import StructType

from leveret.client import ChannelClosed, ClientError, ConnectionLost
from leveret.client.blocking import BlockingConnection
from leveret.client.channel import Channel
from leveret.client.passive_checks import WITHOUT_TRANSACTIONS, is_there_an_exchange, try_publishing
from leveret.flight.actions import Address, Done
from leveret.spark.endpoint import Endpoint, connected
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.flight_calls import Calls
from leveret.spark.options import SinkOptions
from leveret.spark.queue_consumer import answered

_TOPIC_REFUSED: Final = "access to topic "
"""Part of RabbitMQ's reply when the user may not publish to a topic exchange with this routing key."""


def check(schema: StructType, options: SinkOptions, endpoint: Endpoint) -> None:
    """Raise `BrokerRefused` if the user can't publish to one of the exchanges."""
    exchanges = _exchanges_to_check(schema, options)
    if exchanges and endpoint.is_leveret:
        with Calls(endpoint) as calls:
            calls.ask(Address(options.vhost, exchanges), Done)
    elif exchanges:
        with connected(options, options.broker_timeout_s) as connection:
            for name in exchanges:
                _check_over_amqp(name, schema, options, connection)


def _has_column(schema: StructType, name: str) -> bool:
    return any(field.name.lower() == name for field in schema.fields)


def _exchanges_to_check(schema: StructType, options: SinkOptions) -> list[str]:
    exchanges = [] if _has_column(schema, "exchange") and not options.exchange else [options.exchange]
    return exchanges if options.unroutable_exchange is None else [*exchanges, options.unroutable_exchange]


def _check_over_amqp(
    exchange: str, schema: StructType, options: SinkOptions, connection: BlockingConnection
) -> None:
    check_exchange = _ExchangeCheck(exchange, options.routing_key or "")
    try:
        connection.run(answered(connection, check_exchange, options.broker_timeout_s))
    except ChannelClosed as error:
        # The refused routing key is the option's; the rows may have others.
        if _TOPIC_REFUSED in error.text and _has_column(schema, "routing_key"):
            return
        raise BrokerRefused(error.text, code=error.code) from None
    except ClientError as error:
        raise BrokerAway(error.sentence, hint=error.hint) from None
    except TimeoutError:
        raise BrokerAway("no answer about the exchanges of the sink in brokerTimeout") from None


class _ExchangeCheck:
    """Checks that a message may be published; without transactions only that the exchange exists."""

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
                # `answered` asks again on the next connection.
                raise
        elif self._exchange:
            # Not for the default exchange, which always exists.
            await channel.call(is_there_an_exchange(self._exchange))
