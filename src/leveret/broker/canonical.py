"""The canonical form of a message: a content header of AMQP 0-9-1, then the body, as they are stored.

Fronts of other protocols translate messages into this form and from it, so a message can be published with
one protocol and delivered with another. Arguments of queues and headers of messages are tables of AMQP's
field types (`Value`). The rule: no other module of the broker imports `leveret.amqp`.
"""

from leveret.amqp.errors import SyntaxError_ as MalformedHeader
from leveret.amqp.names import to_bytes, to_text
from leveret.amqp.properties import (
    APP_ID,
    CLUSTER_ID,
    TIMESTAMP,
    TYPE,
    USER_ID,
    Peek,
    body_size,
    decode,
    encode,
    headers_of,
    peek,
    split_for_fields,
    with_headers,
)
from leveret.amqp.tables import Timestamp, Value, decode_table, encode_table

__all__ = [
    "APP_ID",
    "CLUSTER_ID",
    "TIMESTAMP",
    "TYPE",
    "USER_ID",
    "MalformedHeader",
    "Peek",
    "Timestamp",
    "Value",
    "body_size",
    "decode",
    "decode_table",
    "encode",
    "encode_table",
    "headers_of",
    "peek",
    "split_for_fields",
    "to_bytes",
    "to_text",
    "with_headers",
]
