"""Whether the broker says that it is well, and why if it is not."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pika
from pika.exceptions import NackError

from tests.processes import WAIT_S

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_a_healthy_broker_says_so_to_anybody(api):
    answer = api.get("/health", user=None)
    assert (answer.status, answer.json) == (200, {"status": "ok"})


def test_a_full_disk_is_told_until_there_is_space_again(api, channel):
    channel.queue_declare("q", durable=True)
    broker = api.broker.server.broker
    api.broker.faults.full_disk()
    with ThreadPoolExecutor(1) as publisher, suppress(NackError):
        # It is nacked, or held back until there is space: the alarm may come first.
        published = publisher.submit(channel.basic_publish, "", "q", b"1", PERSISTENT)
        api.broker.wait_until(lambda: broker.blocked is not None, "publishers are held back")
        answer = api.get("/health", user=None)
        api.broker.faults.heal_disk()
        published.result(WAIT_S)
    assert answer.status == 503
    assert answer.json == {"status": "failed", "reasons": ["publishers are blocked: low on disk"]}
    api.broker.wait_until(lambda: broker.blocked is None, "publishers may go on")
    assert api.get("/health", user=None).status == 200
