"""Deliveries of AMQP as Arrow record batches, with the columns that Leveret's own endpoint gives.

So that `columns` makes the same rows of them, wherever messages come from. Each message is touched by Python
here, and only here: on brokers without a bulk interface they come one by one. The rule: whatever a message
holds, it is carried on; properties that can't be read are left to whoever asks for them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa

from leveret.client.delivery import DELIVERY_COUNT, Delivery
from leveret.client.errors import ConversionError
from leveret.flight.schemas import READ_WITH_HEADERS

SCHEMA: Final[pa.Schema] = READ_WITH_HEADERS.append(pa.field("redelivered", pa.bool_())).append(
    pa.field("delivery_count", pa.int32())
)
"""Of the spool's files."""
STREAM_OFFSET: Final = "x-stream-offset"
"""Where a consumer of a stream begins, and, in a message, where that is."""
_CHUNK_MESSAGES: Final = 8_192
CHUNK_BYTES: Final = 16 << 20
"""A record batch holds no more, unless one message does."""
_COUNT_MAX: Final = 2**31 - 1
"""What fits into the column; anybody may publish a header that says more."""


def chunks_of(deliveries: list[Delivery], first: int, *, at_least: int) -> list[pa.RecordBatch]:
    """Messages of a queue, numbered from `first` on, in record batches small enough for `at_least` tasks."""
    count = len(deliveries)
    pieces = max(-(-count // _CHUNK_MESSAGES), min(at_least, count))
    ends = {count * index // pieces for index in range(1, pieces + 1)}
    now_us = int(time.time() * 1_000_000)
    found: list[pa.RecordBatch] = []
    start = size = 0
    for stop, delivery in enumerate(deliveries, start=1):
        size += len(delivery.body)
        if stop in ends or size >= CHUNK_BYTES:
            found.append(_of_queue(deliveries[start:stop], first + start, now_us))
            start, size = stop, 0
    return found


def _of_queue(deliveries: list[Delivery], first: int, now_us: int) -> pa.RecordBatch:
    """`timestamp` is when they came here: brokers do not say when they came there."""
    count = len(deliveries)
    columns = _carried(deliveries) | {
        "offset": pa.array(np.arange(first, first + count, dtype=np.uint64)),
        "timestamp": pa.repeat(pa.scalar(now_us, SCHEMA.field("timestamp").type), count),
        "priority": pa.array([_priority(delivery) for delivery in deliveries], pa.uint8()),
        "redelivered": pa.array([delivery.wire_redelivered for delivery in deliveries], pa.bool_()),
        "delivery_count": pa.array([_deliveries_before(delivery) for delivery in deliveries], pa.int32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def of_stream(deliveries: list[Delivery], offsets: list[int]) -> pa.RecordBatch:
    """Messages of a stream: no time, since another try at the same batch would give them another."""
    count = len(deliveries)
    columns = _carried(deliveries) | {
        "offset": pa.array(offsets, pa.uint64()),
        "timestamp": pa.nulls(count, READ_WITH_HEADERS.field("timestamp").type),
        "priority": pa.repeat(pa.scalar(0, pa.uint8()), count),  # streams have none
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in READ_WITH_HEADERS.names], schema=READ_WITH_HEADERS
    )


def _carried(deliveries: list[Delivery]) -> dict[str, pa.Array]:
    return {
        "exchange": pa.array([_bytes(delivery.wire_exchange) for delivery in deliveries], pa.binary()),
        "routing_key": pa.array([_bytes(delivery.wire_routing_key) for delivery in deliveries], pa.binary()),
        "body": pa.array([delivery.body for delivery in deliveries], pa.binary()),
        "header": pa.array([delivery.header for delivery in deliveries], pa.binary()),
    }


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _priority(delivery: Delivery) -> int:
    try:
        found = delivery.properties.get("priority")
    except ConversionError:
        return 0
    return found if isinstance(found, int) else 0


def _deliveries_before(delivery: Delivery) -> int:
    """What the broker counted; where it does not count, at least one if it was delivered before."""
    if DELIVERY_COUNT.encode() in delivery.header:
        with suppress(ConversionError):
            counted = delivery.headers.get(DELIVERY_COUNT)
            if isinstance(counted, int) and not isinstance(counted, bool):
                return max(0, min(counted, _COUNT_MAX))
    return int(delivery.wire_redelivered)
