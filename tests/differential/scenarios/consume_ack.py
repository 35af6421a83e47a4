"""Consuming, cancelling, and acknowledgements of every kind."""

from tests.differential.channel import Channel
from tests.differential.play import Play


def _filled(play: Play, bodies: str, number: int = 1, **declare: object) -> Channel:
    channel = play.channel(number)
    channel.queue_declare("q", **declare)
    with play.at_once():
        for body in bodies:
            channel.publish(body, key="q")
    return channel


def consuming_and_acking_one_by_one(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_consume("q", "c")
    channel.publish("d", key="q")
    for tag in (2, 1, 4, 3):
        channel.basic_ack(tag)


def acking_several(play: Play) -> None:
    channel = _filled(play, "abcdef")
    channel.basic_consume("q", "c")
    channel.basic_ack(2)
    channel.basic_ack(4, multiple=True)
    channel.basic_ack(0, multiple=True)
    channel.basic_ack(0, multiple=True)
    channel.basic_ack(6, multiple=True)


def acking_several_where_the_named_one_is_settled(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_consume("q", "c")
    channel.basic_ack(3)
    channel.basic_ack(3, multiple=True)


def acking_twice(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_consume("q", "c")
    channel.basic_ack(1)
    channel.basic_ack(1)
    play.channel(2).basic_get("q", no_ack=True)


def acking_on_another_channel(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_get("q")
    play.channel(2).basic_ack(1)
    channel.basic_ack(1)


def acking_a_no_ack_delivery(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_consume("q", "c", no_ack=True)
    channel.basic_ack(1)


def multiple_does_not_reach_across_a_gap_of_no_ack_tags(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q")
    channel.basic_ack(3, multiple=True)


def tags_are_shared_by_get_and_deliver(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_get("q")
    channel.basic_get("q", no_ack=True)
    channel.basic_consume("q", "c")
    channel.basic_ack(0, multiple=True)


def multiple_reaches_across_queues_and_consumers(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.queue_declare("p")
    channel.publish("c", key="p")
    channel.basic_consume("q", "c1")
    channel.basic_consume("p", "c2")
    channel.basic_nack(3, multiple=True, requeue=False)


def a_nacked_message_comes_back_first(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_nack(1)
    for _ in range(3):
        channel.basic_get("q", no_ack=True)


def requeueing_in_any_order_restores_the_order(play: Play) -> None:
    channel = _filled(play, "abcdef")
    for _ in range(5):
        channel.basic_get("q")
    for tag in (3, 1, 5):
        channel.basic_reject(tag, requeue=True)
    channel.basic_nack(0, multiple=True)
    for _ in range(7):
        channel.basic_get("q", no_ack=True)


def rejecting_without_requeue_drops(play: Play) -> None:
    channel = _filled(play, "abcd")
    for _ in range(4):
        channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_nack(3, multiple=True, requeue=False)
    channel.basic_reject(4, requeue=True)
    channel.basic_get("q", no_ack=True)


def requeueing_to_a_waiting_consumer(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c")
    channel.basic_nack(1)
    channel.basic_nack(2)
    channel.basic_reject(3, requeue=True)
    channel.basic_ack(4)


def a_nack_goes_to_the_next_consumer(play: Play) -> None:
    first, second = _filled(play, ""), play.channel(2)
    first.basic_qos(0, 1)
    second.basic_qos(0, 1)
    first.basic_consume("q", "c1")
    second.basic_consume("q", "c2")
    first.publish("a", key="q")
    first.basic_nack(1)
    second.basic_nack(1)


def recovering(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_recover(requeue=True)
    channel.basic_get("q")
    channel.basic_recover_async(requeue=True)
    channel.basic_recover(requeue=True)
    for _ in range(3):
        channel.basic_get("q", no_ack=True)


def recovering_with_a_consumer(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_consume("q", "c")
    channel.basic_ack(2)
    channel.basic_recover(requeue=True)
    channel.basic_ack(1)


def round_robin_among_equals(play: Play) -> None:
    channel = _filled(play, "")
    for tag in ("c1", "c2", "c3"):
        channel.basic_consume("q", tag)
    for body in "abcdefg":
        channel.publish(body, key="q")


def round_robin_over_channels(play: Play) -> None:
    first, second = _filled(play, ""), play.channel(2)
    first.basic_consume("q", "c1")
    second.basic_consume("q", "c2")
    first.basic_consume("q", "c3")
    for body in "abcdef":
        first.publish(body, key="q")


def round_robin_of_a_backlog(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2")
    with play.at_once():
        for body in "abcdef":
            channel.publish(body, key="q")


def the_first_consumer_takes_the_backlog(play: Play) -> None:
    channel = _filled(play, "abcd")
    channel.basic_consume("q", "c1", no_ack=True)
    channel.basic_consume("q", "c2", no_ack=True)
    channel.publish("e", key="q")
    channel.publish("f", key="q")


def cancelling_leaves_deliveries_in_flight(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_consume("q", "c")
    channel.basic_cancel("c")
    channel.publish("c", key="q")
    channel.basic_ack(1)
    channel.basic_nack(2)
    channel.basic_get("q", no_ack=True)


def cancelling_what_is_not_there(play: Play) -> None:
    channel = play.channel()
    channel.basic_cancel("never")
    channel.basic_cancel("")
    channel.basic_cancel("never", nowait=True)


def cancelling_with_nowait(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c", nowait=True)
    channel.publish("a", key="q")
    channel.basic_cancel("c", nowait=True)
    channel.publish("b", key="q")


def a_tag_can_be_used_again_after_cancel(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c")
    channel.basic_cancel("c")
    channel.basic_consume("q", "c")
    channel.publish("a", key="q")


def tags_made_by_the_server(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_consume("q", "")
    channel.basic_consume("q", "")
    channel.publish("c", key="q")


def an_exclusive_consumer_is_alone(play: Play) -> None:
    first = _filled(play, "")
    first.basic_consume("q", "c1", exclusive=True)
    play.channel(2).basic_consume("q", "c2")
    play.channel(3).basic_consume("q", "c3", exclusive=True)
    play.channel(4).basic_get("q")
    first.basic_cancel("c1")
    play.channel(5).basic_consume("q", "c4")
    play.channel(6).basic_consume("q", "c5", exclusive=True)


def deleting_the_queue_cancels_its_consumers(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2")
    play.channel(2).queue_delete("q")
    channel.basic_ack(1)
    channel.basic_nack(2)
    channel.basic_cancel("c1")
    channel.basic_ack(1)


def a_client_without_the_capability_is_not_told(play: Play) -> None:
    old = play.connect(capabilities={})
    channel = old.channel(1).open()
    channel.queue_declare("q")
    channel.basic_consume("q", "c1")
    channel.queue_delete("q")
    channel.queue_declare("q")
    channel.basic_consume("q", "c1")


def a_consumer_cancelled_by_the_server_frees_its_tag(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c1")
    channel.queue_delete("q")
    channel.queue_declare("q")
    channel.basic_consume("q", "c1")
    channel.publish("a", key="q")


def no_local_is_ignored(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c", no_local=True)
    channel.publish("a", key="q")


def unacked_messages_are_not_counted(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_get("q")
    channel.queue_declare("q", passive=True)
    channel.queue_purge("q")
    channel.queue_delete("q", if_empty=True)


def an_error_requeues_what_the_channel_held(play: Play) -> None:
    channel = _filled(play, "abc")
    channel.basic_consume("q", "c")
    channel.basic_ack(2)
    channel.basic_ack(99)
    other = play.channel(2)
    for _ in range(3):
        other.basic_get("q", no_ack=True)


def redelivered_is_per_message(play: Play) -> None:
    channel = _filled(play, "ab")
    channel.basic_get("q")
    channel.basic_nack(1)
    channel.publish("c", key="q")
    for _ in range(3):
        channel.basic_get("q")


def a_priority_argument_that_is_no_number(play: Play) -> None:
    channel = _filled(play, "")
    channel.basic_consume("q", "c", arguments={"x-priority": "high"})
    play.channel(2).basic_consume("q", "c", arguments={"x-cancel-on-ha-failover": 5})
    play.channel(3).basic_consume("q", "c", arguments={"x-unheard-of": 5})
