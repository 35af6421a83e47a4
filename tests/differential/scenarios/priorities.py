"""Priorities of messages and of consumers; single active consumer."""

from tests.differential.channel import Channel
from tests.differential.play import Play
from tests.differential.wire import Typed

SINGLE = {"x-single-active-consumer": True}


def _take_all(channel: Channel, queue: str = "q") -> None:
    empty = channel.count_of("basic.get-empty")
    while channel.count_of("basic.get-empty") == empty and channel.is_open:
        channel.basic_get(queue, no_ack=True)


def the_highest_comes_first(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-priority": 5})
    for index, priority in enumerate((0, 5, 3, 5, 9, 255, 1)):
        channel.publish(f"{index} with {priority}", key="q", priority=priority)
    channel.publish("without", key="q")
    _take_all(channel)


def a_queue_without_priorities_ignores_them(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    for priority in (0, 5, 3):
        channel.publish(str(priority), key="q", priority=priority)
    _take_all(channel)


def requeueing_keeps_the_place_within_a_priority(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-priority": 2})
    for body, priority in (("a", 0), ("b", 2), ("c", 2), ("d", 0)):
        channel.publish(body, key="q", priority=priority)
    for _ in range(3):
        channel.basic_get("q")
    channel.basic_nack(3)
    channel.basic_nack(1)
    channel.basic_nack(2)
    _take_all(channel)


def a_late_high_priority_overtakes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-priority": 2})
    channel.basic_qos(0, 1)
    for body in "ab":
        channel.publish(body, key="q", priority=0)
    channel.basic_consume("q", "c")
    channel.publish("urgent", key="q", priority=2)
    channel.basic_ack(1)
    channel.basic_ack(2)


def a_low_priority_expires_when_it_is_the_head(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    play.hide_counts("q")
    channel.queue_declare("q", arguments=letters | {"x-max-priority": 2})
    channel.publish("high, lasting", key="q", priority=2)
    channel.publish("low, expiring", key="q", priority=0, expiration="500")  # the get comes first
    channel.basic_get("q", no_ack=True)
    play.await_count("dead", 1)
    _take_all(channel, "dead")


def purging_a_priority_queue(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-priority": 2})
    for priority in (0, 1, 2):
        channel.publish("x", key="q", priority=priority)
    channel.queue_purge("q")


def a_consumer_of_higher_priority_is_served_first(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "low")
    channel.basic_consume("q", "high", arguments={"x-priority": 10})
    channel.basic_consume("q", "high-too", arguments={"x-priority": Typed("l", 10)})
    channel.basic_consume("q", "lowest", arguments={"x-priority": -1})
    for body in "abcde":
        channel.publish(body, key="q")
    channel.basic_ack(1)
    channel.basic_ack(2)
    channel.basic_ack(3)
    channel.publish("f", key="q")


def an_unlimited_consumer_of_higher_priority_takes_all(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", "low")
    channel.basic_consume("q", "high", arguments={"x-priority": 1})
    for body in "abc":
        channel.publish(body, key="q")
    channel.basic_cancel("high")
    channel.publish("d", key="q")


def one_active_consumer_at_a_time(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    first.queue_declare("q", arguments=SINGLE)
    first.basic_consume("q", "c1")
    second.basic_consume("q", "c2")
    first.basic_consume("q", "c3")
    for body in "abc":
        first.publish(body, key="q")
    first.basic_cancel("c1")
    first.publish("d", key="q")
    second.channel_close(200, "bye", 0, 0)
    first.publish("e", key="q")


def the_active_consumers_prefetch_does_not_let_others_in(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    first.queue_declare("q", arguments=SINGLE)
    first.basic_qos(0, 1)
    first.basic_consume("q", "c1")
    second.basic_consume("q", "c2")
    for body in "abc":
        first.publish(body, key="q")
    first.basic_ack(1)
    first.basic_nack(2)
    first.channel_close(200, "bye", 0, 0)


def an_exclusive_consumer_of_a_single_active_queue(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", arguments=SINGLE)
    channel.basic_consume("q", "c1", exclusive=True)
    play.channel(2).basic_consume("q", "c2")


def priorities_among_single_active_consumers(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", arguments=SINGLE)
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2", arguments={"x-priority": 10})
    channel.publish("a", key="q")
    channel.basic_consume("q", "c3", arguments={"x-priority": 20})
    channel.basic_cancel("c1")
    channel.publish("b", key="q")


def a_single_active_consumers_messages_come_back_in_order(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    first.queue_declare("q", arguments=SINGLE)
    for body in "abc":
        first.publish(body, key="q")
    first.basic_consume("q", "c1")
    second.basic_consume("q", "c2")
    first.basic_ack(2)
    first.channel_close(200, "bye", 0, 0)
