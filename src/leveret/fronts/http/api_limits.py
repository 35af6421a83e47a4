"""Limits of the HTTP API. Those of its connections are left to the server that speaks HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """`ApiLimits(body_max_bytes=1 << 20)`."""

    body_max_bytes: int = 64 << 10
    """Largest body of a request."""
    publish_max_bytes: int = 4 << 20
    """Largest body of a request that publishes a message."""
    definitions_max_bytes: int = 16 << 20
    """Largest file of definitions; 10,000 queues with their bindings take 4 MB."""
    durability_timeout_s: float = 10.0
    """Time in which a change must be on disk; afterwards the client gets 503."""
    token_life_s: float = 3600.0
    """Time after which a bearer token ends."""
