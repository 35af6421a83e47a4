"""Channels: opening, closing, what is ignored while closing, flow."""

from tests.differential.play import Play


def opening_and_closing(play: Play) -> None:
    peer = play.connect()
    channel = peer.channel(1)
    channel.channel_open()
    channel.channel_close(200, "bye", 0, 0)
    channel.channel_open()
    channel.queue_declare("q")


def a_second_open(play: Play) -> None:
    play.channel().channel_open()


def a_method_before_open(play: Play) -> None:
    play.connect().channel(3).queue_declare("q")


def a_publish_before_open(play: Play) -> None:
    play.connect().channel(3).publish("x", key="q")


def a_content_header_before_open(play: Play) -> None:
    peer = play.connect()
    peer.channel(3).header(0)
    play.settle()


def a_method_after_close(play: Play) -> None:
    channel = play.channel()
    channel.channel_close(200, "bye", 0, 0)
    channel.queue_declare("q")


def a_close_before_open(play: Play) -> None:
    play.connect().channel(3).channel_close(200, "bye", 0, 0)


def a_close_ok_before_open(play: Play) -> None:
    play.connect().channel(3).channel_close_ok()


def a_close_ok_nobody_asked_for(play: Play) -> None:
    """RabbitMQ's reader forgets the channel at once: anything said behind it may overtake the answer."""
    channel = play.channel()
    channel.is_open = False
    channel.channel_close_ok()


def methods_are_ignored_until_close_ok(play: Play) -> None:
    peer = play.connect()
    peer.answers_close = False
    channel = peer.channel(1).open()
    channel.queue_declare("q")
    channel.queue_declare("nope", passive=True)
    channel.queue_declare("ignored")
    channel.publish("ignored", key="q")
    channel.basic_ack(77)
    channel.channel_close_ok()
    channel.channel_open()
    channel.queue_declare("ignored", passive=True)


def opening_again_before_close_ok(play: Play) -> None:
    peer = play.connect()
    peer.answers_close = False
    channel = peer.channel(1).open()
    channel.queue_declare("nope", passive=True)
    channel.channel_open()


def a_close_crossing_the_servers_close_is_answered(play: Play) -> None:
    peer = play.connect()
    peer.answers_close = False
    channel = peer.channel(1).open()
    channel.queue_declare("nope", passive=True)
    channel.channel_close(200, "bye", 0, 0)
    channel.channel_close_ok()
    channel.channel_open()
    channel.queue_declare("q")


def a_channel_can_be_opened_again_after_an_error(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("nope", passive=True)
    channel.channel_open()
    channel.queue_declare("q")


def what_follows_an_error_in_the_same_write_is_ignored(play: Play) -> None:
    channel = play.channel()
    channel.queue_declare("q")
    with play.at_once():
        channel.publish("before", key="q")
        channel.queue_declare("nope", passive=True)
        channel.publish("after", key="q")
        channel.queue_declare("after")
    channel.channel_open()
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q", no_ack=True)


def an_error_on_one_channel_leaves_the_others_alone(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    second.queue_declare("q")
    second.basic_consume("q", "c")
    first.queue_declare("nope", passive=True)
    second.publish("still here", key="q")


def flow_off_is_refused(play: Play) -> None:
    play.channel().channel_flow(False)


def flow_on_is_answered(play: Play) -> None:
    play.channel().channel_flow(True)


def the_highest_channel_number(play: Play) -> None:
    channel = play.channel(2047)
    channel.queue_declare("q")


def one_channel_number_too_high(play: Play) -> None:
    play.connect().channel(2048).channel_open()


def closing_with_an_error_code_of_the_client(play: Play) -> None:
    play.channel().channel_close(541, "the client broke down", 60, 40)


def what_a_closing_channel_held_is_requeued(play: Play) -> None:
    first, second = play.channel(1), play.channel(2)
    first.queue_declare("q")
    for body in "abc":
        first.publish(body, key="q")
    first.basic_get("q")
    first.basic_get("q")
    first.channel_close(200, "bye", 0, 0)
    for _ in range(4):
        second.basic_get("q", no_ack=True)


def methods_and_closing_in_one_write(play: Play) -> None:
    channel = play.channel()
    with play.at_once():
        channel.queue_declare("q")
        channel.publish("a", key="q")
        channel.channel_close(200, "bye", 0, 0)
