"""An exchange: its name, its declared properties and its routing table.

The other files of `exchanges/` route, one for each exchange type. The virtual host owns the exchanges and
routes messages from one exchange to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from leveret.broker.canonical import Value
from leveret.broker.counters import Counters
from leveret.broker.exchanges import Router
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.policies import NO_POLICIES, AppliedPolicies

Bound = Union[Destination, "Exchange"]
"""The destination of a binding: a queue, a stream or another exchange."""


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
    policies: AppliedPolicies = NO_POLICIES
    """The policies that apply: see `vhosts.policy_changes`."""
    defined: int = 0
    """Number of the definition change that created the exchange."""
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.router.configure(self.table)
