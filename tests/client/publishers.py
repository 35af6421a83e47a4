"""What tests of the publisher and the connection begin with: publishers, queues, brokers that are not there.

Owns no broker; those are fixtures. Everything within `publishing` is bounded, so that a test that would hang
fails instead. Messages are taken out with bare channels of the toolkit, property by property.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pamqp import commands

from leveret.amqp import properties
from leveret.amqp.methods import Method
from leveret.amqp.tables import Value
from leveret.client.backoff import Backoff
from leveret.client.connection import Connection
from leveret.client.publisher import Publisher
from leveret.client.receipt import Receipt
from leveret.testing.broker import Broker
from tests.amqp.session import method_of
from tests.processes import WAIT_S, free_ports

QUICK = Backoff(initial_s=0.01, multiplier=2, max_s=0.1)


@asynccontextmanager
async def publishing(url: str, *queues: str, **chosen: Any) -> AsyncIterator[Publisher]:
    """A publisher that is ready, and these queues; everything within takes no longer than a test may."""
    async with asyncio.timeout(2 * WAIT_S), Connection(url, backoff=QUICK) as connection:
        for queue in queues:
            await declare(connection, queue)
        async with Publisher(connection, **{"timeout_s": WAIT_S, **chosen}) as publisher:
            while not publisher.ready:
                await asyncio.sleep(0)
            yield publisher


async def publish_unheard(broker: Broker, publisher: Publisher, body: bytes, **chosen: Any) -> Receipt:
    """To `q`; its confirm was withheld when this returns: the next message's can't be in the same frame."""
    broker.faults.withhold_confirms(1)
    receipt = await publisher.publish(body, "q", timeout_s=0.05, **chosen)
    broker.wait_until(lambda: broker.faults.confirms_to_withhold == 0, "it was withheld")
    return receipt


@asynccontextmanager
async def publishing_to_nobody(**chosen: Any) -> AsyncIterator[Publisher]:
    """A publisher whose broker is down, and which does not wait for it long."""
    connection = Connection(dead_url(), backoff=QUICK)
    connection.start()
    chosen = {"timeout_s": 0.2, **chosen}
    async with asyncio.timeout(2 * WAIT_S), Publisher(connection, **chosen) as publisher:
        yield publisher
    await connection.close()


def dead_url() -> str:
    """Where nobody listens."""
    (port,) = free_ports(1)
    return f"amqp://127.0.0.1:{port}/"


async def call(connection: Connection, method: Method) -> Method:
    """On a channel of its own."""
    channel = await (await connection.connected(WAIT_S)).open_channel()
    answer = await channel.call(method)
    await channel.close()
    return answer


async def declare(connection: Connection, queue: str, **arguments: Value) -> None:
    await call(connection, method_of(commands.Queue.Declare, queue=queue, durable=True, arguments=arguments))


async def declare_exchange(connection: Connection, exchange: str, *queues: str, **chosen: Any) -> None:
    """A fanout to these queues."""
    declare = method_of(commands.Exchange.Declare, exchange=exchange, exchange_type="fanout", **chosen)
    await call(connection, declare)
    for queue in queues:
        await call(connection, method_of(commands.Queue.Bind, queue=queue, exchange=exchange))


async def taken(connection: Connection, queue: str) -> list[tuple[dict[str, Value], bytes]]:
    """Properties and bodies of all messages of a queue, which has none afterwards."""
    channel = await (await connection.connected(WAIT_S)).open_channel()
    found = []
    while (content := await channel.get(queue, no_ack=True)) is not None:
        found.append((dict(properties.decode(content.header)), content.body))
    await channel.close()
    return found


async def bodies(publisher: Publisher, queue: str) -> list[bytes]:
    return [body for _, body in await taken(publisher.connection, queue)]
