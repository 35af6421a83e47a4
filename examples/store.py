"""A log and a cursor: append, make durable, take, settle. Run it with `python examples/store.py`."""

import secrets
import tempfile
import time

from leveret.storage.files import OsFiles
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.store import Store

with tempfile.TemporaryDirectory() as directory:
    store = Store(
        OsFiles(directory), clock=lambda: time.time_ns() // 1000, entropy=lambda: secrets.randbits(64)
    )
    orders = store.create_log(label="orders")
    billing = store.create_cursor(orders, "billing")
    store.append(orders, [Message(b"", b"eu", b"", body, PERSISTENT) for body in (b"one", b"two")])
    store.sync()  # one fdatasync for all of it; only now may a publisher be told

    taken = billing.take(10, who=b"worker-1")
    for record in orders.read(taken):
        print(record.offset, record.body.decode())
    billing.settle(taken)
    store.sync()
    store.close()
