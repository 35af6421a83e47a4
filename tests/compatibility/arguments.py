"""Arguments of queues, exchanges, bindings and consumers, and the types of exchanges.

RabbitMQ 3.10's and ours. The page's test compares them with what `leveret.broker.queues.arguments` and
`leveret.broker.exchanges` know.
"""

from tests.compatibility.claims import Section, State, claim

SUPPORTED, IGNORED, REFUSED, LATER = State.SUPPORTED, State.IGNORED, State.REFUSED, State.LATER
ONE_NODE = "Checked and kept. There is only one node."
LOG = "Checked and kept. Every queue is a log on disk, with a cache in memory."

QUEUE = (
    claim(
        "x-message-ttl",
        SUPPORTED,
        "",
        words="a_queue_ttl_expires a_message_expires_at the_lower_of_two messages_that_are_too_old a_ttl",
    ),
    claim("x-expires", SUPPORTED, "", words="x_expires an_unused_queue"),
    claim(
        "x-max-length",
        SUPPORTED,
        "",
        words="the_head_is_dropped a_queue_that_is_too_long both_limits a_maximum",
    ),
    claim(
        "x-max-length-bytes",
        SUPPORTED,
        "Counts bodies, not properties. A stream counts its files, and deletes whole files.",
        words="bytes_are_counted both_limits a_queue_that_is_too_long",
    ),
    claim(
        "x-overflow=drop-head",
        SUPPORTED,
        "The default.",
        "x-max-length",
        words="the_head_is_dropped a_dropped_message a_queue_that_is_too_long",
    ),
    claim(
        "x-overflow=reject-publish",
        SUPPORTED,
        "",
        words="a_full_queue_that_rejects_nacks refused a_full_queue_that_rejects",
    ),
    claim("x-overflow=reject-publish-dlx", SUPPORTED, "", words="a_refused_message_with_dlx"),
    claim(
        "x-dead-letter-exchange",
        SUPPORTED,
        "The copy is on disk before the original is deleted.",
        words="a_rejected_message_is_dead_lettered overflow_is_dead_lettered a_failing_handler dead_letter",
    ),
    claim(
        "x-dead-letter-routing-key",
        SUPPORTED,
        "",
        words="a_dead_letter_with_a_new_key the_default_exchange_as_dlx a_rejected_message_is",
    ),
    claim(
        "x-max-priority",
        SUPPORTED,
        "Up to 255.",
        words="the_highest_comes_first requeueing_keeps a_queue_with_priorities",
    ),
    claim("x-single-active-consumer", SUPPORTED, "", words="one_active a_single_active"),
    claim("x-queue-type=classic", SUPPORTED, "The default.", "x-queue-type & classic", words="classic"),
    claim(
        "x-queue-type=quorum",
        SUPPORTED,
        "The same log as a classic queue, with the checks and the texts of a quorum queue; one replica.",
        "x-queue-type & quorum",
        words="quorum",
    ),
    claim(
        "x-queue-type=stream",
        SUPPORTED,
        "A log that keeps messages after they were read; any number of readers, each from its own "
        "position, and groups.",
        "x-queue-type & stream",
        words="declaring_a_stream readers_do_not_know everything_that_was_confirmed a_stream",
    ),
    claim(
        "x-delivery-limit",
        SUPPORTED,
        "On every queue, not on quorum queues alone; counts survive restarts.",
        words="a_delivery_limit a_quorum_queue_counts a_limit limit",
    ),
    claim(
        "x-dead-letter-strategy",
        IGNORED,
        "Quorum queues. Checked and stored; dead letters are always written at least once.",
        words="an_argument_without_effect inequivalent_arguments",
    ),
    claim("x-queue-mode", IGNORED, LOG, words="an_argument_without_effect inequivalent_arguments"),
    claim("x-queue-version", IGNORED, LOG, words="an_argument_without_effect inequivalent_arguments"),
    claim(
        "x-max-in-memory-length",
        IGNORED,
        f"Quorum queues. {LOG}",
        words="an_argument_without_effect",
    ),
    claim(
        "x-max-in-memory-bytes",
        IGNORED,
        f"Quorum queues. {LOG}",
        words="an_argument_without_effect inequivalent_arguments",
    ),
    claim(
        "x-queue-master-locator", IGNORED, ONE_NODE, words="an_argument_without_effect inequivalent_arguments"
    ),
    claim(
        "x-queue-leader-locator",
        IGNORED,
        f"Quorum queues and streams. {ONE_NODE}",
        words="an_argument_without_effect inequivalent_arguments",
    ),
    claim(
        "x-quorum-initial-group-size",
        IGNORED,
        f"Quorum queues. {ONE_NODE}",
        words="an_argument_without_effect inequivalent_arguments",
    ),
    claim(
        "x-max-age",
        SUPPORTED,
        "Streams: older messages are deleted, file by file. Refused with 406 on other queues, as in "
        "RabbitMQ.",
        words="declaring_a_stream what_is_too_old_goes a_reader_that_is_overtaken arguments_of_streams",
    ),
    claim(
        "x-stream-max-segment-size-bytes",
        SUPPORTED,
        "Streams: the size of their files; by default it depends on `x-max-length-bytes`.",
        words="declaring_a_stream a_reader_that_begins_below what_is_too_much_goes arguments_of_streams",
    ),
    claim(
        "x-initial-cluster-size",
        IGNORED,
        f"Streams. {ONE_NODE}",
        words="declaring_a_stream a_stream_takes arguments_of_streams",
    ),
    claim(
        "any other",
        IGNORED,
        "Stored and ignored, and not compared at a second declaration: as in RabbitMQ.",
        "x-unheard-of & queue_declare",
        words="an_unheard_of_argument_of_a_queue",
    ),
)

OURS = (
    claim(
        "x-consumer-timeout",
        SUPPORTED,
        "A deadline per delivery in ms; the default is 30 min.",
        words="timeout deadline",
    ),
    claim(
        "x-consumer-timeout-action",
        SUPPORTED,
        "`cancel`, `retry` or `dead-letter`.",
        words="timeout deadline",
    ),
    claim("x-retry-delay-ms", SUPPORTED, "A nacked message comes back after a delay.", words="the_delay"),
    claim(
        "x-retry-multiplier",
        SUPPORTED,
        "Each further return multiplies the delay by this; 2 by default.",
        words="the_delay a_multiplier",
    ),
    claim("x-retry-delay-max-ms", SUPPORTED, "The largest delay.", words="the_delay a_multiplier"),
    claim(
        "x-dedup",
        SUPPORTED,
        "A message that a producer (`x-producer`) sends twice with one number (`x-seq`) is stored once.",
        words="a_sequence_is_stored_once_and_confirmed the_set_is_exact it_survives",
    ),
    claim(
        "x-dedup-window",
        SUPPORTED,
        "How far below the highest one numbers are remembered; 100,000 by default.",
        words="below_the_window",
    ),
    claim(
        "x-audit-window",
        SUPPORTED,
        "How long the account of a message is kept after it is settled, in milliseconds.",
        words="stays_in_the_audit_for_the_window an_audit_tells",
    ),
    claim(
        "x-audit-bodies",
        SUPPORTED,
        "Whether the message itself is kept as long as its account.",
        words="with_bodies",
    ),
)

EXCHANGE_TYPES = (
    claim(
        "the default exchange",
        SUPPORTED,
        "",
        "exchange_declare & queue_bind",
        "publish & key=",
        words="the_default_exchange",
    ),
    claim("direct", SUPPORTED, "", "exchange_declare & direct", words="direct_routing an_exchange_routes"),
    claim(
        "fanout", SUPPORTED, "", "exchange_declare & fanout", "amq.fanout", words="fanout_routing a_fanout"
    ),
    claim(
        "topic",
        SUPPORTED,
        "",
        "exchange_declare & topic",
        "amq.topic",
        words="topic_routing a_topic_exchange an_exchange_routes",
    ),
    claim(
        "headers",
        SUPPORTED,
        "",
        "exchange_declare & headers",
        "amq.headers",
        words="headers_routing an_exchange_routes",
    ),
    claim(
        "the predeclared `amq.*`",
        SUPPORTED,
        "",
        "exchange_declare & passive=True",
        words="the_predeclared",
    ),
    claim(
        "x-delayed-message",
        LATER,
        "RabbitMQ's plugin of this name. 503 for now, as without the plugin.",
        words="types_of_exchanges",
    ),
    claim(
        "x-consistent-hash",
        SUPPORTED,
        "As RabbitMQ's plugin of this name; a change of bindings moves only their share of the keys.",
        words="each_message_goes_to_one_queue one_queue_takes_everything keys_of_bindings",
    ),
    claim(
        "other plugins' types",
        REFUSED,
        "`x-random`, `x-modulus-hash`, `x-recent-history`, `x-jms-topic` …: 503, as without the plugin.",
        "exchange_declare",
        words="types_of_exchanges an_unknown_exchange_type",
    ),
)

EXCHANGE_ARGUMENTS = (
    claim(
        "alternate-exchange", SUPPORTED, "", words="an_alternate alternates what_an_exchange_can_not_route"
    ),
    claim("x-delayed-type", LATER, "With `x-delayed-message`."),
    claim(
        "hash-header",
        SUPPORTED,
        "With `x-consistent-hash`.",
        words="a_header_or_property one_queue_takes_everything",
    ),
    claim(
        "hash-property",
        SUPPORTED,
        "With `x-consistent-hash`.",
        words="a_header_or_property properties_are_hashed",
    ),
    claim(
        "any other",
        IGNORED,
        "Stored and ignored, and not compared at a second declaration: as in RabbitMQ.",
        "x-unheard-of & exchange_declare",
        words="an_unheard_of_argument",
    ),
)

BINDING_ARGUMENTS = (
    claim(
        "x-match=all", SUPPORTED, "The default.", "x-match & all", words="headers_routing an_exchange_routes"
    ),
    claim("x-match=any", SUPPORTED, "", "x-match & any", words="headers_routing an_exchange_routes"),
    claim("x-match=all-with-x", SUPPORTED, "", "x-match & all-with-x", words="headers_routing"),
    claim("x-match=any-with-x", SUPPORTED, "", "x-match & any-with-x", words="headers_routing"),
    claim(
        "any other",
        SUPPORTED,
        "A headers exchange compares it; for other types it distinguishes bindings.",
        "queue_bind & arguments=",
        words="bindings_differ headers_routing",
    ),
)

CONSUMER = (
    claim(
        "x-priority",
        SUPPORTED,
        "",
        words="a_consumer_of_higher_priority an_unlimited_consumer the_consumer_of_higher priorities_among",
    ),
    claim(
        "x-consumer-timeout",
        SUPPORTED,
        "Ours.",
        "x-consumer-timeout & basic_consume",
        "x-consumer-timeout & consume",
        words="the_consumers_own_timeout consumers_of_one_channel",
    ),
    claim(
        "x-peek",
        SUPPORTED,
        "Leveret's. The consumer sees ready messages without changing them. An ack makes room for more.",
        "PEEK & consume",
        words="looking_leaves_no_trace looking_never_reaches an_ack_asks_for_more",
    ),
    claim(
        "x-begun-marks",
        SUPPORTED,
        "Leveret's: a delivery counts as an attempt when the consumer has begun to process it.",
        words="what_is_lost_before_it_was_begun consumers_that_mark_nothing consumers_of_both_kinds",
    ),
    claim(
        "x-cancel-on-ha-failover",
        IGNORED,
        "Checked. There are no mirrored queues.",
        words="a_consumers_argument",
    ),
    claim("x-credit", IGNORED, "RabbitMQ's AMQP 1.0 plugin uses it.", words="a_consumers_argument"),
    claim(
        "x-stream-offset",
        SUPPORTED,
        "Streams: `first`, `last`, `next`, an offset, a timestamp, or an age (`1h`). 406 on other queues.",
        words="a_reader_begins_where_it_says reading_a_stream_from reading_what_comes_next a_stream_offset",
    ),
    claim("any other", IGNORED, "As in RabbitMQ.", "x-unheard-of & consume", words="a_consumers_argument"),
)

GROUPS = (
    claim(
        "x-group",
        SUPPORTED,
        "On a stream or a topic: the consumer is a member of this group. An ack settles a message, a "
        "nack returns it.",
        "x-group",
        words="groups_are_independent only_the_stuck_message progress_is_the_lowest",
    ),
    claim(
        "x-group-mode",
        SUPPORTED,
        "`concurrent`, or `orderly`: each partition has one member, which gets one message at a time.",
        "x-group & mode=orderly",
        words="in_orderly_mode_there_is_one in_orderly_mode_a_failure",
    ),
    claim(
        "x-group-start",
        SUPPORTED,
        "Where a new group begins: `first` (the default), `last`, an offset, a timestamp, or an age.",
        "x-group & start=",
        words="a_new_group_begins",
    ),
    claim(
        "x-group-max-span",
        SUPPORTED,
        "How far deliveries may be ahead of the lowest message that is neither settled nor sent back.",
        "x-group & max_span=",
        words="nothing_is_delivered_beyond the_span_can_be_changed",
    ),
    claim(
        "x-group-consume-timeout",
        SUPPORTED,
        "How long a delivery may take, in ms; 0: no limit.",
        "x-group & consume_timeout=",
        words="every_delivery_has_its_own a_timeout_counts a_shorter_timeout",
    ),
    claim(
        "x-group-max-reconsume",
        SUPPORTED,
        "How often a message may come back before it goes to the dead-letter queue, `%DLQ%` and the "
        "group's name.",
        "x-group & max_reconsume=",
        words="after_the_last_attempt with_no_limit",
    ),
    claim(
        "x-group-delays",
        SUPPORTED,
        "The delay of each level: `1s 5s`, or a list of milliseconds.",
        "x-group & delays=",
        words="a_table_of_ones_own any_table a_delay_of_nothing",
    ),
    claim(
        "x-group-first-level",
        SUPPORTED,
        "The level of the first return, counted from 1.",
        "x-group & first_level=",
        words="any_table",
    ),
)

SECTIONS = (
    Section("Queue arguments", ("argument",), QUEUE),
    Section("Queue arguments that RabbitMQ does not have", ("argument",), OURS),
    Section("Exchange types", ("type",), EXCHANGE_TYPES),
    Section("Exchange arguments", ("argument",), EXCHANGE_ARGUMENTS),
    Section("Binding arguments", ("argument",), BINDING_ARGUMENTS),
    Section("Consumer arguments", ("argument",), CONSUMER),
    Section("Consumer arguments of groups, which RabbitMQ does not have", ("argument",), GROUPS),
)
