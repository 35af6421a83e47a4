"""Slow syncs and slow turns in the log: few lines, with what a slow turn did."""

import logging
import threading
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from pamqp import commands

from leveret.broker.queues.deliverer import Deliverer
from leveret.server import group_commit
from leveret.server.slow_log import SlowLog
from leveret.testing.broker import WAIT_S, Broker
from leveret.testing.clock import VirtualClock
from tests.amqp.session import published, sent
from tests.server.test_fairness import answers_until, connected

pytestmark = pytest.mark.real


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    caplog.set_level(logging.INFO)
    with Broker(clock=clock) as broker:
        yield broker


def publish(broker: Broker) -> None:
    """Publish a persistent message to the queue `orders`, which has a consumer, and wait for its confirm."""
    client, _ = connected(broker)
    client.sendall(
        sent(1, commands.Queue.Declare, queue="orders", durable=True)
        + sent(1, commands.Basic.Consume, queue="orders")
        + sent(1, commands.Confirm.Select)
        + published(1, b"x", key="orders", delivery_mode=2)
    )
    answers_until(client, "basic.ack")
    client.sendall(sent(0, commands.Connection.Close))
    answers_until(client, "connection.close-ok")
    client.close()


def test_a_slow_event_is_logged_at_once_and_those_that_follow_with_the_next_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    slow = SlowLog("a sync", "log.slow_sync_ms", now_s=lambda: now_s[0])
    assert slow.limit_us > 10**12, "nothing is slow without a limit"
    slow.set_limit(1000)
    for now_s[0], took_us in ((100.0, 1_500_000), (101.0, 4_000_000), (109.9, 1_100_000), (110.1, 1_200_000)):
        slow.note(took_us, "64 bytes")
    assert caplog.messages == [
        "a sync took 1500 ms, more than log.slow_sync_ms = 1000: 64 bytes",
        "a sync took 1200 ms, more than log.slow_sync_ms = 1000: 64 bytes; "
        "2 more since the last such line, the longest 4000 ms",
    ]
    assert [(vars(each)["took_ms"], vars(each)["more"]) for each in caplog.records] == [(1500, 0), (1200, 2)]
    now_s[0] += 20
    slow.note(2_000_000)
    assert caplog.messages[2] == "a sync took 2000 ms, more than log.slow_sync_ms = 1000"


def test_a_slow_turn_is_logged_with_the_queue_that_took_the_time(
    broker: Broker, clock: VirtualClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = broker.server.turns.watch
    broker.call(lambda: broker.server.log_slow(syncs_ms=0, turns_ms=500))
    run = Deliverer.run

    def run_slowly(deliverer: Deliverer) -> None:
        clock._now_us += 400_000
        looking = threading.Thread(target=watch.look)
        looking.start()
        looking.join(WAIT_S)
        clock._now_us += 400_000
        run(deliverer)

    monkeypatch.setattr(Deliverer, "run", run_slowly)
    publish(broker)
    slow = [each for each in caplog.messages if each.startswith("a turn took ")]
    assert slow
    assert slow[0].startswith("a turn took 800 ms, more than log.slow_turn_ms = 500: in leveret.broker.")
    assert slow[0].endswith(" for queue 'orders' in vhost '/'")


def test_a_slow_sync_is_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.call(lambda: broker.server.log_slow(syncs_ms=1000, turns_ms=0))
    seconds = count(step=2)
    monkeypatch.setattr(
        group_commit, "time", SimpleNamespace(perf_counter_ns=lambda: next(seconds) * 1_000_000_000)
    )
    publish(broker)
    slow = [each for each in caplog.messages if each.startswith("a sync took ")]
    assert slow[0].startswith("a sync took 2000 ms, more than log.slow_sync_ms = 1000: ")
    assert slow[0].endswith(" bytes of messages; confirms waited, look at the disk")


def test_nothing_is_logged_while_all_is_fast(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.call(lambda: broker.server.log_slow(syncs_ms=3_600_000, turns_ms=500))
    publish(broker)
    broker.call(lambda: broker.server.log_slow(syncs_ms=0, turns_ms=0))
    publish(broker)
    broker.stop()
    assert [each.getMessage() for each in caplog.records if each.name.startswith("leveret")] == []
