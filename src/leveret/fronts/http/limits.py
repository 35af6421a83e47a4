"""Limits of the HTTP API. Those of its connections are left to the server that speaks HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """`ApiLimits(body_max_bytes=1 << 20)`."""

    body_max_bytes: int = 64 << 10
    """Largest body of a request."""
    durability_timeout_s: float = 10.0
    """Time in which a change must be on disk; afterwards the client gets 503."""
