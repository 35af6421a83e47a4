"""`x-expires`: a queue that nobody uses for so long is deleted.

A consumer uses a queue for as long as it is there; a declaration, a get and a query that is heard of use it
for a moment, from which the time begins again. The rule: a queue is not deleted while a query or a batch has
messages of it.
"""

from __future__ import annotations

from collections.abc import Callable

from leveret.broker.vhosts.destination import Destination


class Disuse:
    """`queue_ttl.restart()` when the queue is used; `is_held` says whether it must stay."""

    def __init__(self, queue: Destination, is_held: Callable[[], bool]) -> None:
        self._queue = queue
        self._is_held = is_held

    def restart(self) -> None:
        """The queue was used just now: its time begins again."""
        queue, timers = self._queue, self._queue.broker.timers
        expires_ms = queue.settings.expires_ms
        if expires_ms is None:
            return
        if queue.consumer_count:
            timers.cancel((queue, "disuse"))
        else:
            timers.set((queue, "disuse"), queue.broker.now_us() + 1000 * expires_ms, self._delete)

    def settings_changed(self) -> None:
        self._queue.broker.timers.cancel((self._queue, "disuse"))
        self.restart()

    def _delete(self) -> None:
        if self._is_held():
            self.restart()
        else:
            self._queue.vhost.delete_queue(self._queue)
