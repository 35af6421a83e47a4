"""Deliveries of AMQP as Arrow record batches, with the columns of Leveret's Flight endpoint.

So `columns` makes rows of messages of any broker. Only this module handles messages one by one in Python,
because brokers without a bulk interface deliver them so. The rule: every message is carried on, whatever it
holds; properties that can't be read are left to the reader of the column.
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
"""Schema of the spool's files."""
STREAM_OFFSET: Final = "x-stream-offset"
"""Argument: where a consumer of a stream begins. Header of a message: its offset in the stream."""
_CHUNK_MESSAGES: Final = 8_192
CHUNK_BYTES: Final = 16 << 20
"""Largest size of the bodies in a record batch, unless a single message is larger."""
_COUNT_MAX: Final = 2**31 - 1
"""Largest number in the column `delivery_count`; publishers may send a header with a larger one."""


def chunks_of(deliveries: list[Delivery], first: int, *, at_least: int) -> list[pa.RecordBatch]:
    """Return messages of a queue, numbered from `first` on, in at least `at_least` record batches."""
    count = len(deliveries)
    pieces = max(-(-count // _CHUNK_MESSAGES), min(at_least, count))
    ends = {count * index // pieces for index in range(1, pieces + 1)}
    now_us = int(time.time() * 1_000_000)
    chunks: list[pa.RecordBatch] = []
    start = size_bytes = 0
    for stop, delivery in enumerate(deliveries, start=1):
        size_bytes += len(delivery.body)
        if stop in ends or size_bytes >= CHUNK_BYTES:
            chunks.append(_of_queue(deliveries[start:stop], first + start, now_us))
            start, size_bytes = stop, 0
    return chunks


def _of_queue(deliveries: list[Delivery], first: int, now_us: int) -> pa.RecordBatch:
    """Return one record batch. Its `timestamp` is the time of delivery: brokers tell no enqueue time."""
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
    """Return messages of a stream, without a time: it would differ when the batch runs again."""
    count = len(deliveries)
    columns = _carried(deliveries) | {
        "offset": pa.array(offsets, pa.uint64()),
        "timestamp": pa.nulls(count, READ_WITH_HEADERS.field("timestamp").type),
        "priority": pa.repeat(pa.scalar(0, pa.uint8()), count),
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
        priority = delivery.properties.get("priority")
    except ConversionError:
        return 0
    return priority if isinstance(priority, int) else 0


def _deliveries_before(delivery: Delivery) -> int:
    """Return the broker's count of earlier deliveries; of brokers that do not count, 1 for a redelivery."""
    if DELIVERY_COUNT.encode() in delivery.header:
        with suppress(ConversionError):
            count = delivery.headers.get(DELIVERY_COUNT)
            if isinstance(count, int) and not isinstance(count, bool):
                return max(0, min(count, _COUNT_MAX))
    return int(delivery.wire_redelivered)
