"""Routing tables, one file per exchange type; `ROUTERS` maps the type names of `exchange.declare` to them.

A routing table returns the destinations of a message and does nothing else. The virtual host owns the
exchanges, their names and durability, and handles messages that reach no destination.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from leveret.broker.exchanges.consistent_hash import ConsistentHashRouter
from leveret.broker.exchanges.direct import DirectRouter
from leveret.broker.exchanges.fanout import FanoutRouter
from leveret.broker.exchanges.headers import HeadersRouter
from leveret.broker.exchanges.router import Binding, Destination, Router
from leveret.broker.exchanges.topic import TopicRouter

ROUTERS: Final[Mapping[str, type[Router[Any]]]] = MappingProxyType(
    {
        "direct": DirectRouter,
        "fanout": FanoutRouter,
        "topic": TopicRouter,
        "headers": HeadersRouter,
        "x-consistent-hash": ConsistentHashRouter,
    }
)

__all__ = ["ROUTERS", "Binding", "Destination", "Router"]
