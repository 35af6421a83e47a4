"""kombu made fit for tests: what arrived is kept, every wait is bounded.

Owns how a test waits (`receive`) and counts (`ready`). py-amqp raises what the broker sends at the next
call that reads, so a test asks for a count to be told of a mistake.
"""

import time
from collections.abc import Callable
from typing import Any

from kombu import Connection, Consumer, Message, Producer, Queue

from tests.interop.wire import WAIT_S

Fresh = Callable[[str], str]
CONFIRMED = {"confirm_publish": True}


def publish(channel: Any, queue: Queue, *bodies: str) -> None:
    producer = Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=queue.name, mandatory=True, delivery_mode=2)


def ready(channel: Any, queue: Queue) -> int:
    return queue(channel).queue_declare(passive=True).message_count


def receive(connection: Connection, inbox: list[Message], count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(inbox) < count:
        connection.drain_events(timeout=deadline - time.monotonic())


def consume(channel: Any, queue: Queue, count: int, **options: Any) -> tuple[Consumer, list[Message]]:
    inbox: list[Message] = []
    consumer = Consumer(channel, [queue], on_message=inbox.append, **options)
    consumer.consume()
    receive(channel.connection.client, inbox, count)
    return consumer, inbox


def payloads(messages: list[Message]) -> list[str]:
    return [message.payload for message in messages]


def redelivered(messages: list[Message]) -> list[bool]:
    return [message.delivery_info["redelivered"] for message in messages]
