"""What is known about a virtual host besides its objects: description, tags, default queue type, tracing.

    broker.parameters.put(key_of("billing"), Metadata(description="Invoices", tags=("prod",)).as_document())

A virtual host without a document has the defaults. The default queue type is for declarations without
`x-queue-type`. Tracing is only remembered: the broker publishes nothing to `amq.rabbitmq.trace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from leveret.broker.canonical import Value
from leveret.broker.parameters import Key

METADATA: Final = "vhost-metadata"
QUEUE_TYPES: Final = ("classic", "quorum", "stream")
UNDEFINED: Final = "undefined"
"""RabbitMQ's word for no default queue type."""


class Metadata(NamedTuple):
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = UNDEFINED
    tracing: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Metadata:
        """Return the metadata in a parameter's document, or the defaults without one."""
        if document is None:
            return cls()
        return cls(**{**document, "tags": tuple(document["tags"])})

    def as_document(self) -> dict[str, Any]:
        return self._asdict()

    def with_default_type(
        self, table: Mapping[str, Value], *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> dict[str, Value]:
        """Return the arguments of a declared queue with the default type, where this type is possible."""
        default = self.default_queue_type
        is_possible = default == "classic" or (durable and not exclusive and not auto_delete)
        if default == UNDEFINED or "x-queue-type" in table or not is_possible:
            return dict(table)
        return {**table, "x-queue-type": default}


class DescribedHost(Protocol):
    metadata: Metadata


class DescribedBroker(Protocol):
    @property
    def vhosts(self) -> Mapping[str, DescribedHost]: ...


def key_of(vhost: str) -> Key:
    """Return the key of a virtual host's metadata among the parameters."""
    return Key(METADATA, vhost, "metadata")


def apply_metadata(broker: DescribedBroker, key: Key, document: Mapping[str, Any] | None) -> None:
    """Put new, changed or removed metadata of a virtual host in force."""
    broker.vhosts[key.vhost].metadata = Metadata.of(document)
