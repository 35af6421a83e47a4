"""Properties and headers of messages that mean something to the broker, and what is agreed in the handshake.

The page's test compares the properties with pamqp's list and the capabilities with what the broker announces.
"""

from tests.compatibility.claims import Claim, Section, State, claim

SUPPORTED, IGNORED, REFUSED, LATER = State.SUPPORTED, State.IGNORED, State.REFUSED, State.LATER
CARRIED = "Passed on unchanged."


def _carried(name: str) -> Claim:
    return claim(name, SUPPORTED, CARRIED, f"{name}=", name, words="every_property properties_and_headers")


PROPERTIES = (
    claim(
        "delivery_mode",
        SUPPORTED,
        "1 transient, 2 persistent; others 406.",
        "delivery_mode=",
        words="many_persistent an_unknown_delivery_mode persistent transient",
    ),
    claim(
        "expiration",
        SUPPORTED,
        "ms, as a string of digits.",
        "expiration=",
        words="a_message_ttl a_valid_expiration an_expired_message messages_that_are_too_old",
    ),
    claim(
        "priority",
        SUPPORTED,
        "In queues with `x-max-priority`.",
        "priority=",
        words="the_highest_comes_first a_late_high a_queue_with_priorities",
    ),
    claim(
        "user_id",
        SUPPORTED,
        "Must be the name of the logged-in user, or 406.",
        "user_id=",
        words="the_user_id a_forged_user_id",
    ),
    claim(
        "reply_to",
        SUPPORTED,
        "`amq.rabbitmq.reply-to` is replaced by the channel's address; other values are passed on.",
        "reply_to= & amq.rabbitmq.reply-to",
        words="direct_reply_to a_reply",
    ),
    claim(
        "headers",
        SUPPORTED,
        "Field values of every type.",
        "headers=",
        words="every_property headers_of_every_type properties_and_headers",
    ),
    *map(
        _carried,
        (
            "content_type",
            "content_encoding",
            "correlation_id",
            "message_id",
            "timestamp",
            "message_type",
            "app_id",
            "cluster_id",
        ),
    ),
)

HEADERS = (
    claim(
        "CC", SUPPORTED, "Further routing keys.", words="cc_and_bcc copies_go a_dead_letter_with_a_new_key"
    ),
    claim("BCC", SUPPORTED, "Further routing keys; the header is removed.", words="cc_and_bcc copies_go"),
    claim(
        "x-death",
        SUPPORTED,
        "queue, reason, count, time, exchange, routing-keys, original-expiration.",
        "x-death",
        "x-dead-letter-exchange & basic_get",
        words="dying_again the_route_through a_rejected_message_is_dead_lettered",
    ),
    claim(
        "x-first-death-*",
        SUPPORTED,
        "queue, reason, exchange.",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-dead-letter-exchange & basic_get",
        words="the_route_through a_dead_letter_tells a_rejected_message_is_dead_lettered",
    ),
    claim(
        "x-last-death-*",
        SUPPORTED,
        "queue, reason, exchange; RabbitMQ has them from 3.13 on.",
        "x-last-death-queue",
        "x-last-death-reason",
        "x-last-death-exchange",
    ),
    claim(
        "x-delivery-count",
        SUPPORTED,
        "On every queue, from the second delivery on.",
        words="a_quorum_queue_counts count",
    ),
    claim(
        "x-delivery-tag",
        SUPPORTED,
        "In a publish to `amq.leveret.requeue`: the tag of the delivery to return.",
        words="a_delivery_comes_back_after the_delay_is_chosen an_unknown_tag",
    ),
    claim(
        "x-delay",
        SUPPORTED,
        "In a publish to `amq.leveret.requeue`: the delay in ms. Not yet with `x-delayed-message`.",
        words="a_delivery_comes_back_after the_delay_is_chosen the_delay_overrules",
    ),
    claim(
        "x-counted",
        SUPPORTED,
        "In a publish to `amq.leveret.requeue`: false if this does not count as an attempt.",
        words="what_was_not_a_try",
    ),
    claim(
        "x-begun",
        SUPPORTED,
        "In a publish to `amq.leveret.requeue`: a consumer with `x-begun-marks` begins to process the "
        "delivery.",
        words="what_is_lost_before_it_was_begun the_limit_counts_only a_tag_that_is_not_outstanding",
    ),
    claim(
        "x-consumer-lost",
        SUPPORTED,
        "On the next delivery after a consumer that had begun to process the message was lost.",
        words="that_a_consumer_was_lost_is_told",
    ),
    claim(
        "x-error",
        SUPPORTED,
        "In a publish to `amq.leveret.requeue`: the reason. Dead letters of groups have it too.",
        words="a_member_can_choose after_the_last_attempt_it_is",
    ),
    claim(
        "x-stream-offset",
        SUPPORTED,
        "On every delivery from a stream: the offset of the message. A header of this name from the "
        "publisher is replaced.",
        words="a_delivery_tells_its_offset messages_keep_their_properties_in_a_stream",
    ),
    claim(
        "x-stream",
        SUPPORTED,
        "On every delivery to a member of a group: the stream of the message.",
        words="deliveries_tell_where messages_reach_a_group",
    ),
    claim(
        "x-group-mode",
        SUPPORTED,
        "`orderly`, on every delivery to a member of an orderly group.",
        words="deliveries_of_an_orderly_group_say",
    ),
    claim(
        "x-producer",
        SUPPORTED,
        "On queues with `x-dedup`: the name of the producer.",
        words="a_sequence_is_stored_once_and_confirmed producers_count",
    ),
    claim(
        "x-seq",
        SUPPORTED,
        "On queues with `x-dedup`: the producer's number of the message, which is stored once.",
        words="a_sequence_is_stored_once_and_confirmed the_set_is_exact the_largest",
    ),
)

CLIENT_CAPABILITIES = (
    claim(
        "authentication_failure_close",
        SUPPORTED,
        "A refused login is answered with 403; without this capability the socket is closed.",
        words="failing_logins login password",
    ),
    claim(
        "consumer_cancel_notify",
        SUPPORTED,
        "`basic.cancel` is sent to this client; without this capability it is not.",
        "capabilities= & basic_consume",
        "capabilities= & consume",
        "consumer_cancel_notify & basic_consume",
        words="a_client_without the_consumers_of_a_deleted a_client_that",
    ),
    claim(
        "connection.blocked",
        SUPPORTED,
        "`connection.blocked` is sent to this client; without this capability it is held back without "
        "notice.",
        "connection.blocked & set_alarm & capabilities=",
        "add_on_connection_blocked_callback",
        words="only_a_client_with a_publisher_is_told",
    ),
    claim(
        "other capabilities",
        IGNORED,
        "`publisher_confirms`, `basic.nack` …: not needed; these methods work for every client.",
        "start_ok",
        "capabilities=",
        words="a_client_without a_whole_handshake",
    ),
    claim(
        "connection_name",
        SUPPORTED,
        "A client property: the name of the connection.",
        words="a_connection_is_called",
    ),
)

SERVER_CAPABILITIES = tuple(
    claim(name, SUPPORTED, "Announced.", f"{name} & server_capabilities", words="a_capability")
    for name in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
        "delayed_requeue",
        "begun_marks",
        "publisher_dedup",
        "consumer_groups",
        "queue_peek",
    )
)

HANDSHAKE = (
    claim(
        "PLAIN",
        SUPPORTED,
        "`guest` from loopback only.",
        "start_ok",
        "PLAIN",
        words="a_whole_handshake failing_logins a_wrong_password",
    ),
    claim("AMQPLAIN", SUPPORTED, "", "AMQPLAIN", words="logging_in_with_amqplain"),
    claim(
        "EXTERNAL",
        SUPPORTED,
        "Over TLS, where clients are asked for certificates: [tls.md](tls.md).",
        words="a_certificate_names_the_user pika_logs_in_with_a_certificate external_is_offered",
    ),
    claim("RABBIT-CR-DEMO", REFUSED, "RabbitMQ's demonstration of a second round; off by default there."),
    claim(
        "AMQP 0-9-1",
        SUPPORTED,
        "Other protocol headers are answered with the header of AMQP 0-9-1.",
        "HEADER & read_until",
        "PROTOCOL_HEADERS",
        words="a_protocol_header wrong_protocol",
    ),
    claim(
        "AMQP 0-8, 0-9",
        REFUSED,
        "See the deviations.",
        "send & read_until",
        words="protocol_headers_of_older",
    ),
    claim(
        "AMQP 1.0, MQTT, STOMP", REFUSED, "Plugins of RabbitMQ.", "PROTOCOL_HEADERS", words="wrong_protocol"
    ),
    claim(
        "heartbeats",
        SUPPORTED,
        "In both directions; a peer that is silent for two intervals is disconnected.",
        "heartbeat=",
        "heartbeats",
        words="heartbeats a_client_that_falls_silent a_heartbeat",
    ),
    claim(
        "frame_max",
        SUPPORTED,
        "Negotiated; at least 4,096 bytes.",
        "tune_ok",
        "frame_max=",
        "frame_max",
        words="tuning_small_frames a_body_of_any_size the_largest_frame",
    ),
    claim("channel_max", SUPPORTED, "", "tune_ok", words="more_channels a_channel_number"),
)

SECTIONS = (
    Section("Message properties", ("property",), PROPERTIES),
    Section("Message headers", ("header",), HEADERS),
    Section("What a client declares of itself", ("capability",), CLIENT_CAPABILITIES),
    Section("What the broker announces", ("capability",), SERVER_CAPABILITIES),
    Section("Handshake and limits", ("item",), HANDSHAKE),
)
