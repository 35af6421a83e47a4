"""An exchange: a name, some properties, and a routing table.

How each type routes is in `exchanges/`; which exchanges there are, and how a message travels from one to the
next, is the virtual host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.exchanges import Router
from leveret.broker.vhosts.destination import Destination

Bound = Union[Destination, "Exchange"]
"""What can be bound to an exchange."""


@dataclass(slots=True, eq=False)
class Exchange:
    name: str
    type: str
    router: Router[Bound]
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    table: Mapping[str, Value] = field(default_factory=dict)
    """The arguments as declared."""
    alternate: str | None = None
    defined: int = 0
    """The number of the definition change that made it."""
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.router.configure(self.table)
