"""basic.qos: per consumer, per channel, both; what it does not apply to."""

from tests.differential.channel import Channel
from tests.differential.play import Play


def _filled(play: Play, bodies: str, *queues: str) -> Channel:
    channel = play.channel()
    for queue in queues or ("q",):
        channel.queue_declare(queue)
        for body in bodies:
            channel.publish(body, key=queue)
    return channel


def per_consumer(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 2)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c2")
    channel.basic_ack(1)
    channel.basic_ack(3)
    channel.basic_ack(2)


def a_change_is_for_later_consumers(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 5)
    channel.basic_ack(1)
    channel.basic_consume("q", "c2")


def shared_by_the_channel(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 3, True)
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2")
    channel.basic_ack(1)
    channel.basic_ack(3, multiple=True)


def both_limits_apply(play: Play) -> None:
    channel = _filled(play, "abcdefgh")
    channel.basic_qos(0, 2)
    channel.basic_qos(0, 3, True)
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2")
    channel.basic_ack(1)
    channel.basic_ack(2)


def raising_the_shared_limit(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 1, True)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 3, True)
    channel.basic_qos(0, 0, True)


def lowering_the_shared_limit(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 3, True)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 1, True)
    channel.basic_ack(1)
    channel.basic_ack(2)
    channel.basic_ack(3)


def a_shared_limit_set_with_deliveries_in_flight(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 2, True)
    channel.publish("d", key="q")
    channel.basic_ack(1)
    channel.basic_ack(2)
    channel.basic_ack(3)


def a_limit_per_consumer_lifts_the_shared_one(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_qos(0, 2, True)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 3)
    channel.basic_consume("q", "c2")
    channel.publish("e", key="q")


def zero_is_unlimited(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_qos(0, 1)
    channel.basic_qos(0, 0)
    channel.basic_consume("q", "c1")


def get_and_no_ack_are_not_limited(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 1)
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2", no_ack=True)


def get_is_outside_the_shared_limit(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_qos(0, 2, True)
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_consume("q", "c1")
    channel.basic_ack(1)
    channel.basic_ack(4)


def a_consumer_without_acks_waits_while_the_shared_limit_is_reached(play: Play) -> None:
    channel = _filled(play, "abcd", "p", "q")
    channel.basic_qos(0, 1, True)
    channel.basic_consume("p", "c1")
    channel.basic_consume("q", "c2", no_ack=True)
    channel.basic_cancel("c1")
    channel.basic_ack(1)


def a_consumer_without_acks_takes_nothing_of_the_shared_limit(play: Play) -> None:
    channel = _filled(play, "abcd", "p", "q")
    channel.basic_qos(0, 2, True)
    channel.basic_consume("q", "c2", no_ack=True)
    channel.basic_consume("p", "c1")
    channel.publish("e", key="q")
    channel.basic_cancel("c1")
    channel.basic_ack(5)


def a_consumer_without_acks_beside_one_with_acks(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_qos(0, 2, True)
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2", no_ack=True)
    with play.at_once():
        for body in "abcdef":
            channel.publish(body, key="q")


def a_consumer_without_acks_on_another_channel_does_not_wait(play: Play) -> None:
    channel, other = _filled(play, "abc"), play.channel(2)
    channel.basic_qos(0, 1, True)
    channel.basic_consume("q", "c1")
    other.basic_consume("q", "c2", no_ack=True)


def nacks_and_rejects_make_room(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c1")
    channel.basic_nack(1, requeue=False)
    channel.basic_reject(2, requeue=False)
    channel.basic_nack(3, requeue=True)


def cancelling_does_not_free_the_shared_limit(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_qos(0, 2, True)
    channel.basic_consume("q", "c1")
    channel.basic_cancel("c1")
    channel.basic_consume("q", "c2")
    channel.basic_ack(1)
    channel.basic_ack(2)


def a_full_consumer_is_passed_over(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c1")
    channel.basic_qos(0, 0)
    channel.basic_consume("q", "c2")
    for body in "abcde":
        channel.publish(body, key="q")
    channel.basic_ack(1)
    for body in "fg":
        channel.publish(body, key="q")


def two_queues_and_one_shared_limit(play: Play) -> None:
    channel = _filled(play, "ab", "p", "q")
    channel.basic_qos(0, 3, True)
    channel.basic_consume("p", "c1")
    channel.basic_consume("q", "c2")
    channel.basic_ack(1)


def recover_makes_room(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_qos(0, 2)
    channel.basic_consume("q", "c1")
    channel.basic_recover(requeue=True)
    channel.basic_ack(3)


def the_largest_prefetch(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_qos(0, 65_535)
    channel.basic_consume("q", "c1")
