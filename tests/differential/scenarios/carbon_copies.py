"""Messages with several keys, CC and BCC, on their way through exchanges."""

from tests.differential.play import Play


def an_alternate_is_for_messages_that_no_key_leads_anywhere(play: Play) -> None:
    channel = play.channel()
    channel.exchange_declare("ae", "fanout")
    channel.exchange_declare("x", "direct", arguments={"alternate-exchange": "ae"})
    for queue in ("q", "rest"):
        channel.queue_declare(queue)
    channel.queue_bind("q", "x", "k")
    channel.queue_bind("rest", "ae")
    channel.publish("one of two", "x", "k", headers={"CC": ["none"]})
    channel.publish("the other of two", "x", "none", headers={"BCC": ["k"]})
    channel.publish("none of two", "x", "none", headers={"CC": ["nor this"]})
    for queue in ("q", "q", "rest"):
        channel.basic_get(queue, no_ack=True)
