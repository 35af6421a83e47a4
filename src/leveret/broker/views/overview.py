"""The broker as a whole: what it is, how much of everything it has, and what has happened since its start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.counters import Counters
from leveret.broker.exchanges import ROUTERS
from leveret.broker.views.connections import counters_of, running
from leveret.broker.views.vhosts import VhostView, one_vhost

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


class OverviewView(NamedTuple):
    name: str
    exchange_types: tuple[str, ...]
    vhosts: tuple[VhostView, ...]
    connections: int
    channels: int


class TotalsView(NamedTuple):
    """What has happened in the whole broker since its start."""

    counters: Counters
    deduplicated: int
    """Publishes that a queue had stored already."""
    stale_acks: int
    """Settlements by members of groups that came too late."""
    refused: Mapping[str, int]
    """Publishes that were nacked, by the reason."""
    deaths: Mapping[str, int]
    """Messages that died, by the reason."""
    damaged: int
    """Damaged things that were found in files."""


class HealthView(NamedTuple):
    blocked: str | None
    """Why publishers are held back."""
    damaged: int
    damage: tuple[str, ...]
    """The first damaged things, each in a sentence."""


def overview(broker: Broker, vhosts: Collection[str], *, user: str | None = None) -> OverviewView:
    """The totals of these virtual hosts, with all connections, or with those of one user."""
    sessions = list(running(broker, user=user))
    return OverviewView(
        broker.name,
        tuple(sorted(ROUTERS)),
        tuple(view for view in (one_vhost(broker, name) for name in vhosts) if view is not None),
        len(sessions),
        sum(len(session.channels) for session in sessions),
    )


def totals(broker: Broker) -> TotalsView:
    """Add up what all open channels count, 3 µs for each, and what was counted by those that are gone."""
    counters, sums = broker.counters, broker.counters.copy()
    for session in broker.sessions:
        sums.take_over(counters_of(session))
    return TotalsView(
        sums,
        counters.deduplicated,
        counters.stale_acks,
        dict(counters.refused),
        dict(counters.deaths),
        counters.damaged,
    )


def health(broker: Broker, *, most: int) -> HealthView:
    """With at most so many sentences about damage."""
    return HealthView(broker.blocked, broker.counters.damaged, tuple(broker.damage[:most]))
