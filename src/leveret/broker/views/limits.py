"""Views of the limits of virtual hosts and users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.usage_limits import USER_LIMITS, VHOST_LIMITS

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


class LimitsView(NamedTuple):
    owner: str
    """Name of the virtual host or the user."""
    limits: Mapping[str, int]


def each_limits(broker: Broker, *, of_user: bool) -> Iterator[LimitsView]:
    """Iterate over the limits of all users, or of all virtual hosts, by name."""
    for key, limits in broker.parameters.of(USER_LIMITS if of_user else VHOST_LIMITS):
        yield LimitsView(key.name if of_user else key.vhost, limits)
