"""The broker for tests itself: how it starts and ends, what it shows, its clock, and every fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import VirtualClock
from tests.processes import WAIT_S
from tests.semantics.client import Channel, Client, Lost


@pytest.fixture
def open_channel(leveret_broker: Broker) -> Iterator[Callable[[], Channel]]:
    made: list[Client] = []

    def open_channel() -> Channel:
        made.append(Client(leveret_broker.port))
        return made[-1].channel()

    yield open_channel
    for client in made:
        client.vanish()


@pytest.fixture
def channel(open_channel: Callable[[], Channel]) -> Channel:
    channel = open_channel()
    channel.declare("q")
    return channel


# short of memory


def test_a_publisher_is_held_back_for_as_long_as_the_alarm_is_on(
    leveret_broker: Broker, channel: Channel
) -> None:
    channel.publish("q", "1")
    channel.quiet()
    leveret_broker.set_alarm("memory", on=True)
    assert channel.client.own.next(commands.Connection.Blocked).method.reason == "low on memory"
    channel.publish("q", "2")
    assert leveret_broker.call(lambda: leveret_broker.server.turns.held_back)
    leveret_broker.set_alarm("memory", on=False)
    channel.client.own.next(commands.Connection.Unblocked)
    leveret_broker.wait_until_depth("q", 2)


# starting and stopping


@pytest.mark.real
def test_a_broker_in_a_thread_is_a_context() -> None:
    with Broker() as broker:
        assert broker.url == f"amqp://guest:guest@127.0.0.1:{broker.port}/"
        client = Client(broker.port)
        client.channel().declare("q")
        assert broker.depth("q") == 0
        port = broker.port
        client.close()
    with pytest.raises(ConnectionRefusedError):
        Client(port)


def test_how_long_it_takes_to_start() -> None:
    """Under 50 ms; printed, because a time is not to be asserted on."""
    times_ms = []
    for _ in range(5):
        began_s = time.perf_counter()
        with Broker():
            times_ms.append(1000 * (time.perf_counter() - began_s))
    print(f"a broker in memory listens after {min(times_ms):.1f} to {max(times_ms):.1f} ms")
    assert len(times_ms) == 5


def test_how_long_it_takes_to_start_on_a_directory(tmp_path: Path) -> None:
    began_s = time.perf_counter()
    with Broker(tmp_path / "new" / "data") as broker:
        took_ms = 1000 * (time.perf_counter() - began_s)
        assert (tmp_path / "new" / "data" / "definitions.db").exists()
        assert broker.disk is None
    print(f"a broker on a directory listens after {took_ms:.1f} ms")


@pytest.mark.real
def test_many_brokers_at_once_know_nothing_of_one_another() -> None:
    with Broker() as one, Broker() as two:
        client = Client(one.port)
        client.channel().declare("q")
        assert one.port != two.port
        other = Client(two.port).channel()
        other.send(commands.Queue.Declare(queue="q", passive=True))
        assert other.error().code == 404
        client.close()
        other.client.close()


@pytest.mark.real
def test_a_broker_in_the_running_loop() -> None:
    def work(port: int) -> str:
        channel = Client(port).channel().confirm_select()
        channel.declare("q")
        channel.publish_confirmed("q", "a", "b")
        got = channel.get("q")
        channel.client.close()
        return got.text

    async def main() -> tuple[str, int, int]:
        async with Broker() as broker:
            text = await asyncio.to_thread(work, broker.port)
            await asyncio.sleep(0)
            return text, broker.depth("q"), broker.unacked("q")

    text, depth, unacked = asyncio.run(main())
    assert (text, depth + unacked) == ("a", 2)


@pytest.mark.real
def test_the_clock_of_a_broker_in_the_running_loop() -> None:
    def prepare(port: int) -> None:
        channel = Client(port).channel()
        channel.declare("q", arguments={"x-message-ttl": 1000})
        channel.publish("q", "a")
        channel.quiet()
        channel.client.close()

    async def main() -> list[int]:
        clock = VirtualClock()
        async with Broker(clock=clock) as broker:
            await asyncio.to_thread(prepare, broker.port)
            depths = [broker.depth("q")]
            clock.advance(1)
            await asyncio.sleep(0)
            depths.append(broker.depth("q"))
        async with Broker(clock=clock):
            clock.advance(1)  # the one that has stopped is not asked any more
        return depths

    assert asyncio.run(main()) == [1, 0]


def test_a_clock_outlives_the_brokers_that_listened_to_it() -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with Broker(clock=clock):
            pass

    asyncio.run(main())
    clock.advance(1)
    with Broker(clock=clock):
        clock.advance(1)
    clock.advance(1)


def test_a_failing_start_is_raised_where_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match="file"):
        Broker(tmp_path / "file").start()


def test_two_brokers_do_not_share_a_directory(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(Exception, match="lock"):
        Broker(tmp_path).start()


# ends


def test_a_restart_keeps_the_port_and_what_is_durable(leveret_broker: Broker, channel: Channel) -> None:
    port = leveret_broker.port
    channel.publish("q", "a")
    channel.quiet()
    leveret_broker.restart()
    assert leveret_broker.port == port
    assert leveret_broker.depth("q") == 1


def test_a_crash_keeps_the_port_and_what_was_synced(leveret_broker: Broker, channel: Channel) -> None:
    port = leveret_broker.port
    channel.confirm_select().publish_confirmed("q", "a")
    for seed in range(3):
        leveret_broker.crash(Random(seed))
        leveret_broker.start()
    assert leveret_broker.port == port
    assert leveret_broker.depth("q") == 1


def test_clients_notice_a_crash(leveret_broker: Broker, channel: Channel) -> None:
    leveret_broker.crash()
    with pytest.raises((Lost, OSError)):
        channel.quiet()
    leveret_broker.start()


def test_a_broker_on_a_directory_can_not_crash(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, pytest.raises(AssertionError, match="in memory"):
        broker.crash()


@pytest.mark.real
def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with Broker() as broker:
        client = Client(broker.port)
        client.channel()
        broker.restart()
        broker.crash()
        broker.start()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("leveret")} <= before


# looking and waiting


def test_depth_and_unacked(leveret_broker: Broker, channel: Channel) -> None:
    for _ in range(3):
        channel.publish("q", "a")
    channel.get("q")
    channel.quiet()
    assert (leveret_broker.depth("q"), leveret_broker.unacked("q")) == (2, 1)


def test_how_many_consumers_a_queue_has(leveret_broker: Broker, channel: Channel) -> None:
    assert leveret_broker.consumers("q") == 0
    for tag in ("a", "b"):
        channel.consume("q", tag)
    assert leveret_broker.consumers("q") == 2
    channel.cancel("a")
    assert leveret_broker.consumers("q") == 1


def test_waiting_ends_when_it_is_so(leveret_broker: Broker, channel: Channel) -> None:
    done: list[str] = []

    def wait() -> None:
        leveret_broker.wait_until_depth("q", 2)
        leveret_broker.wait_until_unacked("q", 0)
        done.append("seen")

    waiting = threading.Thread(target=wait)
    waiting.start()
    channel.publish("q", "a")
    channel.quiet()
    assert not done
    channel.publish("q", "b")
    waiting.join(WAIT_S)
    assert done == ["seen"]


def test_waiting_for_what_never_happens_ends_with_a_sentence(
    leveret_broker: Broker, channel: Channel
) -> None:
    before = list(leveret_broker.server.turns.watchers)
    with pytest.raises(TimeoutError, match="waiting until queue 'q' has 7 ready messages"):
        leveret_broker.wait_until_depth("q", 7, timeout_s=0.02)
    assert leveret_broker.call(lambda: leveret_broker.server.turns.watchers) == before


def test_waiting_for_anything(leveret_broker: Broker, channel: Channel) -> None:
    server = leveret_broker.server
    leveret_broker.wait_until(lambda: len(server.broker.sessions) == 1, "there is a connection")
    channel.client.vanish()
    leveret_broker.wait_until(lambda: not server.broker.sessions, "there is none")


def test_asking_for_an_unknown_queue_is_an_error(leveret_broker: Broker) -> None:
    with pytest.raises(Exception, match="no queue 'nothing'"):
        leveret_broker.depth("nothing")


# the fixtures


def test_the_clock_of_the_fixture_is_the_brokers(leveret_broker: Broker, leveret_clock: VirtualClock) -> None:
    assert leveret_broker.clock is leveret_clock
    assert leveret_broker.call(leveret_broker.server.broker.now_us) == leveret_clock()


def test_without_the_clock_time_is_real(leveret_broker: Broker) -> None:
    assert leveret_broker.clock is None


def test_an_advance_has_done_what_is_due_when_it_returns(
    leveret_broker: Broker, leveret_clock: VirtualClock, open_channel: Callable[[], Channel]
) -> None:
    channel = open_channel()
    channel.declare("q", arguments={"x-message-ttl": 500})
    for _ in range(100):
        channel.publish("q", "a")
    channel.quiet()
    leveret_clock.advance(0.5)
    assert leveret_broker.depth("q") == 0


# faults


@pytest.mark.parametrize("together", [True, False])
def test_the_connection_drops_at_the_third_ack(
    leveret_broker: Broker, channel: Channel, together: bool
) -> None:
    for text in "abcd":
        channel.publish("q", text)
    channel.consume("q")
    channel.deliveries(4)
    leveret_broker.faults.drop_connection_at_ack(3)
    if together:
        with channel.client.together():
            for tag in (1, 2, 3, 4):
                channel.ack(tag)
    else:
        for tag in (1, 2, 3):
            channel.ack(tag)
    with pytest.raises(Lost):
        channel.client.read_until(lambda: False)
    leveret_broker.wait_until_depth("q", 2)
    assert leveret_broker.unacked("q") == 0


def test_withheld_confirms_do_not_come(leveret_broker: Broker, channel: Channel) -> None:
    channel.confirm_select()
    leveret_broker.faults.withhold_confirms(1)
    channel.publish("q", "a")
    leveret_broker.wait_until(lambda: leveret_broker.faults.confirms_to_withhold == 0, "it was withheld")
    channel.publish("q", "b")
    got = channel.next(commands.Basic.Ack)
    assert (got.tag, got.method.multiple) == (2, False)
    assert leveret_broker.depth("q") == 2


def test_confirms_turned_into_nacks(leveret_broker: Broker, channel: Channel) -> None:
    channel.confirm_select()
    leveret_broker.faults.nack_confirms(1)
    channel.publish("q", "a")
    assert channel.next(commands.Basic.Nack).tag == 1
    channel.publish("q", "b")
    assert channel.next(commands.Basic.Ack).tag == 2
    assert leveret_broker.depth("q") == 2


def test_a_duplicated_delivery(leveret_broker: Broker, channel: Channel) -> None:
    leveret_broker.faults.duplicate_delivery("q")
    channel.consume("q")
    channel.publish("q", "a")
    channel.publish("q", "b")
    assert sorted(channel.texts(3)) == ["a", "a", "b"]
    assert channel.quiet() == []


def test_a_duplicated_get(leveret_broker: Broker, channel: Channel) -> None:
    leveret_broker.faults.duplicate_delivery("q", 2)
    for text in "abc":
        channel.publish("q", text)
    assert channel.get_all("q") == ["a", "b", "c", "a", "b"]


def test_a_slow_disk(leveret_broker: Broker, channel: Channel) -> None:
    channel.confirm_select().publish_confirmed("q", "a")
    leveret_broker.faults.slow_disk(0.05)
    began_s = time.monotonic()
    channel.publish_confirmed("q", "b")
    print(f"confirmed after {1000 * (time.monotonic() - began_s):.0f} ms with syncs of 50 ms more")
    leveret_broker.faults.heal_disk()
    channel.publish_confirmed("q", "c")
    assert leveret_broker.depth("q") == 3


def test_a_full_disk_and_its_healing(leveret_broker: Broker, channel: Channel) -> None:
    channel.confirm_select().publish_confirmed("q", "a")
    leveret_broker.faults.full_disk()
    channel.publish("q", "b")
    assert channel.confirmed(1) == {"ack": 0, "nack": 1}
    leveret_broker.faults.heal_disk()
    channel.client.own.next(commands.Connection.Blocked)
    channel.client.own.next(commands.Connection.Unblocked)
    channel.publish_confirmed("q", "c")


def test_a_disk_whose_syncs_fail_ends_the_broker(leveret_broker: Broker, channel: Channel) -> None:
    channel.confirm_select().publish_confirmed("q", "a")
    leveret_broker.faults.failing_sync()
    channel.publish("q", "b")
    with pytest.raises(Lost):
        channel.client.read_until(lambda: False)
    assert leveret_broker.server.failure is not None


def test_faults_of_the_disk_need_a_disk_in_memory(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, pytest.raises(AssertionError, match="in memory"):
        broker.faults.full_disk()
