"""Dead letters: why, where to, what their headers tell, cycles; ours: never in neither queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from pamqp import commands

from leveret.testing.broker import Broker
from leveret.testing.clock import START_US, VirtualClock
from tests.semantics.client import Channel, ClosedByBroker, Got


def declare(channel: Channel, queue: str = "q", *, to: str = "dead", **arguments: object) -> None:
    channel.declare(
        queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to, **arguments}
    )


def kill_by_reject(channel: Channel, clock: VirtualClock) -> None:
    channel.reject(channel.get("q").tag, requeue=False)
    channel.quiet()


def kill_by_nack(channel: Channel, clock: VirtualClock) -> None:
    channel.nack(channel.get("q").tag, requeue=False)
    channel.quiet()


def kill_by_time(channel: Channel, clock: VirtualClock) -> None:
    clock.advance(1)


def kill_by_length(channel: Channel, clock: VirtualClock) -> None:
    for _ in range(3):
        channel.publish("q", "more")
    channel.quiet()


def kill_by_limit(channel: Channel, clock: VirtualClock) -> None:
    for _ in range(2):
        channel.nack(channel.get("q").tag)
    channel.quiet()


REASONS = pytest.mark.parametrize(
    ("kill", "arguments", "reason"),
    [
        (kill_by_reject, {}, "rejected"),
        (kill_by_nack, {}, "rejected"),
        (kill_by_time, {"x-message-ttl": 1000}, "expired"),
        (kill_by_length, {"x-max-length": 3}, "maxlen"),
        (kill_by_limit, {"x-delivery-limit": 1}, "delivery_limit"),
    ],
)


@REASONS
def test_a_dead_letter_tells_its_death(
    channel: Channel,
    clock: VirtualClock,
    kill: Callable[[Channel, VirtualClock], None],
    arguments: dict[str, object],
    reason: str,
) -> None:
    channel.exchange("x", "direct")
    channel.declare("dead")
    declare(channel, **arguments)
    channel.bind("q", "x", "key")
    channel.publish("key", "a", exchange="x", headers={"mine": 1}, message_id="m")
    channel.quiet()
    kill(channel, clock)
    dead = channel.get("dead")
    assert (dead.text, dead.properties.message_id, dead.headers["mine"]) == ("a", "m", 1)
    assert (dead.method.exchange, dead.method.routing_key) == ("", "dead")
    (death,) = dead.headers["x-death"]
    now = datetime.fromtimestamp(clock() // 1_000_000, UTC)
    assert death == {
        "count": 1,
        "reason": reason,
        "queue": "q",
        "time": now,
        "exchange": "x",
        "routing-keys": ["key"],
    }
    for which in ("first", "last"):
        assert dead.headers[f"x-{which}-death-reason"] == reason
        assert dead.headers[f"x-{which}-death-queue"] == "q"
        assert dead.headers[f"x-{which}-death-exchange"] == "x"


@REASONS
def test_each_death_leaves_the_queue_without_a_trace(
    channel: Channel,
    clock: VirtualClock,
    broker: Broker,
    kill: Callable[[Channel, VirtualClock], None],
    arguments: dict[str, object],
    reason: str,
) -> None:
    channel.declare("dead")
    declare(channel, **arguments)
    channel.publish("q", "a")
    channel.quiet()
    kill(channel, clock)
    assert broker.depth("dead") == 1
    assert "a" not in channel.get_all("q")
    assert broker.unacked("q") == 0


def test_the_clock_of_the_tests_is_a_real_time() -> None:
    assert datetime.fromtimestamp(START_US // 1_000_000, UTC).year == 2023


def test_an_acked_message_is_no_dead_letter(channel: Channel) -> None:
    channel.declare("dead")
    declare(channel)
    channel.publish("q", "a")
    channel.ack(channel.get("q").tag)
    assert channel.count("dead") == 0


def test_purged_and_deleted_messages_are_no_dead_letters(channel: Channel) -> None:
    channel.declare("dead")
    declare(channel)
    channel.publish("q", "a")
    channel.purge("q")
    channel.publish("q", "b")
    channel.delete("q")
    assert channel.count("dead") == 0


def test_without_a_key_of_its_own_a_dead_letter_keeps_its_key(channel: Channel) -> None:
    channel.exchange("graves", "direct")
    channel.declare("dead")
    channel.bind("dead", "graves", "q")
    channel.declare("q", arguments={"x-dead-letter-exchange": "graves"})
    channel.publish("q", "a")
    channel.reject(channel.get("q").tag, requeue=False)
    dead = channel.get("dead")
    assert (dead.method.exchange, dead.method.routing_key) == ("graves", "q")


def test_a_dead_letter_exchange_may_be_missing_and_come_later(channel: Channel, broker: Broker) -> None:
    channel.declare("dead")
    channel.declare("q", arguments={"x-dead-letter-exchange": "later"})
    channel.publish("q", "lost")
    channel.reject(channel.get("q").tag, requeue=False)
    channel.exchange("later")
    channel.bind("dead", "later")
    channel.publish("q", "kept")
    channel.reject(channel.get("q").tag, requeue=False)
    assert channel.get_all("dead") == ["kept"]
    assert broker.unacked("q") == 0


def test_a_dead_letter_key_without_an_exchange_is_refused(channel: Channel) -> None:
    channel.send(commands.Queue.Declare(queue="q", arguments={"x-dead-letter-routing-key": "k"}))
    assert channel.error().text == (
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': "
        "routing_key_but_no_dlx_defined"
    )


def test_a_dead_letter_has_a_key_that_fits_into_a_message(channel: Channel) -> None:
    arguments = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k" * 256}
    with pytest.raises(ClosedByBroker, match="routing_key_longer_than_255_bytes"):
        channel.declare("q", arguments=arguments)


def test_a_dead_letter_exchange_may_route_to_many_queues(channel: Channel) -> None:
    channel.exchange("graves")
    for queue in ("one", "two"):
        channel.declare(queue)
        channel.bind(queue, "graves")
    channel.declare("q", arguments={"x-dead-letter-exchange": "graves"})
    channel.publish("q", "a")
    channel.reject(channel.get("q").tag, requeue=False)
    assert channel.get_all("one") == channel.get_all("two") == ["a"]


def test_dead_letters_keep_their_order(channel: Channel) -> None:
    channel.declare("dead")
    declare(channel)
    for number in range(100):
        channel.publish("q", str(number))
    for _ in range(100):
        channel.get("q")
    channel.nack(0, multiple=True, requeue=False)
    assert channel.get_all("dead") == [str(number) for number in range(100)]


def reject_from(channel: Channel, queue: str) -> Got:
    got = channel.get(queue)
    assert got is not None
    channel.reject(got.tag, requeue=False)
    return got


def test_deaths_of_the_same_kind_are_counted(channel: Channel) -> None:
    declare(channel, to="q2")
    declare(channel, "q2", to="q")
    channel.publish("q", "a")
    for _ in range(3):
        reject_from(channel, "q")
        reject_from(channel, "q2")
    deaths = channel.get("q").headers["x-death"]
    assert [(each["queue"], each["count"]) for each in deaths] == [("q2", 3), ("q", 3)]


def test_the_first_death_stays_the_first(channel: Channel, clock: VirtualClock) -> None:
    declare(channel, to="second", **{"x-message-ttl": 1000})
    declare(channel, "second", to="dead")
    channel.declare("dead")
    channel.publish("q", "a")
    channel.quiet()
    clock.advance(1)
    reject_from(channel, "second")
    headers = channel.get("dead").headers
    assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == ("expired", "q")
    assert (headers["x-last-death-reason"], headers["x-last-death-queue"]) == ("rejected", "second")


def test_a_dead_letter_tells_of_its_first_and_of_its_last_death(channel: Channel) -> None:
    declare(channel, "first", to="last")
    declare(channel, "last", to="end")
    channel.declare("end")
    channel.publish("first", "1")
    for queue in ("first", "last"):
        reject_from(channel, queue)
    headers = channel.get("end").headers
    assert {name: value for name, value in headers.items() if name != "x-death"} == {
        "x-first-death-queue": "first",
        "x-first-death-reason": "rejected",
        "x-first-death-exchange": "",
        "x-last-death-queue": "last",
        "x-last-death-reason": "rejected",
        "x-last-death-exchange": "",
    }


def test_a_cycle_without_a_rejection_is_dropped(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, "one", to="two", **{"x-message-ttl": 1000})
    declare(channel, "two", to="one", **{"x-message-ttl": 1000})
    channel.publish("one", "a")
    channel.quiet()
    clock.advance(1)
    assert (broker.depth("one"), broker.depth("two")) == (0, 1)
    clock.advance(1)
    assert (broker.depth("one"), broker.depth("two")) == (0, 0)


def test_a_cycle_with_a_rejection_goes_on(channel: Channel, clock: VirtualClock, broker: Broker) -> None:
    declare(channel, "one", to="two")
    declare(channel, "two", to="one", **{"x-message-ttl": 1000})
    channel.publish("one", "a")
    for _ in range(3):
        reject_from(channel, "one")
        channel.quiet()
        clock.advance(1)
        assert broker.depth("one") == 1


def test_a_queue_that_dead_letters_to_itself_drops_what_expires(
    channel: Channel, clock: VirtualClock, broker: Broker
) -> None:
    declare(channel, to="q", **{"x-message-ttl": 1000})
    channel.publish("q", "a")
    channel.quiet()
    clock.advance(1)
    assert broker.depth("q") == 0


def test_a_transient_message_dies_transient_and_a_persistent_one_persistent(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    channel.declare("dead")
    declare(channel)
    channel.publish("q", "transient", delivery_mode=1)
    channel.publish("q", "persistent")
    for _ in range(2):
        reject_from(channel, "q")
    channel.quiet()
    broker.restart()
    assert open_channel().get_all("dead") == ["persistent"]


def everywhere(channel: Channel) -> list[str]:
    """What the two queues hold together; read by consumers, who are served once the store has settled."""
    found: list[str] = []
    for queue in ("q", "dead"):
        count = channel.count(queue)
        channel.consume(queue, queue, no_ack=True)
        found += channel.texts(count)
    return found


@pytest.mark.histories(sample=6, full=25)
def test_whenever_the_broker_dies_a_dead_letter_is_in_one_of_the_queues(
    broker: Broker, open_channel: Callable[[], Channel], seed: int
) -> None:
    random = Random(seed)
    channel = open_channel().confirm_select()
    channel.declare("dead")
    declare(channel, **({"x-delivery-limit": 0} if seed % 2 else {}))
    channel.publish_confirmed("dead", "warm")
    channel.publish_confirmed("q", "a", "b", "c")
    for _ in range(3):
        channel.get("q")
    other = channel.client.channel()
    with channel.client.together():
        for tag in (1, 2, 3):
            channel.nack(tag, requeue=bool(seed % 2))
    for _ in range(random.randrange(3)):
        other.call(commands.Channel.Flow(active=True), commands.Channel.FlowOk)
    broker.crash(random)
    broker.start()
    assert sorted(everywhere(open_channel())) == ["a", "b", "c", "warm"]


def test_a_reject_while_the_disk_is_full_loses_nothing(
    channel: Channel, open_channel: Callable[[], Channel], broker: Broker
) -> None:
    publisher = open_channel().confirm_select()
    channel.declare("dead")
    declare(channel)
    publisher.publish_confirmed("dead", "warm")
    publisher.publish_confirmed("q", "a", "b")
    channel.get("q")
    channel.get("q")
    broker.faults.full_disk()
    publisher.publish("dead", "refused")
    assert publisher.confirmed(1) == {"ack": 0, "nack": 1}
    channel.reject(1, requeue=False)
    channel.nack(2)
    other = open_channel()
    other.quiet()
    broker.faults.heal_disk()
    publisher.client.own.next(commands.Connection.Blocked)
    publisher.client.own.next(commands.Connection.Unblocked)
    channel.client.vanish()
    broker.wait_until_unacked("q", 0)
    assert sorted(everywhere(other)) == ["a", "b", "warm"]


def test_copies_named_in_cc_are_told_and_followed(channel: Channel) -> None:
    channel.exchange("x", "direct")
    channel.exchange("graves", "direct")
    for queue in ("one", "two"):
        channel.declare(queue)
        channel.bind(queue, "graves", f"key-{queue}")
    channel.declare("q", arguments={"x-dead-letter-exchange": "graves"})
    channel.bind("q", "x", "key-one")
    headers: dict[str, Any] = {"CC": ["key-two"], "BCC": ["secret"]}
    channel.publish("key-one", "a", exchange="x", headers=headers)
    reject_from(channel, "q")
    one, two = channel.get("one"), channel.get("two")
    assert one.headers["x-death"][0]["routing-keys"] == ["key-one", "key-two"]
    assert two.text == "a"
    assert "BCC" not in one.headers
