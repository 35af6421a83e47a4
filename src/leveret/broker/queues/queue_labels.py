"""The label that the store keeps on the log of a durable queue: all that is needed to make the queue again.

Definitions and messages become durable independently of one another. With the label the store alone can tell
whose messages it holds, whichever came first before a crash.
"""

from __future__ import annotations

import json

from leveret.broker.canonical import decode_table, encode_table
from leveret.broker.definitions import QueueRow
from leveret.storage.log import Log


def label_of(row: QueueRow) -> str:
    """Return the label for the log of this queue."""
    arguments = encode_table(row.arguments).hex()
    return json.dumps([row.vhost, row.name, row.auto_delete, arguments])


def row_of(log: Log) -> QueueRow:
    """Return the durable queue that a log with a label belongs to."""
    vhost, name, auto_delete, arguments = json.loads(log.spec.label)
    return QueueRow(vhost, name, log.id, auto_delete, decode_table(bytes.fromhex(arguments))[0])
