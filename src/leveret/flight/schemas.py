"""Arrow schemas of the rows that a read returns and a write sends.

`timestamp` is when the broker received the message; `header` is the payload of AMQP's content header.
"""

from __future__ import annotations

import pyarrow as pa

READ: pa.Schema = pa.schema(
    [
        ("offset", pa.uint64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("priority", pa.uint8()),
        ("exchange", pa.binary()),
        ("routing_key", pa.binary()),
        ("body", pa.binary()),
    ]
)
HEADER: pa.Field = pa.field("header", pa.binary())
READ_WITH_HEADERS: pa.Schema = READ.append(HEADER)

WRITE: pa.Schema = pa.schema(
    [
        ("exchange", pa.binary()),
        ("routing_key", pa.binary()),
        ("header", pa.binary()),
        ("body", pa.binary()),
    ]
)


def read_schema(*, with_headers: bool) -> pa.Schema:
    return READ_WITH_HEADERS if with_headers else READ
