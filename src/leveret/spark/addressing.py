"""Whether rows can be written to the exchanges that options name: asked on the driver, before a task runs.

A Leveret says whether an exchange is there and may be written to, other brokers whether it is there: AMQP has
no word on rights before there is a message. Exchanges that only rows name show with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import StructType

from leveret.client import ChannelClosed, ClientError
from leveret.client.channel import Channel
from leveret.client.questions import is_there_an_exchange
from leveret.flight.actions import Address, Done
from leveret.spark.calls import Calls
from leveret.spark.consuming import answered
from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BrokerAway, BrokerRefused
from leveret.spark.options import SinkOptions
from leveret.spark.published import connected


def check(schema: StructType, options: SinkOptions, endpoint: Endpoint) -> None:
    """`BrokerRefused` if they can't."""
    exchanges = _named(schema, options)
    if endpoint.is_leveret:
        if exchanges:
            with Calls(endpoint) as calls:
                calls.ask(Address(options.vhost, exchanges), Done)
    elif any(exchanges):  # the default one is always there
        _check_over_amqp([name for name in exchanges if name], options)


def _named(schema: StructType, options: SinkOptions) -> list[str]:
    of_rows = any(field.name.lower() == "exchange" for field in schema.fields)
    named = [] if of_rows and not options.exchange else [options.exchange]
    return named if options.unroutable_exchange is None else [*named, options.unroutable_exchange]


def _check_over_amqp(exchanges: Iterable[str], options: SinkOptions) -> None:
    async def find(channel: Channel) -> None:
        for name in exchanges:
            await channel.call(is_there_an_exchange(name))

    with connected(options) as connection:
        try:
            connection.run(answered(connection, find, options.broker_timeout_s))
        except ChannelClosed as error:
            raise BrokerRefused(error.text, code=error.code) from None
        except ClientError as error:
            raise BrokerAway(error.sentence, hint=error.hint) from None
        except TimeoutError:
            raise BrokerAway("no answer about the exchanges of the sink in brokerTimeout") from None
