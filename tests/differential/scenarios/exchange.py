"""Exchanges: types, equivalence, bindings, alternates, auto-delete."""

from tests.differential.channel import Channel
from tests.differential.play import Play
from tests.differential.wire import Typed


def _queues(channel: Channel, *names: str) -> None:
    for name in names:
        channel.queue_declare(name)


def _drain(channel: Channel, *names: str) -> None:
    """Everything in these queues, in order, and that there is no more."""
    for name in names:
        empty = channel.count_of("basic.get-empty")
        while channel.count_of("basic.get-empty") == empty and channel.is_open:
            channel.basic_get(name, no_ack=True)


def every_type_can_be_declared(play: Play) -> None:
    channel = play.channel()
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"x.{kind}", kind)
        channel.exchange_declare(f"x.{kind}", kind)
        channel.exchange_declare(f"x.{kind}", kind, passive=True)


def the_predeclared_exchanges(play: Play) -> None:
    channel = play.channel()
    for name in ("direct", "fanout", "topic", "headers", "match", "rabbitmq.trace"):
        channel.exchange_declare(f"amq.{name}", passive=True)


def a_passive_declare_ignores_everything_but_the_name(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "fanout")
    channel.exchange_declare("x", "topic", passive=True, durable=True, arguments={"a": 1})
    channel.exchange_declare("x", "no-such-type", passive=True)


def inequivalent_declarations(play: Play) -> None:
    play.channel(1).exchange_declare("x", "direct", arguments={"alternate-exchange": "ae", "other": 1})
    play.channel(2).exchange_declare("x", "fanout")
    play.channel(3).exchange_declare("x", "direct", durable=True)
    play.channel(4).exchange_declare("x", "direct", auto_delete=True)
    play.channel(5).exchange_declare("x", "direct", internal=True)
    play.channel(6).exchange_declare("x", "direct")
    play.channel(7).exchange_declare("x", "direct", arguments={"alternate-exchange": "else"})
    play.channel(8).exchange_declare("x", "direct", arguments={"alternate-exchange": "ae"})
    play.channel(9).exchange_declare("x", "direct", arguments={"alternate-exchange": "ae", "other": 2})
    play.channel(10).exchange_declare("y", "direct")
    play.peers[0].channel(10).exchange_declare("y", "direct", arguments={"alternate-exchange": "ae"})
    play.channel(11).exchange_declare("x", "topic", durable=True, auto_delete=True)


def wrong_arguments(play: Play) -> None:
    play.channel(1).exchange_declare("x", "direct", arguments={"alternate-exchange": 5})
    play.channel(2).exchange_declare("x", "direct", arguments={"alternate-exchange": "amq.none"})
    play.channel(3).exchange_declare("z", "direct", arguments={"alternate-exchange": ""})


def direct_routing(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "direct")
    _queues(channel, "q1", "q2")
    channel.queue_bind("q1", "x", "a")
    channel.queue_bind("q1", "x", "a")
    channel.queue_bind("q1", "x", "b")
    channel.queue_bind("q2", "x", "a")
    for key in ("a", "b", "c", ""):
        channel.publish(key, "x", key, mandatory=True)
    _drain(channel, "q1", "q2")


def fanout_routing(play: Play) -> None:
    channel = play.channel()
    _queues(channel, "q1", "q2")
    channel.queue_bind("q1", "amq.fanout", "one")
    channel.queue_bind("q1", "amq.fanout", "two")
    channel.queue_bind("q2", "amq.fanout", "")
    channel.publish("to all", "amq.fanout", "whatever")
    _drain(channel, "q1", "q2")


def topic_routing(play: Play) -> None:
    channel = play.channel()
    patterns = (
        "#",
        "*",
        "a.*",
        "a.#",
        "#.b",
        "*.b.*",
        "a.*.#.c",
        "#.#",
        "",
        "a..b",
        "*.#",
        "a.b",
        "#.a.#",
        ".",
    )
    for index, pattern in enumerate(patterns):
        channel.queue_declare(f"q{index:02}")
        channel.queue_bind(f"q{index:02}", "amq.topic", pattern)
    keys = ("", "a", "b", "a.b", "a.b.c", "a.x.y.c", "a..b", ".", "a.", ".b", "x.b.y", "#", "*", "a.*")
    for key in keys:
        channel.publish(key, "amq.topic", key, mandatory=True)


def headers_routing(play: Play) -> None:
    channel = play.channel()
    bindings = (
        {"a": 1, "b": "x"},
        {"x-match": "all", "a": 1, "b": "x"},
        {"x-match": "any", "a": 1, "b": "x"},
        {"x-match": "all"},
        {"x-match": "any"},
        {"a": None},
        {"x-match": "all", "a": Typed("l", 1)},
        {"x-match": "all", "x-special": 1},
        {"x-match": "all-with-x", "x-special": 1},
        {"x-match": "any-with-x", "x-special": 1, "a": 5},
    )
    for index, arguments in enumerate(bindings):
        channel.queue_declare(f"q{index}")
        channel.queue_bind(f"q{index}", "amq.headers", "", arguments=arguments)
    for headers in (
        {"a": 1, "b": "x"},
        {"a": 1},
        {"b": "x"},
        {"a": "1"},
        {"a": Typed("l", 1)},
        {"a": None},
        {"a": True},
        {},
        {"x-special": 1},
        {"x-special": 2, "a": 5},
        {"b": "x", "a": 1, "c": 3},
    ):
        channel.publish(str(headers), "amq.headers", "", mandatory=True, headers=headers)
    channel.publish("no headers at all", "amq.headers", "")


def wrong_headers_bindings(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.headers", "", arguments={"x-match": "some"})
    play.channel(2).queue_bind("q", "amq.headers", "", arguments={"x-match": 5})
    play.channel(3).queue_bind("q", "amq.headers", "", arguments={})


def bindings_differ_by_their_arguments(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.direct", "k", arguments={"v": 1})
    channel.queue_bind("q", "amq.direct", "k", arguments={"v": 2})
    channel.queue_unbind("q", "amq.direct", "k")
    channel.publish("still bound", "amq.direct", "k")
    channel.queue_unbind("q", "amq.direct", "k", arguments={"v": 1})
    channel.publish("bound once", "amq.direct", "k")
    channel.queue_unbind("q", "amq.direct", "k", arguments={"v": 2})
    channel.publish("unbound", "amq.direct", "k", mandatory=True)


def unbinding_what_is_not_bound(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.queue_unbind("q", "amq.direct", "never")
    channel.exchange_unbind("amq.fanout", "amq.direct", "never")
    channel.queue_bind("q", "amq.direct", "k", nowait=True)
    channel.publish("x", "amq.direct", "k")


def exchange_to_exchange(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("in", "topic")
    channel.exchange_declare("out", "fanout")
    _queues(channel, "q")
    channel.queue_bind("q", "out", "")
    channel.exchange_bind("out", "in", "a.#")
    channel.publish("through", "in", "a.b", mandatory=True)
    channel.publish("not through", "in", "b", mandatory=True)
    channel.exchange_unbind("out", "in", "a.#")
    channel.publish("no more", "in", "a.b", mandatory=True)
    _drain(channel, "q")


def a_cycle_of_exchanges_delivers_once(play: Play) -> None:
    channel = play.channel()
    for name in ("x1", "x2", "x3"):
        channel.exchange_declare(name, "fanout")
    channel.exchange_bind("x2", "x1", "")
    channel.exchange_bind("x3", "x2", "")
    channel.exchange_bind("x1", "x3", "")
    channel.exchange_bind("x1", "x1", "")
    _queues(channel, "q")
    channel.queue_bind("q", "x3", "")
    channel.queue_bind("q", "x1", "")
    channel.publish("once", "x1", "")
    _drain(channel, "q")


def an_internal_exchange_takes_no_publishes(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("inner", "fanout", internal=True)
    channel.exchange_declare("outer", "fanout")
    channel.exchange_bind("inner", "outer", "")
    _queues(channel, "q")
    channel.queue_bind("q", "inner", "")
    channel.publish("by way of outer", "outer", "")
    channel.publish("straight", "inner", "")


def an_alternate_exchange_takes_what_is_not_routed(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("ae", "fanout")
    channel.exchange_declare("x", "direct", arguments={"alternate-exchange": "ae"})
    _queues(channel, "q", "rest")
    channel.queue_bind("q", "x", "k")
    channel.queue_bind("rest", "ae", "")
    channel.confirm_select()
    channel.publish("routed", "x", "k", mandatory=True)
    channel.publish("unrouted", "x", "other", mandatory=True)
    channel.exchange_delete("ae")
    channel.publish("lost", "x", "other", mandatory=True)
    _drain(channel, "q", "rest")


def alternates_in_a_chain_and_in_a_cycle(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x1", "direct", arguments={"alternate-exchange": "x2"})
    channel.exchange_declare("x2", "direct", arguments={"alternate-exchange": "x1"})
    _queues(channel, "q")
    channel.queue_bind("q", "x2", "k")
    channel.publish("by the alternate", "x1", "k", mandatory=True)
    channel.publish("in circles", "x1", "none", mandatory=True)
    _drain(channel, "q")


def deleting(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "direct")
    _queues(channel, "q")
    channel.queue_bind("q", "x", "k")
    play.channel(2).exchange_delete("x", if_unused=True)
    channel.queue_unbind("q", "x", "k")
    channel.exchange_delete("x", if_unused=True)
    channel.exchange_declare("x", passive=True)


def deleting_an_exchange_that_others_feed(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "direct")
    channel.exchange_declare("y", "direct")
    channel.exchange_bind("y", "x", "k")
    play.channel(2).exchange_delete("x", if_unused=True)
    channel.exchange_delete("y", if_unused=True)
    channel.exchange_delete("x", if_unused=True)


def an_auto_delete_exchange_goes_with_its_last_binding(play: Play) -> None:
    channel = play.channel(1)
    channel.exchange_declare("x", "direct", auto_delete=True)
    _queues(channel, "q1", "q2")
    channel.queue_bind("q1", "x", "k")
    channel.queue_bind("q2", "x", "k")
    channel.queue_unbind("q1", "x", "k")
    channel.exchange_declare("x", passive=True)
    channel.queue_delete("q2")
    channel.exchange_declare("x", passive=True)


def an_auto_delete_exchange_never_bound_stays(play: Play) -> None:
    channel = play.channel(1)
    channel.exchange_declare("x", "direct", auto_delete=True)
    _queues(channel, "q")
    channel.queue_unbind("q", "x", "k")
    channel.exchange_declare("x", passive=True)


def auto_delete_chains(play: Play) -> None:
    channel = play.channel(1)
    for name in ("x1", "x2", "x3"):
        channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_bind("x2", "x1", "")
    channel.exchange_bind("x3", "x2", "")
    _queues(channel, "q")
    channel.queue_bind("q", "x3", "")
    channel.queue_delete("q")
    play.channel(2).exchange_declare("x1", passive=True)
    play.channel(3).exchange_declare("x2", passive=True)
    play.channel(4).exchange_declare("x3", passive=True)


def deleting_an_exchange_takes_its_bindings(play: Play) -> None:
    channel = play.channel(1)
    channel.exchange_declare("x", "direct")
    _queues(channel, "q")
    channel.queue_bind("q", "x", "k")
    channel.exchange_delete("x")
    channel.exchange_declare("x", "direct")
    channel.publish("nowhere", "x", "k", mandatory=True)


def nowait_brings_no_answer(play: Play) -> None:
    channel = play.channel(1)
    channel.exchange_declare("x", "direct", nowait=True)
    channel.exchange_declare("y", "fanout", nowait=True)
    channel.exchange_bind("y", "x", "k", nowait=True)
    channel.exchange_unbind("y", "x", "k", nowait=True)
    channel.exchange_delete("y", nowait=True)
    channel.exchange_declare("y", passive=True, nowait=True)
