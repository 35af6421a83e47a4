"""Queues with a maximum: dropping from the head, refusing, refusing with dead letters."""

from tests.differential.channel import Channel
from tests.differential.play import Play


def _take_all(channel: Channel, queue: str) -> None:
    empty = channel.count_of("basic.get-empty")
    while channel.count_of("basic.get-empty") == empty and channel.is_open:
        channel.basic_get(queue, no_ack=True)


def the_head_is_dropped(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 2})
    for body in "abcd":
        channel.publish(body, key="q")
    _take_all(channel, "q")


def bytes_are_counted(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length-bytes": 10})
    for body in ("12345", "67890", "x", "a long one that never fits", "yy"):
        channel.publish(body, key="q")
    _take_all(channel, "q")


def properties_do_not_count_as_bytes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length-bytes": 2})
    channel.publish("1", key="q", headers={"long": "x" * 100})
    channel.publish("2", key="q")
    _take_all(channel, "q")


def both_limits_at_once(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 2, "x-max-length-bytes": 4})
    for body in ("1", "22", "333", "4", "5"):
        channel.publish(body, key="q")
    _take_all(channel, "q")


def unacked_messages_do_not_count(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1})
    channel.publish("a", key="q")
    channel.basic_get("q")
    channel.publish("b", key="q")
    channel.publish("c", key="q")
    channel.basic_nack(1)
    _take_all(channel, "q")


def requeueing_into_a_full_queue(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 2})
    for body in "ab":
        channel.publish(body, key="q")
    channel.basic_get("q")
    channel.basic_get("q")
    for body in "cd":
        channel.publish(body, key="q")
    channel.basic_nack(2)
    channel.basic_nack(1)
    _take_all(channel, "q")


def requeueing_into_a_full_queue_that_rejects(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish("a", key="q")
    channel.basic_get("q")
    channel.publish("b", key="q")
    channel.basic_nack(1)
    channel.confirm_select()
    channel.publish("c", key="q")
    _take_all(channel, "q")


def a_maximum_of_zero(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q", arguments={"x-max-length": 0})
    channel.publish("a", key="q")
    channel.queue_declare("p", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.publish("b", key="p")
    channel.basic_consume("q", "c")
    channel.publish("straight to the consumer", key="q")
    channel.basic_consume("p", "d")
    channel.publish("and here?", key="p")


def a_dropped_message_is_confirmed(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q", durable=True, arguments={"x-max-length": 1})
    for body in "abc":
        channel.publish(body, key="q", delivery_mode=2)


def a_refused_message_with_dlx_is_dead_lettered(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("dead")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish-dlx"}
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=arguments | letters)
    for body in "abc":
        channel.publish(body, key="q", headers={"mine": body})
    _take_all(channel, "dead")
    _take_all(channel, "q")


def a_refused_message_is_not_dead_lettered_by_reject_publish(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("dead")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=arguments | letters)
    for body in "ab":
        channel.publish(body, key="q")
    _take_all(channel, "dead")
    _take_all(channel, "q")


def refused_by_bytes(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q", arguments={"x-max-length-bytes": 5, "x-overflow": "reject-publish"})
    for body in ("1234", "56", "7", "8", "a long one"):
        channel.publish(body, key="q")
    _take_all(channel, "q")


def refused_without_confirms_is_silent(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish("a", key="q", mandatory=True)
    channel.publish("b", key="q", mandatory=True)
    _take_all(channel, "q")


def with_priorities_the_highest_is_the_head_and_dropped_first(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 3, "x-max-priority": 5})
    for body, priority in (("a", 1), ("b", 5), ("c", 0), ("d", 3), ("e", 1)):
        channel.publish(body, key="q", priority=priority)
    _take_all(channel, "q")
