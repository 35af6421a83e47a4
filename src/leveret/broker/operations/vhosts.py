"""Operations on virtual hosts: create, change and delete them.

    create(broker, "billing", description="Invoices", tags=["production"], creator=ann, begin=begin)

Everything is checked before anything is changed. Whether the user may do this is left to the caller, and
limits are left to `operations.limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leveret.broker.access import administration
from leveret.broker.access.accounts import User
from leveret.broker.definitions import Change, VhostRow
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.vhosts import deletion, metadata
from leveret.broker.vhosts.metadata import QUEUE_TYPES, UNDEFINED, Metadata
from leveret.broker.vhosts.vhost import VirtualHost

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


def create(
    broker: Broker,
    name: str,
    *,
    description: str = "",
    tags: Sequence[str] = (),
    default_queue_type: str | None = None,
    tracing: bool | None = None,
    creator: User | None = None,
    begin: Callable[[], None],
) -> bool:
    """Create a virtual host, or change an existing one; return whether it is new.

    Default queue type and tracing stay as they are with None. The creator gets all permissions in a new
    virtual host.
    """
    if not name:
        raise PreconditionFailed("a virtual host needs a name")
    present = broker.vhosts[name].metadata if name in broker.vhosts else Metadata()
    wanted = Metadata(
        description,
        tuple(tags),
        present.default_queue_type if default_queue_type is None else default_queue_type,
        present.tracing if tracing is None else tracing,
    )
    for text in (description, *tags):
        _check_text(text)
    if wanted.default_queue_type not in (*QUEUE_TYPES, UNDEFINED):
        raise PreconditionFailed(
            f"'{wanted.default_queue_type}' is not a type of queue: default_queue_type is one of "
            f"{', '.join(QUEUE_TYPES)}"
        )
    begin()
    broker.definitions.check()
    is_new = name not in broker.vhosts
    if is_new:
        vhost = broker.vhosts[name] = VirtualHost(broker, name)
        broker.define(Change(VhostRow(name)), undo=lambda: _undo_create(broker, vhost))
    if wanted != broker.vhosts[name].metadata:
        broker.parameters.put(metadata.key_of(name), wanted.as_document())
    if is_new and creator is not None:
        administration.permit(broker, name, creator.name, configure=".*", write=".*", read=".*")
    return is_new


def _check_text(text: str) -> None:
    """Raise if a string from JSON holds half of a surrogate pair, which UTF-8 can't encode."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PreconditionFailed(f"a description or a tag is not valid text: {text!r}") from None


def _undo_create(broker: Broker, vhost: VirtualHost) -> None:
    """Take away a new virtual host whose definition can't be written."""
    if broker.vhosts.get(vhost.name) is vhost:
        for log in deletion.end(broker, vhost, f"vhost '{vhost.name}' is deleted"):
            broker.store.delete_log(log)


def delete(broker: Broker, name: str, *, begin: Callable[[], None]) -> None:
    """Delete a virtual host with all that is in it, and close its connections."""
    vhost = find(broker, name)
    begin()
    deletion.delete(broker, vhost)


def find(broker: Broker, name: str) -> VirtualHost:
    """Return the virtual host of this name; raise NotFound if there is none."""
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise NotFound("Not Found")
    return vhost
