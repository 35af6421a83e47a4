"""Messages returned to their publishers, kept without bodies for the audit.

Each virtual host with an audited queue has one log of them, limited in size and to the age of the longest
audit window. The rule: nobody waits for this log, and a message that can't be written is left out.
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


class ReturnedMessages:
    """The returned messages of one virtual host; empty while no queue has an audit window."""

    def __init__(self, vhost: Topology) -> None:
        self._vhost = vhost
        self.log: Log | None = None

    def restore(self, log: Log | None) -> None:
        """Take over the log after a restart; without audited queues the broker deletes it as unused."""
        if self._window_us():
            self.log = log
            self.update_retention()

    def update_retention(self) -> None:
        """Create, change or delete the log after queues have been created or deleted."""
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
            bodiless = [message._replace(body=b"", flags=PERSISTENT, priority=0) for message in messages]
            with suppress(WriteFailed, BadRequest):
                self._vhost.broker.store.append(self.log, bodiless)
