"""`x-expires`: a queue that is unused for this time is deleted.

A queue is in use while it has a consumer. A declaration, a get and a request of a query restart the time. The
rule: a queue is not deleted while a query or a batch holds messages of it.
"""

from __future__ import annotations

from collections.abc import Callable

from leveret.broker.vhosts.destination import Destination


class QueueTtl:
    """`restart()` is called when the queue is used; `is_held` says whether the queue must not be deleted."""

    def __init__(self, queue: Destination, is_held: Callable[[], bool]) -> None:
        self._queue = queue
        self._is_held = is_held

    def restart(self) -> None:
        """Restart the time, because the queue was used just now."""
        queue, timers = self._queue, self._queue.broker.timers
        expires_ms = queue.settings.expires_ms
        if expires_ms is None:
            return
        if queue.consumer_count:
            timers.cancel((queue, "queue_ttl"))
        else:
            timers.set((queue, "queue_ttl"), queue.broker.now_us() + 1000 * expires_ms, self._delete)

    def settings_changed(self) -> None:
        self._queue.broker.timers.cancel((self._queue, "queue_ttl"))
        self.restart()

    def _delete(self) -> None:
        if self._is_held():
            self.restart()
        else:
            self._queue.vhost.delete_queue(self._queue)
