"""Policies and operator policies, made and deleted while queues and exchanges exist."""

from typing import Any

from tests.differential.play import Play


def _policy(
    play: Play, name: str, definition: dict[str, Any], *, operator: bool = False, **more: Any
) -> None:
    kind = "operator-policies" if operator else "policies"
    body = {"pattern": "^q", "definition": definition, **{key.replace("_", "-"): more[key] for key in more}}
    play.http("PUT", f"/api/{kind}/{{vhost}}/{name}", body, stays=True)


def _forget(play: Play, name: str, *, operator: bool = False) -> None:
    kind = "operator-policies" if operator else "policies"
    play.http("DELETE", f"/api/{kind}/{{vhost}}/{name}")


def _publish(play: Play, count: int, key: str = "q") -> None:
    for number in range(count):
        play.channel().publish(str(number), key=key)
    play.settle()


def a_maximum_length_comes_and_goes(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    channel.queue_declare("other")
    _policy(play, "p", {"max-length": 2})
    _publish(play, 4)
    _publish(play, 4, "other")
    channel.queue_declare("q", passive=True)
    channel.queue_declare("other", passive=True)
    channel.basic_get("q", no_ack=True)
    _forget(play, "p")
    _publish(play, 4)
    channel.queue_declare("q", passive=True)


def a_new_maximum_length_drops_what_waits(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    _publish(play, 5)
    _policy(play, "p", {"max-length": 2})
    _publish(play, 1)
    channel.queue_declare("q", passive=True)
    for _ in range(2):
        channel.basic_get("q", no_ack=True)
    _forget(play, "p")


def an_argument_and_a_policy_the_smaller_one_holds(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    _policy(play, "p", {"max-length": 3})
    for name, length in (("q small", 1), ("q large", 9)):
        channel.queue_declare(name, arguments={"x-max-length": length})
        _publish(play, 12, name)
        channel.queue_declare(name, passive=True)
        channel.queue_declare(name, arguments={"x-max-length": length})
    _forget(play, "p")


def a_policy_refuses_publishes(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    _policy(play, "p", {"max-length": 1, "overflow": "reject-publish"})
    _publish(play, 3)
    channel.queue_declare("q", passive=True)
    _policy(play, "p", {"max-length": 1})
    _publish(play, 3)
    channel.basic_get("q", no_ack=True)
    _forget(play, "p")


def dead_letters_by_policy(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("dead", "fanout")
    channel.queue_declare("graves")
    channel.queue_bind("graves", "dead", "")
    channel.queue_declare("q")
    channel.queue_declare(
        "q own", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "own"}
    )
    channel.queue_declare("own")
    _policy(play, "p", {"dead-letter-exchange": "dead", "dead-letter-routing-key": "by policy"})
    for tag, name in enumerate(("q", "q own"), start=1):
        channel.publish("m", key=name)
        play.settle()
        channel.basic_get(name)
        channel.basic_reject(tag, requeue=False)
        play.settle()
    channel.basic_get("graves", no_ack=True)
    channel.basic_get("own", no_ack=True)
    _forget(play, "p")
    channel.publish("m", key="q")
    play.settle()
    channel.basic_get("q")
    channel.basic_reject(5, requeue=False)
    channel.basic_get("graves", no_ack=True)


def an_alternate_exchange_by_policy(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("q x", "direct")
    channel.exchange_declare("spare", "fanout")
    channel.queue_declare("spares")
    channel.queue_bind("spares", "spare", "")
    channel.publish("1", exchange="q x", key="nowhere", mandatory=True)
    play.settle()
    _policy(play, "p", {"alternate-exchange": "spare"}, apply_to="exchanges")
    channel.publish("2", exchange="q x", key="nowhere", mandatory=True)
    play.settle()
    channel.basic_get("spares", no_ack=True)
    _forget(play, "p")
    channel.publish("3", exchange="q x", key="nowhere", mandatory=True)
    play.settle()


def of_several_policies_the_one_of_the_highest_priority_holds(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    _policy(play, "low", {"max-length": 1}, priority=1)
    _policy(play, "high", {"max-length": 4}, priority=2)
    _policy(play, "elsewhere", {"max-length": 2}, priority=9, apply_to="exchanges")
    _publish(play, 6)
    channel.queue_declare("q", passive=True)
    _forget(play, "high")
    _publish(play, 1)
    channel.queue_declare("q", passive=True)
    for name in ("low", "elsewhere"):
        _forget(play, name)


def an_operator_policy_bounds_a_policy(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    _policy(play, "p", {"max-length": 9})
    _policy(play, "bounds", {"max-length": 2}, operator=True)
    _publish(play, 5)
    channel.queue_declare("q", passive=True)
    _policy(play, "p", {"max-length": 1})
    _publish(play, 5)
    channel.queue_declare("q", passive=True)
    _forget(play, "p")
    _publish(play, 5)
    channel.queue_declare("q", passive=True)
    _forget(play, "bounds", operator=True)


def keys_of_a_policy_that_are_wrong(play: Play) -> None:
    for definition in (
        {},
        {"max-foo": 1},
        {"max-length": -1},
        {"max-length": "1"},
        {"max-length": 1.5},
        {"message-ttl": -1},
        {"expires": 0},
        {"overflow": "drop"},
        {"dead-letter-exchange": 5},
        {"alternate-exchange": []},
        {"queue-mode": "eager"},
        {"delivery-limit": -1},
        {"max-age": "7"},
        {"ha-mode": "some"},
        {"ha-sync-mode": "never"},
        {"ha-promote-on-shutdown": "x"},
    ):
        _policy(play, "p", definition)
        _policy(play, "p", definition, operator=True)


def policies_that_are_wrong(play: Play) -> None:
    for body in (
        {},
        {"pattern": "^q"},
        {"definition": {"max-length": 1}},
        {"pattern": 5, "definition": {"max-length": 1}},
        {"pattern": "^q", "definition": {"max-length": 1}, "priority": "1"},
        {"pattern": "^q", "definition": {"max-length": 1}, "apply-to": "streams"},
    ):
        play.http("PUT", "/api/policies/{vhost}/p", body)
    play.http("GET", "/api/policies/{vhost}/missing")
