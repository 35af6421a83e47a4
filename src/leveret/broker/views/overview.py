"""Views of the whole broker: numbers of objects, totals since the start, and health."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.counters import Churn, Counters, sum_of
from leveret.broker.exchanges import ROUTERS
from leveret.broker.views.connections import running
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
    """The totals of the whole broker since its start."""

    counters: Counters
    deduplicated: int
    """Publishes that a queue had already stored."""
    stale_acks: int
    """Late settlements by members of groups."""
    refused: Mapping[str, int]
    """Nacked publishes by reason."""
    deaths: Mapping[str, int]
    """Messages that expired, were dropped or were dead-lettered, by reason."""
    damaged: int
    """Damaged records and files that were found."""
    churn: Churn
    """Connections, channels and queues that began and ended."""


class HealthView(NamedTuple):
    blocked: str | None
    """Why publishers are held back, or None."""
    damaged: int
    damage: tuple[str, ...]
    """A sentence about each damaged record or file, for the first ones."""


def overview(broker: Broker, vhosts: Collection[str], *, user: str | None = None) -> OverviewView:
    """Return the figures of these virtual hosts, and the number of connections, of all users or one."""
    sessions = list(running(broker, user=user))
    return OverviewView(
        broker.name,
        tuple(sorted(ROUTERS)),
        tuple(view for view in (one_vhost(broker, name) for name in vhosts) if view is not None),
        len(sessions),
        sum(len(session.channels) for session in sessions),
    )


def totals(broker: Broker) -> TotalsView:
    """Add the counters of all open channels, 2 µs for each, to those of closed ones."""
    counters = broker.counters
    of_sessions = (session.counters for session in broker.sessions)
    of_channels = (channel.counters for session in broker.sessions for channel in session.channels)
    sums = sum_of((counters, *of_sessions, *of_channels))
    sums.history = counters.history
    return TotalsView(
        sums,
        counters.deduplicated,
        counters.stale_acks,
        dict(counters.refused),
        dict(counters.deaths),
        counters.damaged,
        replace(counters.churn),
    )


def health(broker: Broker, *, most: int) -> HealthView:
    """Return the alarms and the damage, with at most `most` sentences about damage."""
    return HealthView(broker.blocked, broker.counters.damaged, tuple(broker.damage[:most]))
