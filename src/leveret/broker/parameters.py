"""Parameters: named JSON documents that configure parts of the broker, such as policies and limits.

    broker.parameters.put(Key("vhost-limits", "/", "limits"), {"max-queues": 100})

Owns the documents of all components, and how a change is written and undone. What a document may hold and how
a component puts it in force is left to the component's own module; callers check both documents and
permissions. The rule: a change is in force before the call returns. A put that can't be written to disk is
undone; a removal is written later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from leveret.broker.access.accounts import Accounts
from leveret.broker.core import DefiningCore
from leveret.broker.definitions import Change, ParameterRow

Document: TypeAlias = Any
"""A JSON object or list, never null."""


class Key(NamedTuple):
    component: str
    vhost: str
    """The virtual host, or "" for a parameter of the whole broker."""
    name: str


class Component(NamedTuple):
    """A kind of parameters."""

    apply: Callable[[Any, Key, Document | None], None] = lambda broker, key, document: None
    """Called with the broker to put a document in force; None: the document was removed."""
    is_of_user: bool = False
    """Whether a parameter's name is the name of a user, with whom the parameter is deleted."""


class ParameterBroker(DefiningCore, Protocol):
    accounts: Accounts


class Parameters:
    """All parameters of a broker, by component, virtual host and name."""

    def __init__(self, broker: ParameterBroker, components: Mapping[str, Component]) -> None:
        self._broker = broker
        self._components = components
        self._documents: dict[str, dict[Key, Document]] = {component: {} for component in components}

    def get(self, key: Key) -> Document | None:
        return self._documents[key.component].get(key)

    def of(self, component: str) -> Iterator[tuple[Key, Document]]:
        """Yield the parameters of a component, ordered by virtual host and name."""
        yield from sorted(self._documents[component].items(), key=lambda item: item[0])

    def put(self, key: Key, document: Document) -> bool:
        """Create or replace a parameter; return whether it is new."""
        self._broker.definitions.check()
        before = self.get(key)
        self._set(key, document)

        def undo() -> None:
            if self.get(key) is document:
                self._set(key, before)

        self._broker.define(Change(_row(key, document)), undo=undo)
        return before is None

    def delete(self, key: Key) -> None:
        """Delete a parameter, which must exist."""
        document = self._documents[key.component][key]
        self._set(key, None)
        self._broker.define(Change(_row(key, document), removed=True))

    def drop(self, *, vhost: str | None = None, user: str | None = None) -> list[Change]:
        """Remove all parameters of a virtual host or a user; return the definition changes to be written."""
        dropped = [
            (key, document)
            for name, component in self._components.items()
            for key, document in self._documents[name].items()
            if key.vhost == vhost or (component.is_of_user and key.name == user)
        ]
        for key, _ in dropped:
            self._set(key, None)
        return [Change(_row(key, document), removed=True) for key, document in dropped]

    def restore(self, row: ParameterRow) -> bool:
        """Restore a parameter; return False if its component or its user does not exist."""
        component = self._components.get(row.component)
        if component is None or (component.is_of_user and row.name not in self._broker.accounts.users):
            return False
        self._set(Key(row.component, row.vhost, row.name), json.loads(row.document))
        return True

    def _set(self, key: Key, document: Document | None) -> None:
        if document is None:
            del self._documents[key.component][key]
        else:
            self._documents[key.component][key] = document
        self._components[key.component].apply(self._broker, key, document)


def _row(key: Key, document: Document) -> ParameterRow:
    return ParameterRow(*key, json.dumps(document))
