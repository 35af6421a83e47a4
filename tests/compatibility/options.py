"""Options of methods that change what a method does, one line each.

Arguments that travel in a table are in `arguments.py`; methods are in `methods.py`.
"""

from tests.compatibility.claims import Section, State, claim

SUPPORTED, IGNORED, REFUSED = State.SUPPORTED, State.IGNORED, State.REFUSED

OPTIONS = (
    claim(
        "queue.declare passive",
        SUPPORTED,
        "",
        "queue_declare & passive=True",
        words="a_missing_queue passive",
    ),
    claim(
        "queue.declare durable",
        SUPPORTED,
        "",
        "queue_declare & durable=",
        words="inequivalent_flags what_is_durable survive",
    ),
    claim(
        "queue.declare exclusive", SUPPORTED, "", "queue_declare & exclusive=True", words="an_exclusive_queue"
    ),
    claim(
        "queue.declare auto-delete",
        SUPPORTED,
        "",
        "queue_declare & auto_delete=True",
        words="an_auto_delete_queue",
    ),
    claim(
        "queue.declare with an empty name",
        SUPPORTED,
        "The broker generates a name `amq.gen-…`.",
        "queue_declare",
        words="names_made_by_the_server server_named",
    ),
    claim("queue.delete if-unused", SUPPORTED, "", "queue_delete & if_unused=True", words="deleting"),
    claim("queue.delete if-empty", SUPPORTED, "", "queue_delete & if_empty=True", words="deleting"),
    claim("exchange.declare passive", SUPPORTED, "", "exchange_declare & passive=True", words="passive"),
    claim(
        "exchange.declare durable",
        SUPPORTED,
        "",
        "exchange_declare & durable=",
        words="inequivalent_declarations what_is_durable",
    ),
    claim(
        "exchange.declare auto-delete",
        SUPPORTED,
        "",
        "exchange_declare & auto_delete=True",
        words="an_auto_delete",
    ),
    claim(
        "exchange.declare internal", SUPPORTED, "", "exchange_declare & internal=True", words="an_internal"
    ),
    claim("exchange.delete if-unused", SUPPORTED, "", "exchange_delete & if_unused=True", words="deleting"),
    claim(
        "no-wait",
        SUPPORTED,
        "Of every method that has it.",
        "nowait=True",
        words="nowait",
    ),
    claim(
        "basic.consume no-ack",
        SUPPORTED,
        "",
        "basic_consume & no_ack=True",
        words="no_ack acking_a_no_ack get_and_no_ack a_consumer_without_acknowledgements an_unacknowledged",
    ),
    claim(
        "basic.consume exclusive", SUPPORTED, "", "basic_consume & exclusive=True", words="exclusive_consumer"
    ),
    claim("basic.consume no-local", IGNORED, "As in RabbitMQ.", "no_local=True", words="no_local"),
    claim(
        "basic.consume of `amq.rabbitmq.reply-to`",
        SUPPORTED,
        "Direct reply-to.",
        "amq.rabbitmq.reply-to & basic_consume",
        words="direct_reply_to a_reply",
    ),
    claim("basic.publish mandatory", SUPPORTED, "", "mandatory=True", words="returns an_unroutable a_return"),
    claim(
        "basic.publish immediate",
        REFUSED,
        "540 `NOT_IMPLEMENTED - immediate=true`, as in RabbitMQ.",
        "immediate=True",
        words="immediate",
    ),
    claim(
        "basic.qos prefetch-count",
        SUPPORTED,
        "",
        "basic_qos",
        words="per_consumer zero_is_unlimited prefetch_holds",
    ),
    claim(
        "basic.qos global",
        SUPPORTED,
        "Shared by the channel: its queues are served in turns, and consumers without acks wait while the "
        "limit is reached.",
        "basic_qos & global_qos=True",
        "basic_qos & global_=True",
        "basic_qos",
        words="waits_while_the_shared shared both_limits a_global a_wider_global",
    ),
    claim(
        "basic.qos prefetch-size",
        REFUSED,
        "540 `NOT_IMPLEMENTED - prefetch_size!=0 (n)`, as in RabbitMQ.",
        "basic_qos",
        words="prefetch_size",
    ),
    claim("basic.ack multiple", SUPPORTED, "", "basic_ack", words="acking_several multiple"),
    claim(
        "basic.nack requeue",
        SUPPORTED,
        "The message goes back to its place in the queue.",
        "basic_nack",
        words="requeueing a_nacked_message_comes requeued",
    ),
    claim(
        "basic.recover requeue=false",
        REFUSED,
        "540 `NOT_IMPLEMENTED - requeue=false`, as in RabbitMQ.",
        "basic_recover",
        words="without_requeue",
    ),
    claim(
        "channel.flow active=false",
        REFUSED,
        "540 `NOT_IMPLEMENTED - active=false`, as in RabbitMQ.",
        "channel_flow",
        "active=False",
        words="flow_off stopped_flow",
    ),
)

SECTIONS = (Section("Options of methods", ("option",), OPTIONS),)
