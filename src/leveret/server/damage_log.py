"""Damage: what is found in the files and does not match its checksum, told to people.

Each damaged place is one line in the log, with file, position, offset and the queue it belongs to; the broker
counts it and says in `GET /health` that it is degraded. Finding it is left to the store, which goes on. The
end of a round that a killed process did not finish is logged, but is no damage.
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
    """`report.look()` after each turn: damage that the store has found since is told."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen = 0

    def look(self) -> None:
        found = self._broker.store.damage
        if self._seen < len(found):
            new = found[self._seen :]
            self._seen += len(new)
            self.tell(new)

    def tell(self, found: Sequence[Damage]) -> None:
        """Also of what readers in other processes have found."""
        for damage in found:
            owner = owner_of(self._broker, damage.file)
            log.error("%s%s", damage, f" ({owner})" if owner else "")
            if damage.what != UNFINISHED:
                self._broker.note_damage(str(damage))

    def tell_definitions(self, rows: Sequence[object]) -> None:
        """Rows that were damaged when the broker started, and those that were removed with them."""
        for sentence in [*map(str, rows), *map(_removal, self._broker.orphans)]:
            log.error("definitions: %s", sentence)
            self._broker.note_damage(f"definitions: {sentence}")


def _removal(orphan: Row) -> str:
    """Why a row was removed at the start. Hashes of passwords and patterns of permissions are not shown."""
    match orphan:
        case PermissionRow():
            rights = f"of user '{orphan.user}' in vhost '{orphan.vhost}'"
            return f"the permissions {rights} were removed: there is no such user"
        case BindingRow():
            ends = f"from exchange '{orphan.source}' to '{orphan.destination}' in vhost '{orphan.vhost}'"
            return (
                f"the binding {ends} with key '{orphan.routing_key}' was removed: one of its ends is missing"
            )
    return f"{orphan} was removed"


def owner_of(broker: Broker, path: str) -> str:
    """Return which queue a file of the store belongs to; '' if it is no queue's.

    >>> owner_of(broker, "logs/0000000000000001/msgs.00000000000000000000.0")
    "queue 'orders' in vhost '/'"
    """
    directory = "/".join(path.split("/")[:2])
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            for each in queue.logs:
                journals = [cursor.journal for cursor in broker.store.cursors(each.id).values()]
                if any(log.spec.directory == directory for log in [each, *journals]):
                    return str(queue)
    return ""
