"""Whether the broker says that it is well, and why if it is not."""

import pika
import pytest
from pika.exceptions import NackError

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_a_healthy_broker_says_so_to_anybody(api):
    answer = api.get("/health", user=None)
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_a_full_disk_is_told_until_there_is_space_again(api, channel):
    channel.queue_declare("q", durable=True)
    api.broker.faults.full_disk()
    with pytest.raises(NackError):
        channel.basic_publish("", "q", b"1", PERSISTENT)
    answer = api.get("/health", user=None)
    assert answer.status == 503
    assert answer.json == {"status": "failed", "reasons": ["publishers are blocked: low on disk"]}
    api.broker.faults.heal_disk()
    broker = api.broker.server.broker
    api.broker.wait_until(lambda: broker.blocked is None, "publishers may go on")
    assert api.get("/health", user=None).status == 200
