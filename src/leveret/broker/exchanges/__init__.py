"""Routing tables, one file per exchange type; `ROUTERS` names them as `exchange.declare` does.

A routing table says where a message goes and nothing else. Which exchanges there are, what they are called,
which survive a restart, and what becomes of a message that reaches nothing is the virtual host's.
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
