"""The metrics that RabbitMQ's published Grafana dashboard `RabbitMQ-Overview` asks for, panel by panel.

`PANELS` has the names in the queries of its panels: of older versions, which sum `rabbitmq_channel_…`, and of
newer ones, which read `rabbitmq_global_…`. All panels apply to Leveret. Every query is multiplied with
`rabbitmq_identity_info`, which therefore must have the labels in `IDENTITY`.

RabbitMQ's other dashboards show what only RabbitMQ has: `Erlang-…` (memory allocators, schedulers and
distribution links of Erlang), `RabbitMQ-Quorum-Queues-Raft` and `RabbitMQ-Raft` (Raft logs between nodes) and
`RabbitMQ-Stream` (the stream protocol). They show nothing about Leveret.
"""

IDENTITY = {"rabbitmq_node", "rabbitmq_cluster"}

PANELS = {
    "Ready messages": ["rabbitmq_queue_messages_ready"],
    "Incoming messages / s": [
        "rabbitmq_channel_messages_published_total",
        "rabbitmq_global_messages_received_total",
    ],
    "Publishers": ["rabbitmq_channels", "rabbitmq_channel_consumers", "rabbitmq_global_publishers"],
    "Connections": ["rabbitmq_connections"],
    "Queues": ["rabbitmq_queues"],
    "Unacknowledged messages": ["rabbitmq_queue_messages_unacked"],
    "Outgoing messages / s": [
        "rabbitmq_channel_messages_redelivered_total",
        "rabbitmq_channel_messages_delivered_total",
        "rabbitmq_channel_messages_delivered_ack_total",
        "rabbitmq_channel_get_total",
        "rabbitmq_channel_get_ack_total",
        "rabbitmq_global_messages_redelivered_total",
        "rabbitmq_global_messages_delivered_total",
    ],
    "Consumers": ["rabbitmq_channel_consumers", "rabbitmq_global_consumers"],
    "Channels": ["rabbitmq_channels"],
    "Nodes": ["rabbitmq_build_info"],
    "Memory available before publishers blocked": [
        "rabbitmq_resident_memory_limit_bytes",
        "rabbitmq_process_resident_memory_bytes",
    ],
    "Disk space available before publishers blocked": ["rabbitmq_disk_space_available_bytes"],
    "File descriptors available": ["rabbitmq_process_max_fds", "rabbitmq_process_open_fds"],
    "TCP sockets available": ["rabbitmq_process_max_tcp_sockets", "rabbitmq_process_open_tcp_sockets"],
    "Messages ready to be delivered to consumers": ["rabbitmq_queue_messages_ready"],
    "Messages pending consumer acknowledgement": ["rabbitmq_queue_messages_unacked"],
    "Messages published / s": [
        "rabbitmq_channel_messages_published_total",
        "rabbitmq_global_messages_received_total",
    ],
    "Messages confirmed to publishers / s": [
        "rabbitmq_channel_messages_confirmed_total",
        "rabbitmq_global_messages_confirmed_total",
    ],
    "Messages routed to queues / s": [
        "rabbitmq_queue_messages_published_total",
        "rabbitmq_global_messages_routed_total",
    ],
    "Messages unconfirmed to publishers / s": [
        "rabbitmq_channel_messages_unconfirmed",
        "rabbitmq_global_messages_received_confirm_total",
        "rabbitmq_global_messages_confirmed_total",
    ],
    "Unroutable messages dropped / s": [
        "rabbitmq_channel_messages_unroutable_dropped_total",
        "rabbitmq_global_messages_unroutable_dropped_total",
    ],
    "Unroutable messages returned to publishers / s": [
        "rabbitmq_channel_messages_unroutable_returned_total",
        "rabbitmq_global_messages_unroutable_returned_total",
    ],
    "Messages delivered / s": [
        "rabbitmq_channel_messages_delivered_total",
        "rabbitmq_channel_messages_delivered_ack_total",
        "rabbitmq_global_messages_delivered_total",
    ],
    "Messages redelivered / s": [
        "rabbitmq_channel_messages_redelivered_total",
        "rabbitmq_global_messages_redelivered_total",
    ],
    "Messages delivered with manual ack / s": [
        "rabbitmq_channel_messages_delivered_ack_total",
        "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    ],
    "Messages delivered auto ack / s": [
        "rabbitmq_channel_messages_delivered_total",
        "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    ],
    "Messages acknowledged / s": [
        "rabbitmq_channel_messages_acked_total",
        "rabbitmq_global_messages_acknowledged_total",
    ],
    "Polling operations with auto ack / s": [
        "rabbitmq_channel_get_total",
        "rabbitmq_global_messages_delivered_get_auto_ack_total",
    ],
    "Polling operations that yield no result / s": [
        "rabbitmq_channel_get_empty_total",
        "rabbitmq_global_messages_get_empty_total",
    ],
    "Polling operations with manual ack / s": [
        "rabbitmq_channel_get_ack_total",
        "rabbitmq_global_messages_delivered_get_manual_ack_total",
    ],
    "Total queues": ["rabbitmq_queues"],
    "Queues declared / s": ["rabbitmq_queues_declared_total"],
    "Queues created / s": ["rabbitmq_queues_created_total"],
    "Queues deleted / s": ["rabbitmq_queues_deleted_total"],
    "Total channels": ["rabbitmq_channels"],
    "Channels opened / s": ["rabbitmq_channels_opened_total"],
    "Channels closed / s": ["rabbitmq_channels_closed_total"],
    "Total connections": ["rabbitmq_connections"],
    "Connections opened / s": ["rabbitmq_connections_opened_total"],
    "Connections closed / s": ["rabbitmq_connections_closed_total"],
}
