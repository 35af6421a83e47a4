"""The broker's definitions in the form in which RabbitMQ exports and imports them.

    for name, value in sections(broker): ...     # ("rabbit_version", "3.10.8"), …, ("queues", items), …

Owns what a file of definitions holds. `operations.definitions` reads such files. What RabbitMQ has no
equivalent of is in the last section, `leveret`: there, `without_equivalent` is a list of sentences about what
RabbitMQ does not take over or what no file can hold. The rule: RabbitMQ accepts the other sections, and
nothing is missing without a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from leveret import __version__
from leveret.broker import product
from leveret.broker.access import passwords
from leveret.broker.access.topic_permissions import TOPIC_PERMISSION
from leveret.broker.canonical import Value
from leveret.broker.groups.settings import QUERY
from leveret.broker.parameters import GLOBAL_PARAMETER
from leveret.broker.queues.arguments import OUR_ARGUMENTS
from leveret.broker.usage_limits import USER_LIMITS, key_of
from leveret.broker.vhosts.destination import Destination
from leveret.broker.vhosts.policies import OPERATOR_POLICY, OUR_KEYS, POLICY

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

_NEEDS_PLUGIN: Final = {"x-consistent-hash": "rabbitmq_consistent_hash_exchange"}

Item = dict[str, Any]
Section = tuple[str, Any]
"""The name of a section and its value; an iterator stands for a list, which may be long."""


class _NotInJson(Exception):
    """JSON has no such value."""


def sections(broker: Broker, vhost: str | None = None) -> Iterator[Section]:
    """Yield the definitions of the broker, or of one virtual host; items of a list are made when asked for.

    The objects of all sections are those that exist when the first section is asked for.
    """
    export = _Export(broker, vhost)
    yield "rabbit_version", product.RABBITMQ_VERSION
    if vhost is None:
        yield "rabbitmq_version", product.RABBITMQ_VERSION
        yield "product_name", product.NAME
        yield "product_version", __version__
        yield "users", export.users()
        yield "vhosts", export.vhosts()
        yield "permissions", export.permissions()
        yield "topic_permissions", export.topic_permissions()
    yield "parameters", export.parameters()
    if vhost is None:
        yield "global_parameters", export.global_parameters()
    yield "policies", export.policies()
    yield "queues", export.queues()
    yield "exchanges", export.exchanges()
    yield "bindings", export.bindings()
    yield "leveret", export.ours()


class _Export:
    """Makes the items of the sections, and collects what RabbitMQ has no equivalent of."""

    def __init__(self, broker: Broker, vhost: str | None) -> None:
        self._broker = broker
        self._vhost = vhost
        hosts = sorted(broker.vhosts.values(), key=lambda host: host.name)
        self._hosts = [host for host in hosts if vhost in (None, host.name) and self._is_text(host.name)]
        self._sentences: list[str] = []
        self._users: list[Item] = []
        self._policies: list[Item] = []
        self._queues = [(host, queue) for host in self._hosts for queue in host.queues.values()]
        exchanges = [(host, exchange) for host in self._hosts for exchange in host.exchanges.values()]
        self._exchanges = [each for each in exchanges if each[1].name[:4] not in ("", "amq.")]
        self._bindings = [
            (host, source.name, binding)
            for host, source in exchanges
            if source.name
            for binding in source.router.bindings
        ]

    # users and permissions

    def users(self) -> Iterator[Item]:
        for user in sorted(self._broker.accounts.users.values(), key=lambda user: user.name):
            if not self._is_named(f"user '{user.name}'", user.name, *user.tags):
                continue
            algorithm, hashed = passwords.as_algorithm_and_hash(user.password_hash)
            if user.password_hash == passwords.GUEST_HASH:
                algorithm, hashed = passwords.SHA256, passwords.GUEST_SHA256
            elif algorithm not in passwords.RABBITMQ_ALGORITHMS:
                self._users.append(
                    {"name": user.name, "password_hash": hashed, "hashing_algorithm": algorithm}
                )
                self._sentences.append(
                    f"user '{user.name}' can't log in to RabbitMQ before a new password is set there: "
                    f"RabbitMQ has no hashes of {algorithm}"
                )
                algorithm, hashed = passwords.SHA256, ""
            limits = self._broker.parameters.get(key_of(USER_LIMITS, user.name))
            yield {
                "name": user.name,
                "password_hash": hashed,
                "hashing_algorithm": algorithm,
                "tags": sorted(user.tags),
                "limits": limits or {},
            }

    def vhosts(self) -> Iterator[Item]:
        for host in self._hosts:
            metadata = host.metadata.as_document()
            yield {
                "name": host.name,
                "metadata": {"description": metadata["description"], "tags": metadata["tags"]},
                **metadata,
            }

    def permissions(self) -> Iterator[Item]:
        for user in sorted(self._broker.accounts.users.values(), key=lambda user: user.name):
            for vhost, permission in sorted(user.permissions.items()):
                patterns = {kind: getattr(permission, kind) for kind in ("configure", "write", "read")}
                what = f"the permissions of user '{user.name}' in vhost '{vhost}'"
                if self._is_named(what, user.name, vhost, *patterns.values()):
                    yield {"user": user.name, "vhost": vhost, **patterns}

    def topic_permissions(self) -> Iterator[Item]:
        for key, exchanges in self._broker.parameters.of(TOPIC_PERMISSION):
            for exchange, patterns in sorted(exchanges.items()):
                yield {"user": key.name, "vhost": key.vhost, "exchange": exchange, **patterns}

    # parameters and policies

    def parameters(self) -> Iterator[Item]:
        for component in self._broker.parameters.open_components:
            for key, document in self._broker.parameters.of(component):
                if self._vhost not in (None, key.vhost):
                    continue
                item = {"vhost": key.vhost, "component": component, "name": key.name, "value": document}
                value = self._for_rabbitmq(document, item) if component == OPERATOR_POLICY else document
                if value is not None:
                    yield {**item, "value": value}

    def global_parameters(self) -> Iterator[Item]:
        for key, document in self._broker.parameters.of(GLOBAL_PARAMETER):
            yield {"name": key.name, "value": document["value"]}

    def policies(self) -> Iterator[Item]:
        for key, document in self._broker.parameters.of(POLICY):
            if self._vhost in (None, key.vhost):
                place = {"vhost": key.vhost, "name": key.name}
                value = self._for_rabbitmq(document, {**place, "component": POLICY, "value": document})
                if value is not None:
                    yield {**place, **value}

    def _for_rabbitmq(self, document: Mapping[str, Any], item: Item) -> Item | None:
        """Return a policy without Leveret's own keys; None if it has no other keys."""
        definition = document["definition"]
        known = {name: value for name, value in definition.items() if name not in OUR_KEYS}
        if len(known) < len(definition):
            self._policies.append(item)
            own = ", ".join(name for name in definition if name not in known)
            kind = item["component"].replace("_", " ")
            self._sentences.append(f"{kind} '{item['name']}' has keys that RabbitMQ does not know: {own}")
        return {**document, "definition": known} if known else None

    # queues, exchanges and bindings

    def queues(self) -> Iterator[Item]:
        for host, queue in self._queues:
            if self._is_exported(queue) and self._is_named(str(queue), queue.name):
                ours = ", ".join(name for name in queue.table if name in OUR_ARGUMENTS)
                if ours:
                    self._sentences.append(f"{queue} has arguments that RabbitMQ ignores: {ours}")
                yield {
                    "name": queue.name,
                    **self._in(host.name),
                    "durable": True,
                    "auto_delete": queue.auto_delete,
                    "arguments": self._arguments(queue.table, str(queue)),
                }

    def exchanges(self) -> Iterator[Item]:
        for host, exchange in self._exchanges:
            what = host.describe(exchange)
            if not self._is_named(what, exchange.name):
                continue
            if exchange.type in _NEEDS_PLUGIN:
                plugin = _NEEDS_PLUGIN[exchange.type]
                self._sentences.append(f"{what} needs RabbitMQ's plugin {plugin}")
            yield {
                "name": exchange.name,
                **self._in(host.name),
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": self._arguments(exchange.table, what),
            }

    def bindings(self) -> Iterator[Item]:
        for host, source, (destination, routing_key, arguments) in self._bindings:
            is_queue = isinstance(destination, Destination)
            if isinstance(destination, Destination) and not self._is_exported(destination):
                continue
            what = f"the binding of '{source}' to '{destination.name}' in vhost '{host.name}'"
            if self._is_named(what, source, destination.name, routing_key):
                yield {
                    "source": source,
                    **self._in(host.name),
                    "destination": destination.name,
                    "destination_type": "queue" if is_queue else "exchange",
                    "routing_key": routing_key,
                    "arguments": self._arguments(arguments, what),
                }

    @staticmethod
    def _is_exported(queue: Destination) -> bool:
        return queue.durable and queue.owner is None

    # what RabbitMQ does not have

    def ours(self) -> Item:
        """Return what only Leveret imports, after all other sections."""
        return {
            "users": self._users,
            "policies": self._policies,
            "groups": list(self._groups()),
            "without_equivalent": self._sentences,
        }

    def _groups(self) -> Iterator[Item]:
        for host in self._hosts:
            for group in sorted(host.groups, key=lambda group: (group.subject, group.name)):
                if group.settings.mode != QUERY:
                    self._sentences.append(f"{group}: RabbitMQ has no consumer groups")
                    yield {
                        "name": group.name,
                        **self._in(host.name),
                        "subject": group.subject,
                        "settings": group.settings.shown(),
                    }

    # values

    def _in(self, vhost: str) -> Item:
        """Return the field that names the virtual host; RabbitMQ's files of one virtual host have none."""
        return {"vhost": vhost} if self._vhost is None else {}

    def _arguments(self, table: Mapping[str, Value], what: str) -> Item:
        arguments = {}
        for name, value in table.items():
            try:
                arguments[_json_value(name)] = _json_value(value)
            except _NotInJson:
                self._sentences.append(f"argument '{name}' of {what} is left out: JSON has no such value")
        return arguments

    def _is_named(self, what: str, *names: str) -> bool:
        """Return whether all names are UTF-8, which JSON needs; otherwise note that `what` is left out."""
        if all(map(self._is_text, names)):
            return True
        self._sentences.append(f"{what} is left out: its name is not UTF-8")
        return False

    @staticmethod
    def _is_text(name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            return False
        return True


def _json_value(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if _Export._is_text(value):
            return value
        case Mapping():
            return {_json_value(key): _json_value(item) for key, item in value.items()}
        case list():
            return [_json_value(item) for item in value]
    raise _NotInJson
