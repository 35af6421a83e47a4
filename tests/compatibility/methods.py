"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions.

A method and its answer share a line. Which methods there are is not decided here: the page's test compares
these lines with pamqp's list.
"""

from tests.compatibility.claims import Claim, Section, State

SUPPORTED, IGNORED, REFUSED = State.SUPPORTED, State.IGNORED, State.REFUSED
CLIENT, SERVER, BOTH = "client", "broker", "both"


def _method(
    name: str,
    sender: str,
    note: str,
    *clues: str,
    answers: str = "-ok",
    words: str = "",
    state: State = SUPPORTED,
) -> Claim:
    """`answers` are full names, or what is put behind the name of the method."""
    given = tuple(f"{name}{answer}" if answer.startswith("-") else answer for answer in answers.split())
    answered = ", ".join(f"`{answer}`" for answer in given)
    return Claim(name, state, note, clues or (spoken(name),), tuple(words.split()), (sender, answered))


def spoken(name: str) -> str:
    """A method as clients call it: `queue.declare` is `queue_declare`."""
    return name.replace(".", "_").replace("-", "_")


CONNECTION = (
    _method(
        "connection.start",
        SERVER,
        "Names Leveret as the product, with RabbitMQ's version number for clients that check it for "
        "features.",
        "start & start_ok & tune_ok",
        words="handshake",
    ),
    _method(
        "connection.secure",
        SERVER,
        "No login needs a second round. RabbitMQ sends it for its demonstration mechanism only.",
        state=REFUSED,
    ),
    _method(
        "connection.tune", SERVER, "2047 channels, frames of 131,072 bytes, 60 s.", "tune_ok", words="tuning"
    ),
    _method(
        "connection.open",
        CLIENT,
        "",
        "tune_ok & open",
        "connection_open",
        words="a_whole_handshake unknown_virtual_hosts missing_vhost",
    ),
    _method(
        "connection.close", CLIENT, "", "connection_close", words="closing_with_a_reason a_closed_connection"
    ),
    _method(
        "connection.close",
        SERVER,
        "On errors of the connection, and with 320 when the broker stops.",
        "ConnectionClosedByBroker",
        "connection_close_ok",
        words="a_broker_that_stops a_stopped_flow used_consumer_tag frames_before_close_ok a_close_crossing",
    ),
    _method(
        "connection.blocked",
        SERVER,
        "To connections that publish, when memory or disk is low.",
        "add_on_connection_blocked_callback",
        "Connection.Blocked",
        answers="",
        words="blocked",
    ),
    _method(
        "connection.unblocked",
        SERVER,
        "",
        "add_on_connection_unblocked_callback",
        "Connection.Unblocked",
        answers="",
        words="blocked",
    ),
    _method(
        "connection.update-secret",
        CLIENT,
        "Passwords of Leveret's users do not expire. Nothing changes, as for RabbitMQ's own users.",
        "connection_update_secret",
        "update_secret",
        words="secret",
    ),
)

CHANNEL = (
    _method("channel.open", CLIENT, "", words="opening_and_closing a_channel_can_be_opened_again"),
    _method("channel.flow", CLIENT, "", "channel_flow", "flow", words="flow_on open_flow"),
    _method(
        "channel.close",
        CLIENT,
        "Unacked deliveries of the channel are requeued.",
        words="opening_and_closing what_a_closing_channel a_closed_channel",
    ),
    _method(
        "channel.close",
        SERVER,
        "With the code and the text of RabbitMQ.",
        "ChannelClosedByBroker",
        "channel_close_ok",
        words="a_mistake_closes methods_are_ignored_until_close_ok a_channel_can_be_opened_again",
    ),
)

ACCESS = (
    _method(
        "access.request",
        CLIENT,
        "From AMQP 0-8. Always granted, as in RabbitMQ; permissions decide.",
        "access.request",
        words="access",
        state=IGNORED,
    ),
)

EXCHANGE = (
    _method("exchange.declare", CLIENT, "", words="every_type_can_be_declared inequivalent_declarations"),
    _method("exchange.delete", CLIENT, "", words="deleting"),
    _method("exchange.bind", CLIENT, "RabbitMQ's extension.", words="exchange_to_exchange"),
    _method("exchange.unbind", CLIENT, "RabbitMQ's extension.", words="unbind exchange_to_exchange"),
)

QUEUE = (
    _method(
        "queue.declare",
        CLIENT,
        "",
        words="declaring_again inequivalent_flags a_queue_is_declared queues_are_named",
    ),
    _method("queue.bind", CLIENT, "", words="topic_routing bindings_differ an_exchange_routes"),
    _method("queue.unbind", CLIENT, "", words="unbinding an_auto_delete_exchange_goes an_exchange_routes"),
    _method("queue.purge", CLIENT, "Deliveries in flight stay.", words="purg"),
    _method("queue.delete", CLIENT, "", words="deleting_counts deleting a_deleted_queue"),
)

BASIC = (
    _method(
        "basic.qos",
        CLIENT,
        "`global` means what it does in RabbitMQ. A change by py-amqp (Kombu, Celery) also reaches consumers "
        "that run, as the specification has it.",
        words="per_consumer both_limits prefetch_holds a_limit_that_py_amqp_raises",
    ),
    _method("basic.consume", CLIENT, "", words="consuming_and_acking round_robin equal_consumers"),
    _method("basic.cancel", CLIENT, "", words="cancelling_leaves cancelling"),
    _method(
        "basic.cancel",
        SERVER,
        "When a queue is deleted, to clients that declare `consumer_cancel_notify`.",
        "basic_consume & queue_delete",
        "add_on_cancel_callback",
        answers="",
        words="deleting_the_queue_cancels a_deleted_queue_cancels a_client_without_the_capability",
    ),
    _method(
        "basic.publish",
        CLIENT,
        "",
        "basic_publish",
        "publish",
        answers="",
        words="every_kind_of_message every_property every_publish publishing",
    ),
    _method(
        "basic.return",
        SERVER,
        "312 `NO_ROUTE`.",
        "mandatory=True",
        answers="",
        words="returns an_unroutable a_return",
    ),
    _method(
        "basic.deliver",
        SERVER,
        "",
        "basic_consume & publish",
        "basic_consume & basic_publish",
        answers="",
        words="consuming_and_acking redelivered tags_are_shared deliveries",
    ),
    _method("basic.get", CLIENT, "", answers="-ok -empty", words="get_counts get_takes get"),
    _method(
        "basic.ack",
        CLIENT,
        "An acknowledgement.",
        answers="",
        words="consuming_and_acking acking_several acks an_ack multiple",
    ),
    _method(
        "basic.ack",
        SERVER,
        "A confirm. For a persistent message in a durable queue it is sent when the message is on disk.",
        "confirm_select & publish",
        "confirm_delivery",
        answers="",
        words="every_kind_of_message many_at_once every_publish_is_confirmed confirm",
    ),
    _method(
        "basic.nack",
        CLIENT,
        "RabbitMQ's extension.",
        answers="",
        words="a_nacked_message_comes a_nack requeue",
    ),
    _method(
        "basic.nack",
        SERVER,
        "A refused publish; the reason is logged and counted.",
        "confirm_select & reject-publish",
        "NackError",
        "confirm_delivery & reject-publish",
        answers="",
        words="a_full_queue_that_rejects_nacks one_queue_of_two a_full_queue_that_rejects",
    ),
    _method("basic.reject", CLIENT, "", answers="", words="rejecting a_rejected reject"),
    _method("basic.recover", CLIENT, "", words="recovering recover_gives recover"),
    _method("basic.recover-async", CLIENT, "", answers="", words="recovering recover"),
    _method(
        "basic.credit",
        CLIENT,
        "Flow control for RabbitMQ's AMQP 1.0 plugin; refused with 540.",
        "basic_credit",
        answers="-ok -drained",
        state=REFUSED,
    ),
)

CONFIRM = (
    _method(
        "confirm.select",
        CLIENT,
        "RabbitMQ's extension.",
        "confirm_select",
        "confirm_delivery",
        words="selecting every_publish_is_confirmed",
    ),
)

TX = (
    _method("tx.select", CLIENT, "", words="confirms_and_transactions publishes_wait a_transaction"),
    _method(
        "tx.commit",
        CLIENT,
        "Atomic and durable over all queues and acks. Queues are looked up by name at the commit; bindings "
        "count as they were at the publish, as in RabbitMQ.",
        words="publishes_wait declared_before_the_commit acks_wait a_transaction commit",
    ),
    _method("tx.rollback", CLIENT, "", words="acks_rolled_back publishes_wait rollback a_transaction"),
)

HEAD = ("method", "sent by", "answered with")
SECTIONS = (
    Section("connection", HEAD, CONNECTION),
    Section("channel", HEAD, CHANNEL),
    Section("access", HEAD, ACCESS),
    Section("exchange", HEAD, EXCHANGE),
    Section("queue", HEAD, QUEUE),
    Section("basic", HEAD, BASIC),
    Section("confirm", HEAD, CONFIRM),
    Section("tx", HEAD, TX),
)
