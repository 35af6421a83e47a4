"""How rows look on the wire: what a read gives, and what a write takes."""

from __future__ import annotations

import pyarrow as pa

READ: pa.Schema = pa.schema(
    [
        ("offset", pa.uint64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),  # when the broker took it in
        ("priority", pa.uint8()),
        ("exchange", pa.binary()),
        ("routing_key", pa.binary()),
        ("body", pa.binary()),
    ]
)
HEADER: pa.Field = pa.field("header", pa.binary())
"""The content header as it came over AMQP: class, weight, size of the body, flags, properties."""
READ_WITH_HEADERS: pa.Schema = READ.append(HEADER)

WRITE: pa.Schema = pa.schema(
    [
        ("exchange", pa.binary()),
        ("routing_key", pa.binary()),
        ("header", pa.binary()),  # a whole AMQP content header
        ("body", pa.binary()),
    ]
)


def read_schema(*, with_headers: bool) -> pa.Schema:
    return READ_WITH_HEADERS if with_headers else READ
