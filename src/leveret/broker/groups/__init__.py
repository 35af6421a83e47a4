"""Consumer groups over streams and topics: RocketMQ's model of progress, with a record of the holes."""
