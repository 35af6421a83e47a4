"""What a server says when it is asked for something impossible, code by code."""

from tests.differential.play import Play

EVERY_METHOD_ON_A_MISSING_QUEUE = (
    ("queue_declare", {"queue": "nope", "passive": True}),
    ("queue_bind", {"queue": "nope", "exchange": "amq.direct", "routing_key": "k"}),
    ("queue_unbind", {"queue": "nope", "exchange": "amq.direct", "routing_key": "k"}),
    ("queue_purge", {"queue": "nope"}),
    ("queue_delete", {"queue": "nope"}),
    ("basic_get", {"queue": "nope"}),
    ("basic_consume", {"queue": "nope"}),
)


def a_missing_queue(play: Play) -> None:
    for number, (method, arguments) in enumerate(EVERY_METHOD_ON_A_MISSING_QUEUE, 1):
        getattr(play.channel(number), method)(**arguments)


def a_missing_exchange(play: Play) -> None:
    play.channel(1).exchange_declare("nope", passive=True)
    play.channel(2).publish("lost", "nope", "k")
    play.channel(3).exchange_delete("nope")
    play.channel(4).exchange_bind("nope", "amq.direct", "k")
    play.channel(5).exchange_bind("amq.direct", "nope", "k")
    play.channel(6).exchange_unbind("nope", "amq.direct", "k")
    play.channel(7).exchange_unbind("amq.direct", "nope", "k")
    channel = play.channel(8)
    channel.queue_declare("q")
    channel.queue_bind("q", "nope", "k")
    play.channel(9).queue_unbind("q", "nope", "k")
    play.channel(10).queue_bind("nope", "nope", "k")


def the_last_declared_queue_when_there_is_none(play: Play) -> None:
    play.channel(1).queue_bind("", "amq.direct", "k")
    play.channel(2).queue_purge("")
    play.channel(3).queue_delete("")
    play.channel(4).basic_consume("")
    play.channel(5).basic_get("")
    play.channel(6).queue_declare("", passive=True)
    play.channel(7).queue_unbind("", "amq.direct", "k")


def the_last_declared_queue_stands_for_an_empty_name(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("")
    channel.queue_bind("", "amq.direct", "")
    channel.queue_bind("", "amq.direct", "k")
    channel.publish("by an empty key", "amq.direct", "")
    channel.basic_get("", no_ack=True)
    channel.basic_consume("", "c")
    channel.queue_purge("")
    channel.queue_unbind("", "amq.direct", "")
    channel.queue_delete("")
    channel.basic_get("")


def an_empty_binding_key_means_the_queue_when_its_name_is_empty_too(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.queue_bind("", "amq.direct", "")
    channel.publish("named after the queue", "amq.direct", "q")
    channel.publish("no key", "amq.direct", "")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q", no_ack=True)


def reserved_names(play: Play) -> None:
    play.channel(1).queue_declare("amq.mine")
    play.channel(2).exchange_declare("amq.mine", "direct")
    play.channel(3).queue_declare("amq.mine", passive=True)
    play.channel(4).exchange_declare("amq.mine", passive=True)
    play.channel(5).exchange_delete("amq.direct")
    play.channel(6).queue_delete("amq.mine")
    play.channel(7).exchange_delete("amq.mine")
    play.channel(8).exchange_declare("amq.direct", "direct", durable=True)
    play.channel(9).exchange_declare("amq.direct", "fanout", durable=True)
    play.channel(10).exchange_declare("amq.direct", "direct", durable=False)


def names_with_line_ends(play: Play) -> None:
    play.channel(1).queue_declare("with\nline\rends")
    play.channel(2).exchange_declare("with\nline\rends", "direct")
    play.channel(3).queue_declare("q" * 255)


def a_name_that_is_not_utf_8(play: Play) -> None:
    play.channel(1).queue_declare(b"\xff\xfe not utf-8")


def a_long_name_is_cut_in_the_text_but_the_text_is_not_cut(play: Play) -> None:
    play.channel(1).queue_declare("n" * 255, passive=True)
    play.channel(2).publish("x", "n" * 255, "k")
    play.channel(3).exchange_delete("n" * 255)


def unknown_delivery_tags(play: Play) -> None:
    for number, (method, arguments) in enumerate(
        (
            ("basic_ack", {"delivery_tag": 100}),
            ("basic_ack", {"delivery_tag": 100, "multiple": True}),
            ("basic_ack", {"delivery_tag": 0}),
            ("basic_nack", {"delivery_tag": 7}),
            ("basic_nack", {"delivery_tag": 7, "multiple": True}),
            ("basic_nack", {"delivery_tag": 0}),
            ("basic_reject", {"delivery_tag": 7}),
            ("basic_reject", {"delivery_tag": 0}),
            ("basic_ack", {"delivery_tag": 0, "multiple": True}),
            ("basic_nack", {"delivery_tag": 0, "multiple": True}),
            ("basic_ack", {"delivery_tag": 2**64 - 1}),
        ),
        1,
    ):
        getattr(play.channel(number), method)(**arguments)


def a_reused_consumer_tag(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", "t")
    play.channel(2).basic_consume("q", "t")
    channel.basic_consume("q", "t")


def immediate_is_not_implemented(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish("now", key="q", immediate=True)


def prefetch_size_is_not_implemented(play: Play) -> None:
    play.channel().basic_qos(1, 1)


def recover_without_requeue_is_not_implemented(play: Play) -> None:
    play.channel().basic_recover(requeue=False)


def recover_async_without_requeue_is_not_implemented(play: Play) -> None:
    play.channel().basic_recover_async(requeue=False)


def an_unknown_exchange_type(play: Play) -> None:
    play.channel().exchange_declare("x", "no-such-type")


def an_empty_exchange_type(play: Play) -> None:
    play.channel().exchange_declare("x", "")


def the_default_exchange_is_not_to_be_touched(play: Play) -> None:
    play.channel(1).exchange_declare("", "direct", durable=True)
    play.channel(2).exchange_declare("", "direct", passive=True)
    play.channel(3).exchange_delete("")
    channel = play.channel(4)
    channel.queue_declare("q")
    channel.queue_bind("q", "", "k")
    play.channel(5).queue_unbind("q", "", "q")
    play.channel(6).exchange_bind("", "amq.direct", "k")
    play.channel(7).exchange_bind("amq.direct", "", "k")
    play.channel(8).exchange_unbind("", "amq.direct", "k")


def methods_that_only_a_server_sends(play: Play) -> None:
    play.channel().queue_declare_ok("q", 0, 0)


def a_deliver_from_a_client(play: Play) -> None:
    channel = play.channel()
    channel.begin_content("basic_deliver", consumer_tag="t", delivery_tag=1, exchange="", routing_key="q")
    channel.header(0)
    play.settle()


def a_confirm_from_a_client_is_an_acknowledgement(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.basic_ack(1)


def connection_methods_on_a_channel(play: Play) -> None:
    play.channel().connection_close(200, "bye")


def a_second_connection_open(play: Play) -> None:
    play.connect().channel(0).connection_open("/")


def a_second_tune_ok(play: Play) -> None:
    play.connect().channel(0).connection_tune_ok(10, 4096, 0)


def basic_methods_on_channel_0(play: Play) -> None:
    play.connect().channel(0).queue_declare("q")


def access_request_is_gone(play: Play) -> None:
    """Class 30, from AMQP 0-8."""
    channel = play.channel()
    channel.frame(1, b"\x00\x1e\x00\x0a\x05/data\x1f", told="access.request")
    play.settle()
