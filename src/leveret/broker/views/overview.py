"""Views of the whole broker: numbers of objects, totals since the start, and health.

With many queues or channels, the overview shows the sums of the last sweep of `sampling`, at most 5 s ago.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.counters import Churn, Counters, sum_of
from leveret.broker.exchanges import ROUTERS
from leveret.broker.history import Histories
from leveret.broker.sampling import Standing
from leveret.broker.views.connections import counters_of, running
from leveret.broker.views.vhosts import one_vhost

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhosts.vhost import VirtualHost


EXACT_MAX: Final = 1000
"""Queues, or connections and channels, that the overview adds up when it is asked for: 2 ms."""


class OverviewView(NamedTuple):
    name: str
    exchange_types: tuple[str, ...]
    standing: Standing
    queues: int
    exchanges: int
    connections: int
    channels: int
    counters: Counters
    """The sum of all counters; only the broker's own history is the past of the sum."""
    past: Histories


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
    disk_reads: int
    """Messages that were read from segments."""
    disk_writes: int
    """Messages appended to logs of durable queues and streams."""


class HealthView(NamedTuple):
    blocked: str | None
    """Why publishers are held back, or None."""
    damaged: int
    damage: tuple[str, ...]
    """A sentence about each damaged record or file, for the first ones."""


def overview(broker: Broker, vhosts: Collection[str], *, user: str | None = None) -> OverviewView:
    """Return the figures of the whole broker, or those of virtual hosts and one user's connections."""
    sessions = list(running(broker, user=user))
    hosts = [broker.vhosts[name] for name in vhosts]
    own = [host.counters for host in hosts] if user is not None else [broker.counters]
    return OverviewView(
        broker.name,
        tuple(sorted(ROUTERS)),
        _standing(broker, hosts),
        sum(len(host.queues) for host in hosts),
        sum(len(host.exchanges) for host in hosts),
        len(sessions),
        sum(len(session.channels) for session in sessions),
        _counted(broker, None if user is None else vhosts),
        Histories(counters.history for counters in own),
    )


def _standing(broker: Broker, hosts: Sequence[VirtualHost]) -> Standing:
    standing = Standing()
    if sum(len(host.queues) for host in hosts) > EXACT_MAX:
        for host in hosts:
            standing = standing.plus(broker.sampler.standing.get(host.name, Standing()))
        return standing
    for host in hosts:
        view = one_vhost(broker, host.name)
        assert view is not None
        standing = standing.plus(Standing(view.ready, view.unacked, view.delayed, view.consumers))
    return standing


def _counted(broker: Broker, vhosts: Collection[str] | None) -> Counters:
    """Return the sum of all counters, of the broker or of virtual hosts."""
    sampler = broker.sampler
    are_many = sum(1 + len(session.channels) for session in broker.sessions) > EXACT_MAX
    if vhosts is None:
        return sampler.totals() if are_many else totals(broker).counters
    sums = Counters()
    for name in vhosts:
        sums.take_over(sampler.totals_of(name) if are_many else broker.vhosts[name].counters)
    if not are_many:
        for session in running(broker, vhosts):
            sums.take_over(counters_of(session))
    return sums


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
        broker.store.records_read,
        counters.disk_writes,
    )


def health(broker: Broker, *, most: int) -> HealthView:
    """Return the alarms and the damage, with at most `most` sentences about damage."""
    return HealthView(broker.blocked, broker.counters.damaged, tuple(broker.damage[:most]))
