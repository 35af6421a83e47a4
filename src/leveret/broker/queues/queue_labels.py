"""The label that the store keeps on the log of a durable queue: all that is needed to make the queue again.

Definitions and messages become durable independently. The label tells which queue the messages of a log
belong to, even if the definition was lost in a crash.
"""

from __future__ import annotations

import json

from leveret.broker.canonical import decode_table, encode_table
from leveret.broker.definitions import QueueRow
from leveret.storage.log import Log


def label_of(row: QueueRow) -> str:
    arguments = encode_table(row.arguments).hex()
    return json.dumps([row.vhost, row.name, row.auto_delete, arguments])


def row_of(log: Log) -> QueueRow:
    """Return the durable queue that is described by the label of a log."""
    vhost, name, auto_delete, arguments = json.loads(log.spec.label)
    return QueueRow(vhost, name, log.id, auto_delete, decode_table(bytes.fromhex(arguments))[0])
