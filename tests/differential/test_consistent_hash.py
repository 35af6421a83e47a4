"""Both servers send each message of an x-consistent-hash exchange to one queue, and to the same for its key.

Which queue that is differs, so there are no transcripts to compare.
"""

import pytest
from pika import BlockingConnection, URLParameters

pytestmark = pytest.mark.needs_rabbitmq

QUEUES = ("hashed-0", "hashed-1", "hashed-2", "hashed-3")
KEYS = [b"%d" % number for number in range(200)]


def where(url: str) -> list[dict[bytes, str]]:
    """Twice: the queue of each key's message."""
    with BlockingConnection(URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("hashed", "x-consistent-hash", auto_delete=True)
        for weight, queue in enumerate(QUEUES, 1):
            channel.queue_declare(queue, exclusive=True)
            channel.queue_bind(queue, "hashed", str(weight))
        channel.confirm_delivery()
        rounds = []
        for _ in range(2):
            for key in KEYS:
                channel.basic_publish("hashed", key.decode(), key, mandatory=True)
            found = []
            for queue in QUEUES:
                while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    found.append((got[2], queue))
            assert sorted(found) == sorted(dict(found).items())
            rounds.append(dict(found))
        return rounds


def test_each_message_goes_to_one_queue_and_always_to_the_same(rabbitmq, leveret_port) -> None:
    for url in (rabbitmq.url, f"amqp://guest:guest@127.0.0.1:{leveret_port}/"):
        first, second = where(url)
        assert first == second
        assert sorted(first) == sorted(KEYS)
        assert set(first.values()) == set(QUEUES)
