"""Publishing, returns and publisher confirms."""

from tests.differential.play import Play


def selecting_twice(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.confirm_select()
    channel.queue_declare("q")
    channel.publish("a", key="q")
    channel.confirm_select(nowait=True)
    channel.publish("b", key="q")


def selecting_after_publishing_counts_from_one(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish("before", key="q")
    channel.confirm_select()
    channel.publish("after", key="q")


def every_kind_of_message_is_confirmed(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("transient")
    channel.queue_declare("durable", durable=True)
    channel.publish("a", key="transient")
    channel.publish("b", key="transient", delivery_mode=2)
    channel.publish("c", key="durable")
    channel.publish("d", key="durable", delivery_mode=2)
    channel.publish("e", key="nowhere")
    channel.publish("f", key="nowhere", mandatory=True)
    channel.publish("", key="durable", delivery_mode=2)


def returns_come_before_acks(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.publish("x", "amq.fanout", "k", mandatory=True, content_type="text/plain", headers={"a": 1})
    channel.publish("x", "amq.topic", "k", mandatory=True, delivery_mode=2)
    channel.publish("x" * 300_000, "", "nowhere", mandatory=True)


def returns_without_confirms(play: Play) -> None:
    channel = play.channel()
    channel.publish("a", "", "nowhere", mandatory=True, message_id="m")
    channel.publish("b", "", "nowhere")


def many_at_once_are_all_confirmed(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q", durable=True)
    with play.at_once():
        for index in range(40):
            channel.publish(str(index), key="q", delivery_mode=1 + index % 2)
    channel.queue_purge("q")


def a_full_queue_that_rejects_nacks(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for body in "abcd":
        channel.publish(body, key="q")
    channel.basic_get("q", no_ack=True)
    channel.publish("e", key="q")


def one_queue_of_two_refuses(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.queue_declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_declare("roomy")
    channel.queue_bind("full", "amq.fanout", "")
    channel.queue_bind("roomy", "amq.fanout", "")
    channel.publish("a", "amq.fanout", "")
    channel.publish("b", "amq.fanout", "")
    channel.basic_get("roomy", no_ack=True)
    channel.basic_get("roomy", no_ack=True)


def an_error_in_confirm_mode_closes_the_channel(play: Play) -> None:
    channel = play.channel()
    channel.confirm_select()
    channel.publish("a", "nope", "k")
    channel.channel_open()
    channel.queue_declare("q")
    channel.publish("not counted", key="q")


def an_invalid_expiration(play: Play) -> None:
    for number, expiration in enumerate(
        ("soon", "-1", "1.5", "", " 5", "5 ", "99999999999999999999", "+50000"), 1
    ):
        channel = play.channel(number)
        channel.queue_declare("q")
        channel.publish("a", key="q", expiration=expiration)


def a_valid_expiration_stays_on_the_message(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish("a", key="q", expiration="100000")
    channel.publish("b", key="q", expiration="000100000")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q", no_ack=True)


def an_invalid_expiration_to_nowhere_is_refused_too(play: Play) -> None:
    channel = play.channel()
    channel.publish("a", key="nowhere", expiration="soon", mandatory=True)


def the_user_id_must_be_ones_own(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.publish("a", key="q", user_id="guest")
    channel.publish("b", key="q", user_id="somebody")
    play.channel(2).publish("c", key="nowhere", user_id="")


def every_property_comes_back(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.publish(
        "a",
        key="q",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"n": None, "t": True, "l": [1, "two", {"three": 3.0}], "b": b"bytes", "big": 2**40},
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        expiration="600000",
        message_id="m",
        timestamp=1_700_000_000,
        message_type="t",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.publish("b", key="q", delivery_mode=1, priority=0, headers={}, content_type="")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q", no_ack=True)


def an_unknown_delivery_mode(play: Play) -> None:
    play.channel(1).publish("a", key="nowhere", delivery_mode=0)
    play.channel(2).publish("a", key="nowhere", delivery_mode=3)


def cc_and_bcc(play: Play) -> None:
    channel = play.channel()
    for name in ("to", "cc1", "cc2", "bcc"):
        channel.queue_declare(name)
    channel.publish("a", key="to", headers={"CC": ["cc1", "cc2"], "BCC": ["bcc"], "other": 1})
    channel.publish("b", key="to", headers={"CC": ["to", "cc1", "cc1"]})
    channel.publish("c", key="nowhere", mandatory=True, headers={"CC": ["nope"], "BCC": ["none"]})
    channel.publish("d", key="nowhere", mandatory=True, headers={"CC": ["cc1"]})
    channel.publish("e", key="to", headers={"BCC": ["bcc"]})
    for name in ("to", "cc1", "cc2", "bcc"):
        empty = channel.count_of("basic.get-empty")
        while channel.count_of("basic.get-empty") == empty and channel.is_open:
            channel.basic_get(name, no_ack=True)


def cc_must_be_an_array_of_strings(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("q")
    channel.publish("a", key="q", headers={"CC": ["q", 5]})
    play.channel(2).publish("a", key="q", headers={"CC": "q"})
    play.channel(3).publish("a", key="q", headers={"BCC": 5})
    play.channel(4).publish("a", key="q", headers={"CC": []})


def direct_reply_to(play: Play) -> None:
    asking, answering = play.channel(1), play.channel(2)
    asking.basic_consume("amq.rabbitmq.reply-to", "c", no_ack=True)
    asking.queue_declare("requests")
    asking.publish("question", key="requests", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    answering.basic_get("requests", no_ack=True)
    answering.publish("answer", key=answering.last_reply_to(), mandatory=True, correlation_id="7")
    asking.basic_cancel("c")
    answering.publish("too late", key=answering.last_reply_to(), mandatory=True)


def direct_reply_to_without_a_consumer(play: Play) -> None:
    channel = play.channel(1)
    channel.queue_declare("requests")
    channel.publish("question", key="requests", reply_to="amq.rabbitmq.reply-to")


def direct_reply_to_done_wrongly(play: Play) -> None:
    play.channel(1).basic_consume("amq.rabbitmq.reply-to", "c")
    channel = play.channel(2)
    channel.basic_consume("amq.rabbitmq.reply-to", "c", no_ack=True)
    channel.basic_consume("amq.rabbitmq.reply-to", "d", no_ack=True)
    play.channel(3).queue_declare("amq.rabbitmq.reply-to", passive=True)
    play.channel(4).queue_declare("amq.rabbitmq.reply-to.made-up", passive=True)
    play.channel(5).queue_declare("amq.rabbitmq.reply-to")
    play.channel(6).publish("a", key="amq.rabbitmq.reply-to.made-up", mandatory=True)
    play.channel(7).publish("a", key="amq.rabbitmq.reply-to", mandatory=True)
    play.channel(8).basic_get("amq.rabbitmq.reply-to", no_ack=True)


def cancelling_direct_reply_to_and_consuming_again(play: Play) -> None:
    channel = play.channel(1)
    channel.basic_consume("amq.rabbitmq.reply-to", "c", no_ack=True)
    channel.basic_cancel("c")
    channel.basic_consume("amq.rabbitmq.reply-to", "d", no_ack=True)


def publishing_with_a_routing_key_of_every_byte(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.fanout", "")
    channel.publish("a", "amq.fanout", "ключ 鍵 \x00\x01")
    channel.basic_get("q", no_ack=True)


def large_bodies_are_cut_into_frames(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", "c", no_ack=True)
    for size in (131_063, 131_064, 131_065, 262_128, 262_129, 1_000_000):
        channel.publish(b"x" * size, key="q")
