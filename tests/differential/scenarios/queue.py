"""Queues: declaring, equivalence, exclusivity, deleting, counting, server-made names."""

from tests.differential.play import Play
from tests.differential.wire import Typed


def declaring_again(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish("a", key="q")
    channel.basic_consume("q", "c")
    channel.publish("b", key="q")
    channel.queue_declare("q")
    channel.queue_declare("q", passive=True)
    channel.queue_declare("q", passive=True, durable=True, auto_delete=True, arguments={"x": 1})


def inequivalent_flags(play: Play) -> None:
    play.channel(1).queue_declare("q")
    play.channel(2).queue_declare("q", durable=True)
    play.channel(3).queue_declare("q", auto_delete=True)
    play.channel(4).queue_declare("q", exclusive=True)
    play.channel(5).queue_declare("q", durable=True, auto_delete=True, exclusive=True)
    play.channel(6).queue_declare("d", durable=True, auto_delete=True)
    play.channel(7).queue_declare("d", auto_delete=True)


ARGUMENTS = {
    "x-message-ttl": 60_000,
    "x-expires": 60_000,
    "x-max-length": 10,
    "x-max-length-bytes": 1000,
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-routing-key": "k",
    "x-max-priority": 5,
    "x-overflow": "drop-head",
    "x-single-active-consumer": True,
    "x-queue-mode": "lazy",
    "x-unheard-of": "anything",
    "x-queue-version": 1,
}


def inequivalent_arguments(play: Play) -> None:
    """Which arguments are compared, one by one: missing in the second declaration, or different."""
    number = 0
    for name, value in ARGUMENTS.items():
        needs = {"x-dead-letter-exchange": ""} if name == "x-dead-letter-routing-key" else {}
        number += 1
        channel = play.channel(number)
        channel.queue_declare(name, arguments={name: value} | needs)
        channel.queue_declare(name, arguments={name: value} | needs)
        channel.queue_declare(name, arguments=needs)
        number += 1
        other = {"x-overflow": "reject-publish", "x-queue-mode": "default"}.get(name, "other")
        different = other if isinstance(value, str) else not value if value is True else value * 2
        play.channel(number).queue_declare(name, arguments={name: different} | needs)


def arguments_added_to_a_queue_without(play: Play) -> None:
    for number, (name, value) in enumerate(ARGUMENTS.items(), 1):
        channel = play.channel(number)
        channel.queue_declare(f"q{number}")
        needs = {"x-dead-letter-exchange": ""} if name == "x-dead-letter-routing-key" else {}
        channel.queue_declare(f"q{number}", arguments={name: value} | needs)


def the_width_of_an_integer_does_not_matter(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": Typed("l", 60_000)})
    for kind in "Iiul":
        channel.queue_declare("q", arguments={"x-message-ttl": Typed(kind, 60_000)})


INVALID = (
    {"x-message-ttl": -1},
    {"x-message-ttl": "60"},
    {"x-message-ttl": 2**40},
    {"x-message-ttl": 1.5},
    {"x-message-ttl": True},
    {"x-message-ttl": None},
    {"x-message-ttl": 4294967296},
    {"x-expires": 0},
    {"x-expires": -5},
    {"x-expires": "soon"},
    {"x-expires": 2**40},
    {"x-max-length": -1},
    {"x-max-length": "ten"},
    {"x-max-length-bytes": -1},
    {"x-max-length-bytes": "ten"},
    {"x-dead-letter-exchange": 5},
    {"x-dead-letter-routing-key": "k"},
    {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": 5},
    {"x-max-priority": -1},
    {"x-max-priority": 256},
    {"x-max-priority": "high"},
    {"x-max-priority": 0},
    {"x-overflow": "explode"},
    {"x-overflow": 5},
    {"x-single-active-consumer": "yes"},
    {"x-single-active-consumer": 1},
    {"x-queue-mode": "eager"},
    {"x-queue-mode": 5},
    {"x-queue-type": "no-such"},
    {"x-queue-type": 5},
    {"x-queue-version": 3},
    {"x-queue-version": "one"},
    {"x-overflow": "reject-publish-dlx"},
    {"x-max-in-memory-length": 3},
    {"x-max-age": "1h"},
    {"x-dead-letter-exchange": "does-not-exist-yet"},
    {"x-max-length": 0},
    {"x-message-ttl": 0},
    {"x-max-length": Typed("B", 3), "x-expires": Typed("s", 3000)},
)


def invalid_arguments(play: Play) -> None:
    for number, arguments in enumerate(INVALID, 1):
        play.channel(number).queue_declare(f"q{number}", arguments=arguments)


def a_delivery_limit_on_a_classic_queue(play: Play) -> None:
    play.channel(1).queue_declare("q", arguments={"x-delivery-limit": 3})


def a_quorum_queue_must_be_durable(play: Play) -> None:
    play.channel(1).queue_declare("q", arguments={"x-queue-type": "quorum"})
    play.channel(2).queue_declare("q", durable=True, exclusive=True, arguments={"x-queue-type": "quorum"})
    play.channel(3).queue_declare("q", durable=True, auto_delete=True, arguments={"x-queue-type": "quorum"})
    priorities = {"x-queue-type": "quorum", "x-max-priority": 5}
    play.channel(4).queue_declare("q", durable=True, arguments=priorities)
    play.channel(5).queue_declare("", durable=True, arguments={"x-queue-type": "quorum"})


def the_type_classic_is_the_default(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q", durable=True)
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare("p", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare("p", durable=True)
    channel.queue_declare("p", durable=True, arguments={"x-queue-type": "quorum"})


def names_made_by_the_server(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("")
    channel.queue_declare("")
    channel.queue_declare("", exclusive=True, auto_delete=True)


def an_exclusive_queue_belongs_to_one_connection(play: Play) -> None:
    owner, other = play.connect(), play.connect()
    channel = owner.channel(1).open()
    channel.queue_declare("q", exclusive=True)
    channel.publish("a", key="q")
    owner.channel(2).open().basic_get("q")
    for number, (method, arguments) in enumerate(
        (
            ("queue_declare", {"queue": "q"}),
            ("queue_declare", {"queue": "q", "exclusive": True}),
            ("queue_declare", {"queue": "q", "passive": True}),
            ("queue_declare", {"queue": "q", "durable": True}),
            ("queue_bind", {"queue": "q", "exchange": "amq.direct", "routing_key": "k"}),
            ("queue_unbind", {"queue": "q", "exchange": "amq.direct", "routing_key": "k"}),
            ("queue_purge", {"queue": "q"}),
            ("queue_delete", {"queue": "q"}),
            ("basic_get", {"queue": "q"}),
            ("basic_consume", {"queue": "q"}),
        ),
        1,
    ):
        getattr(other.channel(number).open(), method)(**arguments)
    other.channel(20).open().publish("publishing is allowed", key="q")
    channel.queue_declare("q")
    owner.channel(3).open().queue_declare("q", exclusive=True)


def unbinding_an_exclusive_queue_of_another_connection(play: Play) -> None:
    owner, other = play.connect(), play.connect()
    channel = owner.channel(1).open()
    channel.queue_declare("q", exclusive=True)
    channel.queue_bind("q", exchange="amq.direct", routing_key="k")
    other.channel(1).open().queue_unbind(queue="q", exchange="amq.direct", routing_key="not bound")
    other.channel(2).open().queue_unbind(queue="q", exchange="amq.direct", routing_key="k")
    channel.publish("a", exchange="amq.direct", key="k")
    channel.basic_get("q")


def an_exclusive_queue_goes_with_its_connection(play: Play) -> None:
    owner, other = play.connect(), play.connect()
    owner.channel(1).open().queue_declare("q", exclusive=True)
    owner.channel(1).channel_close(200, "bye", 0, 0)
    owner.channel(1).open().queue_declare("q", exclusive=True, passive=True)
    owner.channel(0).connection_close(200, "bye", 0, 0)
    other.channel(1).open().queue_declare("q", passive=True)


def an_auto_delete_queue_goes_with_its_last_consumer(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", auto_delete=True)
    channel.basic_consume("q", "c1")
    channel.basic_consume("q", "c2")
    channel.basic_cancel("c1")
    channel.queue_declare("q", passive=True)
    channel.basic_cancel("c2")
    channel.queue_declare("q", passive=True)


def an_auto_delete_queue_without_consumers_stays(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", auto_delete=True)
    channel.publish("a", key="q")
    channel.basic_get("q", no_ack=True)
    channel.queue_declare("q", passive=True)


def an_auto_delete_queue_goes_when_its_consumers_channel_closes(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", auto_delete=True)
    channel.basic_consume("q", "c1")
    channel.channel_close(200, "bye", 0, 0)
    play.channel(2).queue_declare("q", passive=True)


def purging(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    for body in "abcde":
        channel.publish(body, key="q")
    channel.basic_get("q")
    channel.queue_purge("q")
    channel.basic_nack(1)
    channel.queue_purge("q", nowait=True)
    channel.queue_purge("q")


def deleting(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    for body in "abc":
        channel.publish(body, key="q")
    play.channel(2).queue_delete("q", if_empty=True)
    channel.basic_consume("q", "c")
    play.channel(3).queue_delete("q", if_unused=True)
    play.channel(4).queue_delete("q", if_unused=True, if_empty=True)
    channel.basic_ack(1)
    play.channel(5).queue_delete("q", if_empty=True)
    channel.basic_ack(2)
    channel.queue_declare("q", passive=True)


def deleting_counts_ready_messages_only(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    for body in "abc":
        channel.publish(body, key="q")
    channel.basic_get("q")
    channel.queue_delete("q")
    channel.basic_ack(1)
    channel.queue_declare("q")
    channel.queue_delete("q", nowait=True)
    channel.queue_delete("q")


def get_counts_what_is_left(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.basic_get("q")
    for body in "abc":
        channel.publish(body, key="q")
    channel.basic_get("q")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q")
    channel.basic_get("q")


def x_expires_takes_an_unused_queue(play: Play) -> None:
    channel = play.channel(1)
    play.leave_alone("q")
    with play.at_once():
        channel.queue_declare("q", arguments={"x-expires": 50})
        channel.queue_bind("q", "amq.fanout", "")
    with play.silence():
        poll = play.connect().channel(1).open()
        for _ in range(1_000):  # a publish touches no queue, unlike every other question
            poll.publish("still there?", "amq.fanout", "", mandatory=True)
            if poll.count_of("basic.return") or not poll.is_open:
                break
    channel.queue_declare("q", passive=True)


def nowait_declares(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q", nowait=True)
    channel.queue_bind("", "amq.direct", "k", nowait=True)
    channel.publish("a", "amq.direct", "k")
    channel.queue_declare("q", durable=True, nowait=True)


def a_nowait_declare_of_a_server_named_queue(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("", nowait=True, exclusive=True)
    channel.queue_bind("", "amq.direct", "k")
    channel.publish("a", "amq.direct", "k")
    channel.basic_get("", no_ack=True)
