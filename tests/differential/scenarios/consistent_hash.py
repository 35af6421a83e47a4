"""Exchanges of type x-consistent-hash: what can be declared and bound, and that nothing is lost or doubled.

Which of several queues a message goes to is each server's own affair, so here one queue takes everything.
"""

from tests.differential.channel import Channel
from tests.differential.play import Play

KIND = "x-consistent-hash"


def _drain(channel: Channel, queue: str) -> None:
    empty = channel.count_of("basic.get-empty")
    while channel.count_of("basic.get-empty") == empty and channel.is_open:
        channel.basic_get(queue, no_ack=True)


def declaring(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("key", KIND, durable=True)
    channel.exchange_declare("header", KIND, arguments={"hash-header": "h"})
    channel.exchange_declare("nameless", KIND, arguments={"hash-header": ""})
    for name in ("message_id", "correlation_id", "timestamp"):
        channel.exchange_declare(f"property {name}", KIND, arguments={"hash-property": name})


def declaring_again_with_other_arguments(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", KIND, arguments={"hash-header": "h"})
    channel.exchange_declare("x", KIND)
    channel.exchange_declare("x", KIND, arguments={"hash-header": "other"})
    channel.exchange_declare("x", KIND, arguments={"hash-property": "message_id"})
    channel.exchange_declare("x", KIND, arguments={"hash-property": "nonsense"})
    channel.exchange_declare("x", "direct", arguments={"hash-header": "h"})


def wrong_arguments(play: Play) -> None:
    wrong = [
        {"hash-property": "app_id"},
        {"hash-property": "message-id"},
        {"hash-property": ""},
        {"hash-header": "h", "hash-property": "message_id"},
        {"hash-header": "h", "hash-property": "nonsense"},
    ]
    for number, arguments in enumerate(wrong, 1):
        play.channel(number).exchange_declare("x", KIND, arguments=arguments)
    play.channel(9).exchange_declare("x", passive=True)


def keys_of_bindings(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.exchange_declare("x", KIND)
    for key in ("1", "01", "+1", "1000"):
        channel.queue_bind("q", "x", key)
    channel.queue_bind("q", "x", "1", arguments={"a": 1})
    channel.queue_unbind("q", "x", "no number")
    for number, key in enumerate(("0", "-1", "", "abc", "1.5", " 1", "1 ", "1e3", "²"), 2):
        play.channel(number).queue_bind("q", "x", key)
    play.channel(20).exchange_bind("amq.fanout", "x", "abc")
    play.channel(21).queue_bind("none", "x", "abc")


def one_queue_takes_everything(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q")
    channel.exchange_declare("x", KIND, arguments={"hash-header": "h"})
    channel.publish("unroutable", "x", "k", mandatory=True)
    channel.queue_bind("q", "x", "7")
    for headers in ({"h": "a"}, {"h": 5}, {"h": [1, {"b": None}]}, {"h": None}, {"other": 1}):
        channel.publish("with headers", "x", "k", mandatory=True, headers=headers)
    channel.publish("without", "x", "k", mandatory=True)
    channel.publish("copied", "x", "k", mandatory=True, headers={"CC": ["one", "two"], "BCC": ["three"]})
    _drain(channel, "q")
    channel.queue_unbind("q", "x", "7")
    channel.publish("unroutable again", "x", "k", mandatory=True)


def properties_are_hashed(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    for name, value in (("message_id", "1"), ("correlation_id", "2"), ("timestamp", 3)):
        channel.exchange_declare(name, KIND, arguments={"hash-property": name})
        channel.queue_bind("q", name, "1")
        channel.publish("with", name, "k", **{name: value})
        channel.publish("without", name, "k")
    _drain(channel, "q")


def an_alternate_and_an_exchange_behind(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.queue_declare("rest")
    channel.exchange_declare("x", KIND, arguments={"alternate-exchange": "amq.fanout"})
    channel.queue_bind("rest", "amq.fanout")
    channel.publish("nothing is bound", "x", "k", mandatory=True)
    channel.exchange_declare("behind", "direct")
    channel.exchange_bind("behind", "x", "3")
    channel.queue_bind("q", "behind", "k")
    channel.publish("behind", "x", "k", mandatory=True)
    channel.publish("a copy leads on", "x", "none", mandatory=True, headers={"CC": ["k"]})
    channel.publish("to nobody behind", "x", "none", mandatory=True)
    _drain(channel, "q")
    _drain(channel, "rest")
