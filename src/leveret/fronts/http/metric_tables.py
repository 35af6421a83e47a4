"""The metrics of a broker as tables: name, type, help, and the figure that has the value.

Owns names and families. Names that begin with `rabbitmq_` mean what they mean in RabbitMQ, whose help they
have; those of queues' deliveries are from later versions than 3.10. The others begin with `leveret_` or, for
figures that every process has, with `process_`. How figures are read is left to `leveret.broker.views`. The
rule: a figure that RabbitMQ counts in another way gets a name of ours.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
UNTYPED: Final = "untyped"


class Metric(NamedTuple):
    name: str
    kind: str
    field: str
    """The field of the view that has the value."""
    help: str

    def named(self, *, detailed: bool) -> str:
        """
        >>> Metric("rabbitmq_queues", GAUGE, "queues", "").named(detailed=True)
        'rabbitmq_detailed_queues'
        """
        return self.name.replace("_", "_detailed_", 1) if detailed else self.name


class Family(NamedTuple):
    """Metrics with one set of labels: what `family=` selects in `/metrics/detailed`."""

    source: str
    """The kind of objects: queue, channel, connection, exchange, group or query."""
    labels: tuple[str, ...]
    metrics: tuple[Metric, ...]


def _counter(name: str, field: str, help_text: str) -> Metric:
    return Metric(name, COUNTER, field, help_text)


def _gauge(name: str, field: str, help_text: str) -> Metric:
    return Metric(name, GAUGE, field, help_text)


_QUEUE: Final = ("vhost", "queue")
_CONSUMERS: Final = _gauge("rabbitmq_queue_consumers", "consumers", "Consumers on a queue")

FAMILIES: Final = {
    "queue_coarse_metrics": Family(
        "queue",
        _QUEUE,
        (
            _gauge("rabbitmq_queue_messages_ready", "ready", "Messages ready to be delivered to consumers"),
            _gauge(
                "rabbitmq_queue_messages_unacked",
                "unacked",
                "Messages delivered to consumers but not yet acknowledged",
            ),
            _gauge(
                "rabbitmq_queue_messages",
                "messages",
                "Sum of ready and unacknowledged messages - total queue depth",
            ),
        ),
    ),
    "queue_metrics": Family("queue", _QUEUE, (_CONSUMERS,)),
    "queue_consumer_count": Family("queue", _QUEUE, (_CONSUMERS,)),
    "queue_delivery_metrics": Family(
        "queue",
        _QUEUE,
        (
            _counter(
                "rabbitmq_queue_get_ack_total",
                "got",
                "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode",
            ),
            _counter(
                "rabbitmq_queue_get_total",
                "got_auto_ack",
                "Total number of messages fetched from a queue with basic.get in automatic acknowledgement "
                "mode",
            ),
            _counter(
                "rabbitmq_queue_messages_delivered_ack_total",
                "delivered",
                "Total number of messages delivered from a queue to consumers in manual acknowledgement mode",
            ),
            _counter(
                "rabbitmq_queue_messages_delivered_total",
                "delivered_auto_ack",
                "Total number of messages delivered from a queue to consumers in automatic acknowledgement "
                "mode",
            ),
            _counter(
                "rabbitmq_queue_messages_redelivered_total",
                "redelivered",
                "Total number of messages redelivered from a queue to consumers",
            ),
            _counter(
                "rabbitmq_queue_messages_acked_total",
                "acked",
                "Total number of messages acknowledged by consumers on a queue",
            ),
            _counter(
                "rabbitmq_queue_get_empty_total",
                "got_empty",
                "Total number of times basic.get operations fetched no message on a queue",
            ),
        ),
    ),
    "channel_queue_exchange_metrics": Family(
        "queue",
        ("queue_vhost", "queue"),
        (
            _counter(
                "rabbitmq_queue_messages_published_total",
                "published",
                "Total number of messages published to queues",
            ),
        ),
    ),
    "leveret_queues": Family(
        "queue",
        _QUEUE,
        (
            _gauge("leveret_queue_messages_delayed", "delayed", "Messages that wait for the end of a delay"),
            _gauge(
                "leveret_queue_messages_returned",
                "returned",
                "Unsettled messages that were requeued at least once",
            ),
            _gauge(
                "leveret_queue_messages_looping",
                "looping",
                "Unsettled messages that were requeued more than 3 times: redelivery loops",
            ),
            _counter("leveret_queue_messages_requeued_total", "requeued", "Messages requeued for any reason"),
            _gauge(
                "leveret_queue_span", "span", "Offsets from the lowest unsettled to the highest delivered one"
            ),
            _gauge("leveret_queue_holes", "holes", "Runs of unsettled offsets below a settled one"),
            _gauge("leveret_queue_segments", "segments", "Segment files"),
        ),
    ),
    "channel_metrics": Family(
        "channel",
        ("channel",),
        (
            _gauge("rabbitmq_channel_consumers", "consumers", "Consumers on a channel"),
            _gauge(
                "rabbitmq_channel_messages_unacked", "unacked", "Delivered but not yet acknowledged messages"
            ),
            _gauge(
                "rabbitmq_channel_messages_unconfirmed",
                "unconfirmed",
                "Published but not yet confirmed messages",
            ),
            _gauge(
                "rabbitmq_channel_messages_uncommitted",
                "uncommitted",
                "Messages received in a transaction but not yet committed",
            ),
            _gauge(
                "rabbitmq_channel_acks_uncommitted",
                "acks_uncommitted",
                "Message acknowledgements in a transaction not yet committed",
            ),
            _gauge(
                "rabbitmq_consumer_prefetch",
                "consumer_prefetch",
                "Limit of unacknowledged messages for each consumer",
            ),
            _gauge(
                "rabbitmq_channel_prefetch",
                "prefetch",
                "Total limit of unacknowledged messages for all consumers on a channel",
            ),
        ),
    ),
    "channel_exchange_metrics": Family(
        "channel",
        ("channel", "vhost"),
        (
            _counter(
                "rabbitmq_channel_messages_published_total",
                "published",
                "Total number of messages published into an exchange on a channel",
            ),
            _counter(
                "rabbitmq_channel_messages_confirmed_total",
                "confirmed",
                "Total number of messages published into an exchange and confirmed on the channel",
            ),
            _counter(
                "rabbitmq_channel_messages_unroutable_returned_total",
                "returned",
                "Total number of messages published as mandatory into an exchange and returned to the "
                "publisher as unroutable",
            ),
            _counter(
                "rabbitmq_channel_messages_unroutable_dropped_total",
                "unroutable",
                "Total number of messages published as non-mandatory into an exchange and dropped as "
                "unroutable",
            ),
        ),
    ),
    "channel_queue_metrics": Family(
        "channel",
        ("channel", "vhost"),
        (
            _counter(
                "rabbitmq_channel_get_ack_total",
                "got",
                "Total number of messages fetched with basic.get in manual acknowledgement mode",
            ),
            _counter(
                "rabbitmq_channel_get_total",
                "got_auto_ack",
                "Total number of messages fetched with basic.get in automatic acknowledgement mode",
            ),
            _counter(
                "rabbitmq_channel_messages_delivered_ack_total",
                "delivered",
                "Total number of messages delivered to consumers in manual acknowledgement mode",
            ),
            _counter(
                "rabbitmq_channel_messages_delivered_total",
                "delivered_auto_ack",
                "Total number of messages delivered to consumers in automatic acknowledgement mode",
            ),
            _counter(
                "rabbitmq_channel_messages_redelivered_total",
                "redelivered",
                "Total number of messages redelivered to consumers",
            ),
            _counter(
                "rabbitmq_channel_messages_acked_total",
                "acked",
                "Total number of messages acknowledged by consumers",
            ),
            _counter(
                "rabbitmq_channel_get_empty_total",
                "got_empty",
                "Total number of times basic.get operations fetched no message",
            ),
        ),
    ),
    "connection_coarse_metrics": Family(
        "connection",
        ("channel",),
        (
            _counter(
                "rabbitmq_connection_incoming_bytes_total",
                "octets_in",
                "Total number of bytes received on a connection",
            ),
            _counter(
                "rabbitmq_connection_outgoing_bytes_total",
                "octets_out",
                "Total number of bytes sent on a connection",
            ),
        ),
    ),
    "connection_metrics": Family(
        "connection",
        ("channel",),
        (
            _counter(
                "rabbitmq_connection_incoming_packets_total",
                "packets_in",
                "Total number of packets received on a connection",
            ),
            _counter(
                "rabbitmq_connection_outgoing_packets_total",
                "packets_out",
                "Total number of packets sent on a connection",
            ),
            _gauge("rabbitmq_connection_channels", "channels", "Channels on a connection"),
        ),
    ),
    "leveret_exchanges": Family(
        "exchange",
        ("vhost", "exchange"),
        (
            _counter(
                "leveret_exchange_messages_published_total", "published", "Messages published to an exchange"
            ),
            _counter(
                "leveret_exchange_messages_routed_total",
                "routed",
                "Messages published to an exchange, once for each queue that took them",
            ),
            _counter(
                "leveret_exchange_messages_unroutable_returned_total",
                "returned",
                "Mandatory messages that no queue took",
            ),
            _counter(
                "leveret_exchange_messages_unroutable_dropped_total",
                "unroutable",
                "Messages that no queue took and that were not mandatory",
            ),
        ),
    ),
    "leveret_groups": Family(
        "group",
        ("vhost", "subject", "group"),
        (
            _gauge("leveret_group_members", "members", "Members of a group"),
            _gauge("leveret_group_lag", "lag", "Messages that a group has not settled"),
            _gauge("leveret_group_messages_in_flight", "in_flight", "Messages that members have not settled"),
            _gauge("leveret_group_messages_delayed", "delayed", "Messages that wait for a retry"),
            _gauge("leveret_group_span", "span", "Sum of the spans of a group's partitions"),
            _gauge("leveret_group_holes", "holes", "Holes in the progress of a group's partitions"),
            _counter(
                "leveret_group_settlements_stale_total",
                "stale_acks",
                "Settlements by members that came too late and had no effect",
            ),
        ),
    ),
    "leveret_queries": Family(
        "query",
        ("vhost", "queue", "query"),
        (
            _gauge("leveret_query_messages_leased", "leased", "Messages that a Spark query has leased"),
            _gauge("leveret_query_leases", "leases", "Leases of a Spark query"),
            _gauge("leveret_query_batch", "settled", "Number of the last batch that a Spark query settled"),
            _gauge(
                "leveret_query_last_request_timestamp_seconds",
                "seen_s",
                "Time of a Spark query's last request",
            ),
        ),
    ),
}
"""Metrics of objects, by the name of their family: RabbitMQ's, or ours."""

NOT_SUMMED: Final = frozenset(
    (
        "leveret_query_batch",
        "leveret_query_last_request_timestamp_seconds",
        "leveret_group_settlements_stale_total",
    )
)
"""Metrics of one object whose sum means nothing, or has another name: `leveret_settlements_stale_total`."""
MAXIMA: Final = (
    Metric("leveret_queue_span_max", GAUGE, "queue.span", "Largest span of a queue"),
    Metric("leveret_queue_holes_max", GAUGE, "queue.holes", "Largest number of holes of a queue"),
    Metric("leveret_group_lag_max", GAUGE, "group.lag", "Largest lag of a group"),
)
COUNTS: Final = (
    Metric("leveret_groups", GAUGE, "group", "Consumer groups"),
    Metric("leveret_queries", GAUGE, "query", "Spark queries over queues"),
)
"""Numbers of objects, by kind."""

CHURN: Final = (
    _counter("rabbitmq_connections_opened_total", "connections_opened", "Total number of connections opened"),
    _counter(
        "rabbitmq_connections_closed_total",
        "connections_closed",
        "Total number of connections closed or terminated",
    ),
    _counter("rabbitmq_channels_opened_total", "channels_opened", "Total number of channels opened"),
    _counter("rabbitmq_channels_closed_total", "channels_closed", "Total number of channels closed"),
    _counter("rabbitmq_queues_declared_total", "queues_declared", "Total number of queues declared"),
    _counter("rabbitmq_queues_created_total", "queues_created", "Total number of queues created"),
    _counter("rabbitmq_queues_deleted_total", "queues_deleted", "Total number of queues deleted"),
)
_NODE_COARSE: Final = (
    _gauge("rabbitmq_process_open_fds", "fd_used", "Open file descriptors"),
    _gauge("rabbitmq_process_open_tcp_sockets", "sockets_used", "Open TCP sockets"),
    _gauge("rabbitmq_process_resident_memory_bytes", "mem_used", "Memory used in bytes"),
    _gauge("rabbitmq_disk_space_available_bytes", "disk_free", "Disk space available in bytes"),
)
_NODE: Final = (
    _gauge("rabbitmq_process_max_fds", "fd_total", "Open file descriptors limit"),
    _gauge("rabbitmq_process_max_tcp_sockets", "sockets_total", "Open TCP sockets limit"),
    _gauge("rabbitmq_resident_memory_limit_bytes", "mem_limit", "Memory high watermark in bytes"),
    _gauge(
        "rabbitmq_disk_space_available_limit_bytes",
        "disk_free_limit",
        "Free disk space low watermark in bytes",
    ),
)
OF_NODE: Final = {"node_coarse_metrics": _NODE_COARSE, "node_metrics": _NODE}
LOGINS: Final = (
    _counter("rabbitmq_auth_attempts_total", "succeeded failed", "Total number of authorization attempts"),
    _counter(
        "rabbitmq_auth_attempts_succeeded_total",
        "succeeded",
        "Total number of successful authentication attempts",
    ),
    _counter(
        "rabbitmq_auth_attempts_failed_total", "failed", "Total number of failed authentication attempts"
    ),
)
"""With the label `protocol`. Several fields are added."""
PROCESS: Final = (
    _gauge(
        "process_start_time_seconds",
        "started_s",
        "Start time of the process since unix epoch in seconds.",
    ),
    _counter("process_cpu_seconds_total", "cpu_s", "Processor time of the process in seconds"),
)
TOTALS: Final = (
    _gauge("rabbitmq_connections", "connections", "Connections currently open"),
    _gauge("rabbitmq_channels", "channels", "Channels currently open"),
    _gauge("rabbitmq_consumers", "consumers", "Consumers currently connected"),
    _gauge("rabbitmq_queues", "queues", "Queues available"),
)

_GLOBAL: Final = "rabbitmq_global_messages_"
GLOBAL: Final = (
    _counter(f"{_GLOBAL}received_total", "published", "Total number of messages received from publishers"),
    _counter(
        f"{_GLOBAL}received_confirm_total",
        "expecting_confirms",
        "Total number of messages received from publishers expecting confirmations",
    ),
    _counter(f"{_GLOBAL}confirmed_total", "confirmed", "Total number of messages confirmed to publishers"),
    _counter(f"{_GLOBAL}routed_total", "routed", "Total number of messages routed to queues or streams"),
    _counter(
        f"{_GLOBAL}unroutable_dropped_total",
        "unroutable",
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
    ),
    _counter(
        f"{_GLOBAL}unroutable_returned_total",
        "returned",
        "Total number of messages published as mandatory into an exchange and returned to the publisher as "
        "unroutable",
    ),
)
GLOBAL_GAUGES: Final = (
    _gauge("rabbitmq_global_publishers", "publishers", "Current number of publishers"),
    _gauge("rabbitmq_global_consumers", "consumers", "Current number of consumers"),
)
"""Like `GLOBAL`, with the label `protocol`."""
GLOBAL_BY_TYPE: Final = (
    _counter(f"{_GLOBAL}acknowledged_total", "acked", "Total number of messages acknowledged by consumers"),
    _counter(
        f"{_GLOBAL}delivered_total",
        "delivered delivered_auto_ack got got_auto_ack",
        "Total number of messages delivered to consumers",
    ),
    _counter(
        f"{_GLOBAL}delivered_consume_manual_ack_total",
        "delivered",
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
    ),
    _counter(
        f"{_GLOBAL}delivered_consume_auto_ack_total",
        "delivered_auto_ack",
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
    ),
    _counter(
        f"{_GLOBAL}delivered_get_manual_ack_total",
        "got",
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
    ),
    _counter(
        f"{_GLOBAL}delivered_get_auto_ack_total",
        "got_auto_ack",
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
    ),
    _counter(
        f"{_GLOBAL}redelivered_total", "redelivered", "Total number of messages redelivered to consumers"
    ),
    _counter(
        f"{_GLOBAL}get_empty_total",
        "got_empty",
        "Total number of times basic.get operations fetched no message",
    ),
)
"""With the labels `protocol` and `queue_type`. Several fields are added."""
QUEUE_TYPES: Final = ("classic", "quorum", "stream")

VHOST_STATUS: Final = _gauge("rabbitmq_cluster_vhost_status", "", "Whether a given vhost is running")
OF_EXCHANGES: Final = {
    "exchange_bindings": _gauge(
        "rabbitmq_cluster_exchange_bindings",
        "bindings",
        "Number of bindings for an exchange. This value is cluster-wide.",
    ),
    "exchange_names": _gauge(
        "rabbitmq_cluster_exchange_name",
        "",
        "Enumerates exchanges without any additional info. This value is cluster-wide. A cheaper alternative "
        "to `exchange_bindings`",
    ),
}
"""Families without `detailed` in the names of their metrics. Without a field, the value is 1."""
IDENTITY: Final = (
    Metric("rabbitmq_build_info", UNTYPED, "", "RabbitMQ & Erlang/OTP version info"),
    Metric("rabbitmq_identity_info", UNTYPED, "", "RabbitMQ node & cluster identity info"),
    Metric("leveret_build_info", GAUGE, "", "Versions of Leveret and Python"),
)

ALARMS: Final = (
    Metric(
        "rabbitmq_alarms_free_disk_space_watermark",
        UNTYPED,
        "disk_alarm",
        "is 1 if free disk space watermark alarm is in effect",
    ),
    Metric(
        "rabbitmq_alarms_memory_used_watermark",
        UNTYPED,
        "memory_alarm",
        "is 1 if VM memory watermark alarm is in effect",
    ),
)
BROKER: Final = (
    _counter("rabbitmq_io_sync_ops_total", "syncs", "Total number of I/O sync operations"),
    _counter("rabbitmq_io_sync_time_seconds_total", "sync_s", "Total I/O sync time"),
    _gauge("leveret_publishers_blocked", "blocked", "1 while publishers are held back by an alarm"),
    _gauge(
        "leveret_store_memory_bytes",
        "store_memory_bytes",
        "Messages and journal entries in memory that the next checkpoint writes",
    ),
    _gauge("leveret_store_unsynced_bytes", "unsynced_bytes", "Bytes that the next sync writes"),
    _gauge("leveret_store_wal_bytes", "wal_bytes", "Bytes in the write-ahead log since the last checkpoint"),
    _counter(
        "leveret_delivery_deadline_misses_total",
        "deadline_misses",
        "Deliveries taken back because the consumer timeout had passed",
    ),
)
OWN_TOTALS: Final = (
    _counter(
        "leveret_publishes_deduplicated_total", "deduplicated", "Publishes that a queue had already stored"
    ),
    _counter("leveret_settlements_stale_total", "stale_acks", "Late settlements by members of groups"),
    _counter("leveret_damage_total", "damaged", "Damaged records and files that were found"),
)
REASONS: Final = (
    _counter("leveret_publishes_nacked_total", "refused", "Publishes that were nacked, by reason"),
    _counter(
        "leveret_messages_dead_total",
        "deaths",
        "Messages that expired, were dropped or were dead-lettered, by reason",
    ),
)


class HistogramMetric(NamedTuple):
    name: str
    field: str
    """The attribute of the broker's observations."""
    divisor: int
    help: str


_S: Final = 1_000_000
HISTOGRAMS: Final = (
    HistogramMetric(
        "leveret_confirm_latency_seconds", "confirm_latency_us", _S, "Time from a publish to its ack"
    ),
    HistogramMetric(
        "leveret_sync_duration_seconds", "sync_us", _S, "Time of a sync, with encoding and writing"
    ),
    HistogramMetric("leveret_sync_bytes", "sync_bytes", 1, "Bytes that a sync wrote"),
    HistogramMetric(
        "leveret_sync_records", "sync_records", 1, "Messages and journal entries that a sync wrote"
    ),
    HistogramMetric("leveret_checkpoint_duration_seconds", "checkpoint_us", _S, "Time of a checkpoint"),
    HistogramMetric(
        "leveret_timer_lateness_seconds",
        "timer_lateness_us",
        _S,
        "How late expiry, delays, delivery deadlines and leases were handled",
    ),
    HistogramMetric("leveret_turn_duration_seconds", "turn_us", _S, "Time of a turn, from input to output"),
    HistogramMetric("leveret_loop_lag_seconds", "loop_lag_us", _S, "How late the event loop called a timer"),
)
