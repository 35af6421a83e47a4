"""Publishes whose content comes later than their method: when they are refused, and what follows."""

from tests.differential.play import Play


def the_method_of_a_publish_to_a_missing_exchange(play: Play) -> None:
    """Leveret refuses the publish at its method, RabbitMQ when its body is whole."""
    play.channel().begin_content(exchange="missing", routing_key="k")
    play.settle()


def the_method_of_a_publish_to_an_internal_exchange(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("x", "fanout", internal=True)
    channel.begin_content(exchange="x", routing_key="k")
    play.settle()


def a_publish_to_a_missing_exchange_in_many_frames(play: Play) -> None:
    channel = play.channel()
    with play.at_once():
        channel.begin_content(exchange="missing", routing_key="k")
        channel.header(2)
        channel.body(b"a")
        channel.body(b"b")
    channel.end_content()
    channel.channel_open()
    channel.queue_declare("q")


def the_method_of_a_return_from_a_client(play: Play) -> None:
    values = {"reply_code": 1, "reply_text": "", "exchange": "", "routing_key": ""}
    play.channel().begin_content("basic_return", **values)
    play.settle()
