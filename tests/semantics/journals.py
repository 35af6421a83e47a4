"""What the journal of queue q says, as it is on the broker's thread."""

from __future__ import annotations

from leveret.storage.cursor import Cursor
from leveret.storage.journal import Entry, Kind
from leveret.testing.broker import Broker


def cursor_of(broker: Broker, name: str = "q") -> Cursor:
    return broker.server.broker.vhosts["/"].queue(name).cursor


def entries_now(broker: Broker, *kinds: Kind) -> list[Entry]:
    """On the broker's thread."""
    cursor = cursor_of(broker)
    found = cursor.entries(cursor.journal.first, cursor.journal.next)
    return [entry for entry in found if entry.kind in kinds]


def entries(broker: Broker, *kinds: Kind) -> list[Entry]:
    return broker.call(lambda: entries_now(broker, *kinds))
