"""Operations on the broker as a whole: give it a name, count logins anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.broker.cluster_name import put_cluster_name

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


def rename(broker: Broker, name: str, *, begin: Callable[[], None]) -> None:
    """Change the name of the broker."""
    begin()
    put_cluster_name(broker, name)


def forget_logins(broker: Broker) -> None:
    broker.logins.counts.clear()
