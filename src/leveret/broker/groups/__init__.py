"""Consumer groups: RocketMQ's progress model over streams and topics, with the holes kept."""
