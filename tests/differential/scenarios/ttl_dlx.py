"""Time to live, dead-letter exchanges, and the x-death header."""

from tests.differential.channel import Channel
from tests.differential.play import Play

DLX = {"x-dead-letter-exchange": "dlx"}


def _graveyard(channel: Channel, name: str = "dead", exchange: str = "dlx", kind: str = "fanout") -> None:
    channel.exchange_declare(exchange, kind)
    channel.queue_declare(name)
    channel.queue_bind(name, exchange, "")


def a_rejected_message_is_dead_lettered(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.publish("a", key="q", headers={"mine": 1}, content_type="text/plain", delivery_mode=2)
    channel.publish("b", key="q")
    channel.basic_get("q")
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_nack(2, requeue=False)
    channel.basic_get("dead", no_ack=True)
    channel.basic_get("dead", no_ack=True)


def nacking_several_dead_letters_them_in_order(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    for body in "abc":
        channel.publish(body, key="q")
    for _ in range(3):
        channel.basic_get("q")
    channel.basic_nack(0, multiple=True, requeue=False)
    for _ in range(3):
        channel.basic_get("dead", no_ack=True)


def dying_again_counts(play: Play) -> None:
    """A rejected message comes back to the queue it was rejected from."""
    channel = play.channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    channel.queue_declare("q", arguments=arguments)
    channel.publish("a", key="q")
    for tag in range(1, 4):
        channel.basic_get("q")
        channel.basic_reject(tag, requeue=False)
    channel.basic_get("q", no_ack=True)


def the_route_through_several_queues_is_told(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "direct")
    for here, there in (("one", "two"), ("two", "three"), ("three", "end")):
        key = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": there}
        channel.queue_declare(here, arguments=key)
        channel.queue_bind(here, "x", here)
    channel.queue_declare("end")
    channel.queue_bind("end", "x", "end")
    channel.publish("a", "x", "one", headers={"CC": ["copy"], "BCC": ["hidden"]}, expiration="60000")
    for tag, queue in enumerate(("one", "two", "three"), 1):
        channel.basic_get(queue)
        channel.basic_nack(tag, requeue=False)
    channel.basic_get("end", no_ack=True)


def a_dead_letter_keeps_its_key(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.queue_bind("q", "amq.direct", "k")
    channel.publish("a", "amq.direct", "k", headers={"CC": ["c1", "c2"]})
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def a_dead_letter_with_a_new_key_loses_its_cc(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-dead-letter-routing-key": "new"})
    channel.publish("a", key="q", headers={"CC": ["c1", "c2"]})
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def dead_letters_to_a_missing_exchange_are_dropped(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "nope"})
    channel.publish("a", key="q")
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("q")


def the_default_exchange_as_dlx(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=arguments)
    channel.publish("a", key="q")
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def a_queue_ttl_expires_messages(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-message-ttl": 20})
    channel.publish("a", key="q")
    play.await_count("dead", 1)
    channel.basic_get("q")
    channel.basic_get("dead", no_ack=True)


def a_message_ttl_expires_it(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.publish("a", key="q", expiration="20")
    play.await_count("dead", 1)
    channel.basic_get("dead", no_ack=True)


def the_lower_of_two_ttls_counts(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-message-ttl": 20})
    channel.publish("a", key="q", expiration="100000")
    play.await_count("dead", 1)
    channel.basic_get("dead", no_ack=True)


def a_message_expires_at_the_head_only(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.publish("stays", key="q")
    channel.publish("expires behind it", key="q", expiration="1")
    channel.publish("c", key="q", expiration="60000")
    channel.basic_get("q", no_ack=True)
    play.await_count("dead", 1)
    channel.basic_get("dead", no_ack=True)


def a_ttl_of_zero_without_a_consumer(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.confirm_select()
    channel.publish("a", key="q", expiration="0")
    play.await_count("dead", 1)
    channel.basic_get("q")
    channel.basic_get("dead", no_ack=True)


def a_ttl_of_zero_with_a_consumer(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    channel.basic_consume("q", "c")
    channel.publish("delivered at once", key="q")
    channel.basic_nack(1)
    channel.queue_declare("q", passive=True)


def a_ttl_of_zero_drops_without_a_dlx(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 0})
    channel.publish("gone", key="q", mandatory=True)
    play.await_count("q", 0)
    channel.basic_get("q")


def an_unacked_message_does_not_expire(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-message-ttl": 300})
    with play.at_once():
        channel.publish("a", key="q")
        channel.basic_get("q")
    channel.publish("b", key="q")
    play.await_count("dead", 1)
    channel.basic_ack(1)
    channel.basic_get("dead", no_ack=True)


def a_requeued_message_expires_when_its_time_is_up(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    play.hide_counts("dead")
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-message-ttl": 300})
    with play.at_once():
        channel.publish("a", key="q")
        channel.basic_get("q")
    channel.basic_nack(1)
    play.await_count("dead", 1)
    channel.basic_get("dead", no_ack=True)


def an_expired_message_keeps_its_original_expiration(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("first")
    play.hide_counts("second")
    channel.queue_declare("end")
    second = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}
    channel.queue_declare("second", arguments=second)
    first = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "second"}
    channel.queue_declare("first", arguments=first)
    channel.publish("a", key="first", expiration="10")
    play.await_count("second", 1)
    channel.basic_get("second")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("end", no_ack=True)


def a_cycle_without_a_rejection_is_dropped(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("one")
    play.hide_counts("two")
    for here, there in (("one", "two"), ("two", "one")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": there, "x-message-ttl": 5}
        channel.queue_declare(here, arguments=arguments)
    channel.publish("round", key="one")
    play.await_that(lambda: all(count.startswith("0 ") for count in play.counts_now().values()))
    channel.basic_get("one")
    channel.basic_get("two")


def a_cycle_with_a_rejection_goes_on(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("wait")
    play.hide_counts("work")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 5}
    channel.queue_declare("wait", arguments=arguments)
    retry = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    channel.queue_declare("work", arguments=retry)
    channel.publish("try", key="work")
    for tag in range(1, 4):
        play.await_count("work", 1)
        channel.basic_get("work")
        channel.basic_reject(tag, requeue=False)
    play.await_count("work", 1)
    channel.basic_get("work", no_ack=True)


def a_queue_that_dead_letters_to_itself(play: Play) -> None:
    channel = play.channel()
    play.hide_counts("q")
    arguments = {"x-dead-letter-exchange": "", "x-message-ttl": 5}
    channel.queue_declare("q", arguments=arguments)
    channel.publish("expires", key="q")
    play.await_count("q", 0)
    rejecting = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"}
    channel.queue_declare("r", arguments=rejecting)
    channel.publish("rejected", key="r")
    for tag in (1, 2):
        channel.basic_get("r")
        channel.basic_reject(tag, requeue=False)
    channel.basic_get("r")


def overflow_is_dead_lettered(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX | {"x-max-length": 2})
    for body in "abcd":
        channel.publish(body, key="q")
    channel.basic_get("dead", no_ack=True)
    channel.basic_get("dead", no_ack=True)
    channel.basic_get("q")
    channel.basic_get("q")


def a_publisher_may_bring_an_x_death_of_its_own(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    death = {"queue": "else", "reason": "expired", "count": 4, "exchange": "", "routing-keys": ["else"]}
    channel.publish("a", key="q", headers={"x-death": [death], "x-first-death-queue": "else"})
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def an_x_death_that_is_no_list(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.publish("a", key="q", headers={"x-death": "what"})
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def dead_letters_are_not_confirmed_again(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", durable=True, arguments=DLX)
    channel.confirm_select()
    channel.publish("a", key="q", delivery_mode=2, mandatory=True)
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def purged_and_deleted_messages_are_not_dead_lettered(play: Play) -> None:
    channel = play.channel()
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    channel.publish("a", key="q")
    channel.queue_purge("q")
    channel.publish("b", key="q")
    channel.queue_delete("q")
    channel.basic_get("dead")


def dead_letters_to_a_queue_that_rejects(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish("in the way", key="full")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    channel.queue_declare("q", arguments=arguments)
    channel.publish("a", key="q")
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("full", no_ack=True)


def dead_letters_reach_a_consumer(play: Play) -> None:
    channel, graves = play.channel(1), play.channel(2)
    _graveyard(channel)
    channel.queue_declare("q", arguments=DLX)
    graves.basic_consume("dead", "g")
    channel.basic_consume("q", "c")
    channel.publish("a", key="q")
    channel.basic_reject(1, requeue=False)
    graves.basic_reject(1, requeue=False)


def _rejected_with(play: Play, *deaths: dict[str, object]) -> None:
    """Publish a message to `q` that says how it died before; reject it and look at the dead letter."""
    channel = play.channel()
    channel.queue_declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", arguments=letters)
    channel.publish("a", key="q", headers={"x-death": list(deaths)})
    channel.basic_get("q")
    channel.basic_reject(1, requeue=False)
    channel.basic_get("dead", no_ack=True)


def a_death_without_a_count(play: Play) -> None:
    _rejected_with(play, {"queue": "q", "reason": "rejected", "exchange": ""})


def deaths_without_a_count_of_the_same_queue(play: Play) -> None:
    death = {"queue": "q", "reason": "rejected", "exchange": ""}
    _rejected_with(play, death, death, death)


def a_death_elsewhere_without_a_count(play: Play) -> None:
    _rejected_with(play, {"queue": "other", "reason": "expired", "exchange": ""})


def deaths_elsewhere_without_a_count(play: Play) -> None:
    death = {"queue": "other", "reason": "expired", "exchange": ""}
    _rejected_with(play, death, death | {"exchange": "second"}, death)


def deaths_elsewhere_of_which_some_have_a_count(play: Play) -> None:
    death = {"queue": "other", "reason": "expired", "exchange": ""}
    _rejected_with(play, death, death | {"count": 7})


def deaths_elsewhere_that_all_have_a_count(play: Play) -> None:
    death = {"queue": "other", "reason": "expired", "exchange": ""}
    _rejected_with(play, death | {"count": 3}, death | {"count": 7})


def a_death_here_and_deaths_elsewhere_without_counts(play: Play) -> None:
    here = {"queue": "q", "reason": "rejected", "exchange": ""}
    elsewhere = {"queue": "other", "reason": "expired", "exchange": ""}
    _rejected_with(play, elsewhere, here, elsewhere, here)
