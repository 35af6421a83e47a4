"""Methods sent in one write: each one sees what the methods before it on its channel did.

`tests/differential/scenarios/pipelining.py` compares most of it with RabbitMQ. Here is what depends on
RabbitMQ's speed there (the counts of a declaration), and what takes many messages.
"""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.semantics.client import Channel


def pipeline(channel: Channel, count: int, *methods: commands.Frame) -> None:
    """Publish so many messages to `q`, then send the methods, all in one write."""
    with channel.client.together():
        for number in range(count):
            channel.publish("q", str(number), delivery_mode=1)
        for method in methods:
            channel.send(method)


def counts(channel: Channel) -> tuple[int, int]:
    """The ready messages and the consumers that the next `queue.declare-ok` tells."""
    told = channel.answer(commands.Queue.DeclareOk).method
    return told.message_count, told.consumer_count


def texts(channel: Channel) -> list[str]:
    """The bodies of all deliveries that have come when the broker has nothing more to say."""
    return [each.text for each in channel.quiet()]


COUNT = commands.Queue.Declare(queue="q", passive=True)
GET = commands.Basic.Get(queue="q", no_ack=True)


def test_a_declaration_counts_what_is_left_beyond_the_length(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length": 2})
    pipeline(channel, 5, COUNT)
    assert counts(channel) == (2, 0)


def test_a_declaration_counts_what_is_left_of_thousands_of_publishes(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length": 2})
    pipeline(channel, 5000, COUNT)
    assert counts(channel) == (2, 0)


def test_a_declaration_does_not_count_what_has_expired(channel: Channel) -> None:
    channel.declare("q", arguments={"x-message-ttl": 0})
    pipeline(channel, 5, COUNT)
    assert counts(channel) == (0, 0)


def test_a_declaration_does_not_count_what_goes_to_a_consumer(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q")
    pipeline(channel, 5, COUNT)
    assert counts(channel) == (0, 1)
    assert texts(channel) == ["0", "1", "2", "3", "4"]


def test_a_get_finds_none_of_thousands_that_have_expired(channel: Channel) -> None:
    channel.declare("q", arguments={"x-message-ttl": 0})
    pipeline(channel, 3000, GET)
    channel.answer(commands.Basic.GetEmpty)


def test_consume_publish_and_get_in_one_write(channel: Channel) -> None:
    channel.declare("q")
    with channel.client.together():
        channel.send(commands.Basic.Consume(queue="q", consumer_tag="c"))
        channel.publish("q", "for the consumer")
        channel.send(GET)
    channel.answer(commands.Basic.ConsumeOk)
    channel.answer(commands.Basic.GetEmpty)
    assert texts(channel) == ["for the consumer"]


def test_an_ack_gives_the_next_message_to_the_consumer_and_not_to_a_get(channel: Channel) -> None:
    channel.declare("q")
    channel.qos(1)
    channel.consume("q")
    pipeline(channel, 2)
    assert texts(channel) == ["0"]
    with channel.client.together():
        channel.ack(1)
        channel.send(GET)
    channel.answer(commands.Basic.GetEmpty)
    assert texts(channel) == ["1"]


def test_a_cancelled_consumer_has_what_was_published_before(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q")
    pipeline(channel, 2, commands.Basic.Cancel(consumer_tag="c"))
    channel.answer(commands.Basic.CancelOk)
    assert texts(channel) == ["0", "1"]


def test_an_auto_delete_queue_delivers_what_was_published_before_it_goes(channel: Channel) -> None:
    channel.declare("q", durable=False, auto_delete=True)
    channel.consume("q")
    pipeline(channel, 2, commands.Basic.Cancel(consumer_tag="c"))
    channel.answer(commands.Basic.CancelOk)
    assert texts(channel) == ["0", "1"]


def test_a_shared_limit_holds_for_what_is_published_after_it(channel: Channel) -> None:
    channel.declare("q")
    channel.consume("q")
    pipeline(channel, 3, commands.Basic.Qos(prefetch_count=1, global_=True))
    channel.answer(commands.Basic.QosOk)
    assert texts(channel) == ["0", "1", "2"]
    channel.publish("q", "later")
    assert not channel.quiet()


def test_a_commit_finds_the_room_that_a_consumer_makes(channel: Channel) -> None:
    channel.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    consumer = channel.client.channel()
    consumer.consume("q")
    committing = channel.client.channel().tx_select()
    with channel.client.together():
        channel.publish("q", "published")
        committing.publish("q", "committed")
        committing.send(commands.Tx.Commit())
    committing.answer(commands.Tx.CommitOk)
    assert texts(consumer) == ["published", "committed"]


@pytest.mark.parametrize("count", [3, 3000])
def test_dead_letters_beyond_the_length_are_all_but_the_last(channel: Channel, count: int) -> None:
    channel.declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.declare("q", arguments={"x-max-length": 1} | letters)
    pipeline(channel, count, GET)
    assert channel.answer(commands.Basic.GetOk).text == str(count - 1)
    assert channel.count("dead") == count - 1
