"""Methods sent in one write: each one sees what the methods before it on its channel did.

Left out: the counts of `queue.declare-ok`. RabbitMQ answers them before publishes that its queue still has to
work through, so they depend on its speed. `tests/semantics/test_pipelining.py` says what Leveret counts.
"""

from tests.differential.channel import Channel
from tests.differential.play import Play


def _publish(channel: Channel, bodies: str, queue: str = "q", **properties: object) -> None:
    for body in bodies:
        channel.publish(body, key=queue, **properties)


def _queue_with_letters(channel: Channel, **arguments: object) -> None:
    """Declare `q`, whose dead letters go to `dead`."""
    channel.queue_declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=letters | {f"x-{key}": value for key, value in arguments.items()})


def a_get_behind_a_publish_that_goes_to_a_consumer(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "a")
        channel.basic_get("q")


def a_get_behind_a_publish_that_goes_to_a_consumer_without_acks(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_consume("q", "c", no_ack=True)
    with play.at_once():
        _publish(channel, "a")
        channel.basic_get("q")


def a_get_behind_more_publishes_than_the_consumer_takes(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_qos(0, 2)
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "abcd")
        channel.basic_get("q")


def a_get_behind_publishes_beyond_the_length(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1})
    with play.at_once():
        _publish(channel, "ab")
        channel.basic_get("q", no_ack=True)
        channel.basic_get("q", no_ack=True)


def a_get_behind_publishes_beyond_the_bytes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length-bytes": 2})
    with play.at_once():
        _publish(channel, "abcde")
        for _ in range(3):
            channel.basic_get("q", no_ack=True)


def a_get_behind_a_publish_with_a_ttl_of_zero(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    with play.at_once():
        _publish(channel, "a")
        channel.basic_get("q", no_ack=True)


def a_get_behind_a_publish_that_expires_at_once(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    with play.at_once():
        _publish(channel, "a", expiration="0")
        channel.basic_get("q", no_ack=True)
        _publish(channel, "bc", expiration="0")
        _publish(channel, "d")
        channel.basic_get("q", no_ack=True)


def a_message_with_a_ttl_of_zero_goes_to_a_consumer(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    other.basic_qos(0, 1)
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "ab")
        channel.basic_get("q")


def a_purge_behind_publishes_beyond_the_length(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 2})
    with play.at_once():
        _publish(channel, "abcde")
        channel.queue_purge("q")


def a_purge_behind_a_publish_that_goes_to_a_consumer(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_qos(0, 1)
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "abc")
        channel.queue_purge("q")


def a_deletion_behind_publishes_beyond_the_length(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 2})
    with play.at_once():
        _publish(channel, "abcde")
        channel.queue_delete("q")


def a_deletion_if_empty_behind_a_publish_that_has_expired(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    with play.at_once():
        _publish(channel, "a")
        channel.queue_delete("q", if_empty=True)


def a_deletion_behind_a_publish_that_goes_to_a_consumer(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_qos(0, 1)
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "abc")
        channel.queue_delete("q")


def a_consumer_behind_publishes_beyond_the_length(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1})
    with play.at_once():
        _publish(channel, "abc")
        channel.basic_consume("q", "c")


def a_consumer_behind_a_publish_with_a_ttl_of_zero(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    with play.at_once():
        _publish(channel, "a")
        channel.basic_consume("q", "c")


def a_second_consumer_behind_publishes(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    other.basic_consume("q", "first")
    with play.at_once():
        _publish(channel, "abcd")
        channel.basic_consume("q", "second")


def dead_letters_behind_publishes_to_their_queue(play: Play) -> None:
    channel = play.channel()
    _queue_with_letters(channel)
    _publish(channel, "a")
    channel.basic_get("q")
    with play.at_once():
        _publish(channel, "b", "dead")
        channel.basic_reject(1, requeue=False)
    for _ in range(2):
        channel.basic_get("dead", no_ack=True)


def a_return_to_a_full_queue_behind_publishes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1})
    _publish(channel, "a")
    channel.basic_get("q")
    with play.at_once():
        _publish(channel, "bc")
        channel.basic_nack(1)
    for _ in range(2):
        channel.basic_get("q", no_ack=True)


def a_return_behind_a_publish_that_goes_to_a_consumer(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    _publish(channel, "a")
    channel.basic_get("q")
    other.basic_consume("q", "c")
    with play.at_once():
        _publish(channel, "b")
        channel.basic_nack(1)


def letters_of_publishes_beyond_the_length_keep_their_order(play: Play) -> None:
    channel = play.channel()
    _queue_with_letters(channel, **{"max-length": 1})
    with play.at_once():
        _publish(channel, "abcd")
        channel.basic_get("q", no_ack=True)
    for _ in range(4):
        channel.basic_get("dead", no_ack=True)


def an_exchange_that_goes_with_its_last_queue(play: Play) -> None:
    """Auto-delete, as in BindingLifecycle of the Java client's tests."""
    channel, other = play.channel(1), play.channel(2)
    channel.exchange_declare("x", "direct", auto_delete=True)
    other.queue_declare("q", auto_delete=True)
    other.queue_bind("q", "x", "k")
    other.basic_consume("q", "c", no_ack=True)
    with play.at_once():
        channel.publish("a", "x", "k")
        channel.basic_get("q", no_ack=True)
    other.basic_cancel("c")
    with play.at_once():
        other.queue_declare("q", auto_delete=True)
        other.queue_bind("q", "x", "k")


def an_unbinding_between_publishes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    with play.at_once():
        channel.queue_bind("q", "amq.direct", "k")
        channel.publish("bound", "amq.direct", "k", mandatory=True)
        channel.queue_unbind("q", "amq.direct", "k")
        channel.publish("unbound", "amq.direct", "k", mandatory=True)
        channel.basic_get("q", no_ack=True)
        channel.basic_get("q", no_ack=True)


def a_queue_deleted_and_declared_between_publishes(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    with play.at_once():
        _publish(channel, "ab")
        channel.queue_delete("q")
        channel.queue_declare("q")
        _publish(channel, "c")
        channel.basic_get("q", no_ack=True)
        channel.basic_get("q", no_ack=True)
