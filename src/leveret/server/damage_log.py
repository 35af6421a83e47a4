"""Logs damage: places in files that do not match their checksum.

Each damaged place is one line in the log, with file, position, offset and queue. The broker counts damage and
reports itself as degraded in `GET /health`. Detection is left to the store, which continues. A commit round
that a killed process did not finish is logged, but not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from leveret.broker.broker import Broker
from leveret.broker.definitions import BindingRow, PermissionRow, Row
from leveret.storage.errors import Damage
from leveret.storage.recovery import UNFINISHED

log = logging.getLogger("leveret")


class DamageReport:
    """Logs damage that the store has found since the last `report.look()`, called after each turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen = 0

    def look(self) -> None:
        places = self._broker.store.damage
        if self._seen < len(places):
            new = places[self._seen :]
            self._seen += len(new)
            self.tell(new)

    def tell(self, places: Sequence[Damage]) -> None:
        for damage in places:
            owner = owner_of(self._broker, damage.file)
            log.error("%s%s", damage, f" ({owner})" if owner else "")
            if damage.what != UNFINISHED:
                self._broker.note_damage(str(damage))

    def tell_definitions(self, rows: Sequence[object]) -> None:
        """Log and count rows that were damaged when the broker started, and rows removed with them."""
        for sentence in [*map(str, rows), *map(_removal, self._broker.orphans)]:
            log.error("definitions: %s", sentence)
            self._broker.note_damage(f"definitions: {sentence}")


def _removal(orphan: Row) -> str:
    """Return why a row was removed, without password hashes and patterns of permissions."""
    match orphan:
        case PermissionRow():
            owner = f"user '{orphan.user}' in vhost '{orphan.vhost}'"
            return f"the permissions of {owner} were removed: the user does not exist"
        case BindingRow():
            ends = f"from exchange '{orphan.source}' to '{orphan.destination}' in vhost '{orphan.vhost}'"
            return (
                f"the binding {ends} with key '{orphan.routing_key}' was removed: one of its ends is missing"
            )
    return f"{orphan} was removed"


def owner_of(broker: Broker, path: str) -> str:
    """Return the queue that a file of the store belongs to, or an empty string.

    >>> owner_of(broker, "logs/0000000000000001/msgs.00000000000000000000.0")
    "queue 'orders' in vhost '/'"
    """
    directory = "/".join(path.split("/")[:2])
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            for messages in queue.logs:
                journals = [cursor.journal for cursor in broker.store.cursors(messages.id).values()]
                if any(log.spec.directory == directory for log in [messages, *journals]):
                    return str(queue)
    return ""
