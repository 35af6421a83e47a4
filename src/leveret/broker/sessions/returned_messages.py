"""Messages that went back to their publishers, for the audit: kept without bodies, while a queue is audited.

One log for a virtual host, kept by age, as long as the longest audit window in it, and by size. The rule: it
is an account and no promise: what can't be written is not in it, and nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from leveret.broker import auxiliary_logs
from leveret.broker.vhosts.topology import Topology
from leveret.storage.errors import BadRequest, WriteFailed
from leveret.storage.log import Log
from leveret.storage.records import PERSISTENT, Message
from leveret.storage.retention import Retention

_BYTES_MAX: Final = 64 << 20


class Returned:
    """`returned.note(messages)`; does nothing where nobody audits."""

    def __init__(self, vhost: Topology) -> None:
        self._vhost = vhost
        self.log: Log | None = None

    def restore(self, log: Log | None) -> None:
        """After a restart; a log that nobody needs any more is left to the broker, with all such."""
        if self._window_us():
            self.log = log
            self.look()

    def look(self) -> None:
        """Queues have come or gone: how long is it to be kept?"""
        window_us = self._window_us()
        retention = Retention(keep_settled=True, max_age_us=window_us, max_bytes=_BYTES_MAX)
        store = self._vhost.broker.store
        if self.log is None and window_us:
            label = auxiliary_logs.label(auxiliary_logs.RETURNED, self._vhost.name)
            self.log = store.create_log(label=label, retention=retention)
        elif self.log is not None and not window_us:
            store.delete_log(self.log)
            self.log = None
        elif self.log is not None and self.log.spec.retention != retention:
            store.set_retention(self.log, retention)

    def _window_us(self) -> int:
        return max((queue.settings.audit_us for queue in self._vhost.queues.values()), default=0)

    def note(self, messages: Sequence[Message]) -> None:
        if self.log is not None:
            kept = [each._replace(body=b"", flags=PERSISTENT, priority=0) for each in messages]
            with suppress(WriteFailed, BadRequest):
                self._vhost.broker.store.append(self.log, kept)
