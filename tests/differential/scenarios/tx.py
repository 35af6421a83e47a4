"""Transactions: publishes and settlements kept back until commit."""

from tests.differential.play import Play


def publishes_wait_for_commit(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.tx_select()
    channel.tx_select()
    channel.publish("a", key="q")
    channel.publish("b", key="q")
    channel.tx_commit()
    channel.publish("c", key="q")
    channel.tx_rollback()
    channel.tx_commit()
    for _ in range(3):
        channel.basic_get("q", no_ack=True)


def acks_wait_for_commit(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    for body in "abc":
        channel.publish(body, key="q")
    channel.tx_select()
    for _ in range(3):
        channel.basic_get("q")
    channel.basic_ack(1)
    channel.basic_nack(2)
    channel.basic_reject(3, requeue=False)
    channel.tx_commit()
    channel.basic_get("q", no_ack=True)


def acks_rolled_back_can_be_given_again(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    for body in "abc":
        channel.publish(body, key="q")
    channel.tx_select()
    for _ in range(3):
        channel.basic_get("q")
    channel.basic_ack(2, multiple=True)
    channel.basic_nack(3)
    channel.tx_rollback()
    channel.basic_ack(1)
    channel.basic_ack(3, multiple=True)
    channel.tx_commit()


def an_ack_twice_in_one_transaction(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish("a", key="q")
    channel.tx_select()
    channel.basic_get("q")
    channel.tx_commit()
    channel.publish("b", key="q")
    channel.tx_commit()
    channel.basic_ack(1)
    channel.basic_ack(1)


def an_unknown_tag_in_a_transaction(play: Play) -> None:
    channel = play.channel()
    channel.tx_select()
    channel.basic_ack(7)


def a_missing_exchange_in_a_transaction(play: Play) -> None:
    channel = play.channel()
    channel.tx_select()
    channel.publish("a", "nope", "k")


def returns_come_before_commit_ok(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.tx_select()
    channel.publish("a", key="nowhere", mandatory=True)
    channel.publish("b", key="q", mandatory=True)
    channel.publish("c", key="nowhere", mandatory=True)
    channel.tx_commit()


def routing_happens_at_commit_or_before(play: Play) -> None:
    """Bound when published, unbound when committed; and the other way round."""
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    channel.tx_select()
    other.queue_bind("q", "amq.direct", "k")
    channel.publish("bound when published", "amq.direct", "k", mandatory=True)
    other.queue_unbind("q", "amq.direct", "k")
    channel.publish("bound when committed", "amq.direct", "l", mandatory=True)
    other.queue_bind("q", "amq.direct", "l")
    channel.tx_commit()


def a_queue_deleted_before_the_commit(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    channel.queue_declare("p")
    channel.queue_bind("q", "amq.fanout", "")
    channel.tx_select()
    channel.publish("to the queue", key="q", mandatory=True)
    channel.publish("through an exchange", "amq.fanout", "", mandatory=True)
    channel.publish("not mandatory", key="q")
    channel.publish("to both", key="q", mandatory=True, headers={"CC": ["p"]})
    other.queue_delete("q")
    channel.tx_commit()


def a_queue_declared_before_the_commit(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.tx_select()
    channel.publish("to the queue", key="late", mandatory=True)
    channel.publish("as a copy", key="nowhere", mandatory=True, headers={"CC": ["late"]})
    channel.publish("as a blind copy", key="nowhere", mandatory=True, headers={"BCC": ["late"]})
    channel.publish("nowhere", key="nowhere", mandatory=True)
    other.queue_declare("late")
    channel.tx_commit()
    for _ in range(4):
        other.basic_get("late", no_ack=True)


def a_queue_deleted_and_declared_before_the_commit(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.direct", "k")
    channel.tx_select()
    channel.publish("to the queue", key="q", mandatory=True)
    channel.publish("through an exchange", "amq.direct", "k", mandatory=True)
    other.queue_delete("q")
    other.queue_declare("q")
    channel.tx_commit()
    for _ in range(3):
        other.basic_get("q", no_ack=True)


def an_exchange_deleted_before_the_commit(play: Play) -> None:
    channel, other = play.channel(1), play.channel(2)
    channel.queue_declare("q")
    channel.exchange_declare("x", "fanout")
    channel.queue_bind("q", "x", "")
    channel.tx_select()
    channel.publish("a", "x", "", mandatory=True)
    other.exchange_delete("x")
    channel.tx_commit()


def closing_the_channel_rolls_back(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.publish("a", key="q")
    channel.tx_select()
    channel.publish("b", key="q")
    channel.basic_get("q")
    channel.basic_ack(1)
    channel.channel_close(200, "bye", 0, 0)
    play.channel(2).basic_get("q", no_ack=True)


def without_select(play: Play) -> None:
    play.channel(1).tx_commit()
    play.channel(2).tx_rollback()


def confirms_and_transactions_exclude_each_other(play: Play) -> None:
    channel = play.channel(1)
    channel.confirm_select()
    channel.tx_select()
    channel = play.channel(2)
    channel.tx_select()
    channel.confirm_select()
    channel = play.channel(3)
    channel.confirm_select()
    channel.tx_commit()


def consuming_in_a_transaction(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.tx_select()
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c")
    channel.publish("a", key="q")
    channel.publish("b", key="q")
    channel.tx_commit()
    channel.basic_ack(1)
    channel.tx_commit()
    channel.basic_nack(2)
    channel.tx_commit()


def commit_publishes_before_it_settles(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.publish("old", key="q")
    channel.basic_get("q")
    channel.basic_qos(0, 1)
    channel.basic_consume("q", "c")
    channel.tx_select()
    channel.basic_nack(1)
    channel.publish("new", key="q")
    channel.tx_commit()


def declarations_are_not_transactional(play: Play) -> None:
    channel = play.channel(1)
    channel.tx_select()
    channel.queue_declare("q")
    channel.exchange_declare("x", "fanout")
    channel.tx_rollback()
    channel.queue_declare("q", passive=True)
    channel.exchange_declare("x", passive=True)


def a_commit_to_a_full_queue(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.tx_select()
    channel.publish("a", key="q")
    channel.publish("b", key="q")
    channel.tx_commit()


def many_persistent_messages_in_one_commit(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    with play.at_once():
        for index in range(50):
            channel.publish(str(index), key="q", delivery_mode=2)
        channel.tx_commit()
    channel.queue_purge("q")


def recover_in_a_transaction(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.publish("a", key="q")
    channel.tx_select()
    channel.basic_get("q")
    channel.basic_recover(requeue=True)
    channel.tx_commit()
    channel.basic_get("q")
    channel.basic_ack(2)
    channel.basic_recover(requeue=True)
    channel.tx_commit()
