"""Import of definitions from a document in RabbitMQ's form, which `views.definitions` writes too.

    plan = Plan(broker, user=user)
    for _ in chain(plan.read(document), plan.apply()):
        ...    # others may be served here

Owns the check of the whole document against itself and the broker, and the order of the changes. The meaning
of each object is left to its own module. The rules: a document with a mistake is refused before anything is
changed. Nothing is deleted; queues and exchanges that exist stay as they are. What has no equivalent here is
listed in `left_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.broker import usage_limits
from leveret.broker.access import administration, passwords, permission_patterns
from leveret.broker.access.accounts import User
from leveret.broker.access.topic_permissions import TOPIC_ACTIONS, permit_topic
from leveret.broker.errors import BrokerError, NotFound, PreconditionFailed
from leveret.broker.exchanges import ROUTERS
from leveret.broker.groups.settings import Settings
from leveret.broker.operations import limits, vhosts
from leveret.broker.operations.document_fields import Fields
from leveret.broker.parameters import GLOBAL_PARAMETER, Key
from leveret.broker.queues import arguments
from leveret.broker.usage_limits import VHOST_LIMITS
from leveret.broker.vhosts.metadata import UNDEFINED, Metadata
from leveret.broker.vhosts.policies import OPERATOR_POLICY, POLICY, policy_of
from leveret.broker.vhosts.topology import PREDECLARED

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

Item = Mapping[str, Any]
Step = Callable[[], object]
T = TypeVar("T")

_EXCHANGES_OF_PLUGINS: Final = (
    "x-delayed-message",
    "x-federation-upstream",
    "x-jms-topic",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
    "x-rtopic",
)
_COMPONENTS_OF_PLUGINS: Final = ("federation", "federation-upstream", "federation-upstream-set", "shovel")
_KEYS_OF_PLUGINS: Final = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")
_SECTIONS: Final = ("parameters", "policies", "exchanges", "queues", "bindings", "leveret")
_SECTIONS_OF_ALL: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
_ABOUT_THE_FILE: Final = (
    "rabbit_version",
    "rabbitmq_version",
    "product_name",
    "product_version",
    "rabbitmq_definition_format",
    "original_cluster_name",
    "original_vhost_name",
    "explanation",
)
_CLUSTER_ID: Final = "internal_cluster_id"
"""A global parameter that each of RabbitMQ's clusters makes for itself."""
_CHECKS_AT_ONCE: Final = 100
"""Objects that are checked without a pause: each takes about 15 µs."""
_STEPS_AT_ONCE: Final = 20
"""Changes without a pause: each makes a log or a route, which takes some 100 µs."""


def plain_passwords(document: Any) -> dict[str, str]:
    """Return the passwords that a document has in plain text, by user."""
    users = document.get("users") if isinstance(document, Mapping) else None
    return {
        item["name"]: item["password"]
        for item in (users if isinstance(users, list) else [])
        if isinstance(item, Mapping) and {"name", "password"} <= item.keys() and "password_hash" not in item
        if isinstance(item["name"], str) and isinstance(item["password"], str)
    }


class Plan:
    """The changes that a document asks for, of the broker or of one virtual host."""

    def __init__(
        self,
        broker: Broker,
        *,
        vhost: str | None = None,
        user: User | None = None,
        hashes: Mapping[str, str] | None = None,
    ) -> None:
        """`user` becomes the owner of new groups. `hashes` has the hashes of passwords that the document has
        in plain text, by user."""
        self._broker = broker
        self._vhost = vhost
        self._creator = user
        self._hashes = hashes or {}
        self._steps: list[tuple[str, str | None, Step]] = []
        """The place of an object in the document, its virtual host, and the change that makes the object."""
        self._vhosts = set(broker.vhosts)
        self._users = set(broker.accounts.users)
        self._types = {
            (host.name, exchange.name): exchange.type
            for host in broker.vhosts.values()
            for exchange in host.exchanges.values()
        }
        """The type of each exchange, by virtual host and name; "" if the exchange is left out."""
        self._queues = {(host.name, name) for host in broker.vhosts.values() for name in host.queues}
        self.left_out: list[str] = []
        """A sentence about each object that has no equivalent here or stays as it is."""

    @property
    def count(self) -> int:
        """Number of objects that `apply` makes, replaces or finds as they should be."""
        return len(self._steps)

    def apply(self) -> Iterator[None]:
        """Make all objects; yield after some of them, so that the caller may serve other clients."""
        for number, (place, vhost, step) in enumerate(self._steps, start=1):
            try:
                if vhost is not None and vhost not in self._broker.vhosts:
                    raise NotFound(f"no virtual host '{vhost}'")
                step()
            except BrokerError as error:
                # Somebody else has changed the broker since the check.
                self.left_out.append(f"{place}: {error.sentence}")
            if number % _STEPS_AT_ONCE == 0:
                yield

    # reading

    def read(self, document: Any) -> Iterator[None]:
        """Check all sections, in an order in which later objects may name earlier ones.

        Raise for the first mistake; yield after some objects, so that the caller may serve other clients.
        """
        if not isinstance(document, Mapping):
            raise PreconditionFailed("definitions must be a JSON object")
        self._note_unread(document)
        ours = Fields("leveret", document.get("leveret", {}))
        if self._vhost is None:
            stored = {item.text("name"): _hash_in(item) for item in ours.items("users")}
            yield from self._each(document, "vhosts", self._read_vhost)
            yield from self._each(document, "users", lambda item: self._read_user(item, stored))
            yield from self._each(document, "permissions", self._read_permission)
            yield from self._each(document, "topic_permissions", self._read_topic_permission)
            yield from self._each(document, "global_parameters", self._read_global_parameter)
        whole_policies = {
            (item.text("component"), self._vhost_of(item), item.text("name")): item
            for item in ours.items("policies")
        }
        yield from self._each(document, "parameters", lambda item: self._read_parameter(item, whole_policies))
        yield from self._each(document, "policies", lambda item: self._read_policy(item, whole_policies))
        for (component, _, _), item in whole_policies.items():
            self._plan_policy(item, item.get("value"), operator=component == OPERATOR_POLICY)
        yield from self._each(document, "exchanges", self._read_exchange)
        yield from self._each(document, "queues", self._read_queue)
        yield from self._each(document, "bindings", self._read_binding)
        for item in ours.items("groups"):
            self._read_group(item)

    def _note_unread(self, document: Item) -> None:
        """Note the sections that nobody reads."""
        for section in document:
            if section in _SECTIONS_OF_ALL and self._vhost is not None and document[section]:
                self.left_out.append(f"{section}: the import of one virtual host has none")
            elif section not in (*_SECTIONS, *_SECTIONS_OF_ALL, *_ABOUT_THE_FILE):
                self.left_out.append(f"{section}: definitions have no such section")

    @staticmethod
    def _each(document: Item, section: str, read: Callable[[Fields], None]) -> Iterator[None]:
        for number, item in enumerate(Fields("", document).items(section), start=1):
            read(item)
            if number % _CHECKS_AT_ONCE == 0:
                yield

    def _plan(self, item: Fields, step: Step, *, vhost: str | None = None) -> None:
        self._steps.append((item.place, vhost, step))

    def _vhost_of(self, item: Fields) -> str:
        """Return the name of the object's virtual host, which exists or is made before."""
        name = item.text("vhost") if self._vhost is None else self._vhost
        if name not in self._vhosts:
            raise item.wrong(f"no virtual host '{name}'")
        return name

    # users and virtual hosts

    def _read_vhost(self, item: Fields) -> None:
        name = item.text("name")
        metadata = Fields(f"{item.place}.metadata", item.get("metadata", {}))
        description = item.text("description", metadata.text("description", ""))
        tags = item.tags() or metadata.tags()
        queue_type = item.text("default_queue_type", UNDEFINED)
        tracing = item.flag("tracing", default=False)
        wanted = Metadata(description, tuple(tags), queue_type, tracing)
        item.check(lambda: vhosts.check(name, wanted))
        if name in self._broker.vhosts and wanted == Metadata():
            # Old files have names only.
            return
        self._vhosts.add(name)
        self._types.update(((name, exchange), type_) for exchange, type_ in PREDECLARED)
        self._plan(
            item,
            lambda: vhosts.create(
                self._broker, name, creator=self._creator, begin=lambda: None, **wanted._asdict()
            ),
        )

    def _read_user(self, item: Fields, stored: Mapping[str, str]) -> None:
        name, tags = item.text("name"), item.tags()
        hashed = stored.get(name) or self._hashes.get(name)
        if hashed is None:
            hashed = _hash_in(item)
        item.check(lambda: administration.check_user(self._broker, name, tags=tags, has_hash=bool(hashed)))
        self._users.add(name)
        self._plan(
            item,
            lambda: administration.put_user(self._broker, name, password_hash=hashed, tags=tags),
        )
        if item_limits := item.get("limits"):
            user_limits = Fields(f"{item.place}.limits", item_limits).fields
            item.check(lambda: usage_limits.check_limits(user_limits, of_user=True))
            self._plan(
                item,
                lambda: limits.put(self._broker, name, user_limits, of_user=True, begin=lambda: None),
            )

    def _read_permission(self, item: Fields) -> None:
        vhost, user = self._vhost_of(item), self._user_of(item)
        patterns = {kind: item.text(kind) for kind in administration.PERMISSIONS}
        for kind, pattern in patterns.items():
            item.check(partial(permission_patterns.check_pattern, kind, pattern))
        self._plan(item, lambda: administration.permit(self._broker, vhost, user, **patterns), vhost=vhost)

    def _read_topic_permission(self, item: Fields) -> None:
        vhost, user, exchange = self._vhost_of(item), self._user_of(item), item.text("exchange")
        patterns = {what: item.text(what) for what in TOPIC_ACTIONS}
        for what, pattern in patterns.items():
            item.check(partial(permission_patterns.check_pattern, what, pattern))
        self._plan(item, lambda: permit_topic(self._broker, vhost, user, exchange, **patterns), vhost=vhost)

    def _user_of(self, item: Fields) -> str:
        name = item.text("user")
        if name not in self._users:
            raise item.wrong(f"no user '{name}'")
        return name

    # parameters and policies

    def _read_parameter(self, item: Fields, whole: Mapping[tuple[str, str, str], Fields]) -> None:
        component, vhost, name = item.text("component"), self._vhost_of(item), item.text("name")
        if component == VHOST_LIMITS and item.get("value") == []:
            # RabbitMQ keeps an empty list when the last limit was cleared.
            return
        if component in _COMPONENTS_OF_PLUGINS:
            self.left_out.append(f"parameter '{name}' in vhost '{vhost}': there is no {component}")
        elif component == OPERATOR_POLICY:
            if (component, vhost, name) not in whole:
                self._plan_policy(item, item.get("value"), operator=True)
        else:
            document = self._checked(
                lambda: self._broker.parameters.checked(component, name, item.get("value")),
                f"{vhost}/{component}/{name}",
            )
            key = Key(component, vhost, name)
            self._plan(item, lambda: self._broker.parameters.put(key, document), vhost=vhost)

    @staticmethod
    def _checked(check: Callable[[], T], place: str) -> T:
        """Return the result of a check that refuses in RabbitMQ's words; add the place as RabbitMQ does."""
        try:
            return check()
        except PreconditionFailed as error:
            raise PreconditionFailed(f"{error.sentence} ({place})") from None

    def _read_global_parameter(self, item: Fields) -> None:
        name, value = item.text("name"), item.get("value")
        if name == _CLUSTER_ID:
            return
        self._plan(
            item, lambda: self._broker.parameters.put(Key(GLOBAL_PARAMETER, "", name), {"value": value})
        )

    def _read_policy(self, item: Fields, whole: Mapping[tuple[str, str, str], Fields]) -> None:
        if (POLICY, self._vhost_of(item), item.text("name")) not in whole:
            self._plan_policy(item, item.fields, operator=False)

    def _plan_policy(self, item: Fields, document: Any, *, operator: bool) -> None:
        vhost, name = self._vhost_of(item), item.text("name")
        policy_fields = dict(Fields(item.place, document).fields)
        definition = policy_fields.get("definition")
        if isinstance(definition, Mapping):
            foreign = [key for key in definition if key in _KEYS_OF_PLUGINS]
            if foreign:
                keys = ", ".join(foreign)
                self.left_out.append(f"policy '{name}' in vhost '{vhost}': there is no federation ({keys})")
                policy_fields["definition"] = {
                    key: value for key, value in definition.items() if key not in foreign
                }
                if not policy_fields["definition"]:
                    return
        policy = self._checked(lambda: policy_of(name, policy_fields, operator=operator), f"{vhost}/{name}")
        key = Key(OPERATOR_POLICY if operator else POLICY, vhost, name)
        self._plan(item, lambda: self._broker.parameters.put(key, policy.as_document()), vhost=vhost)

    # exchanges, queues and bindings

    def _read_exchange(self, item: Fields) -> None:
        vhost, name, type_ = self._vhost_of(item), item.text("name"), item.text("type")
        durable, auto_delete = item.flag("durable"), item.flag("auto_delete")
        internal, table = item.flag("internal", default=False), item.table()
        if type_ in _EXCHANGES_OF_PLUGINS:
            self._types.setdefault((vhost, name), "")
            self.left_out.append(f"exchange '{name}' in vhost '{vhost}' has the type '{type_}' of a plugin")
            return
        if type_ not in ROUTERS:
            raise item.wrong(f"unknown exchange type '{type_}'")
        item.check(lambda: ROUTERS[type_]().configure(table))
        item.check(lambda: arguments.alternate_exchange(table, name=name, vhost=vhost))
        if (vhost, name) not in self._types and (not name or name.startswith("amq.")):
            raise item.wrong(f"exchange name '{name}' is reserved")
        self._types.setdefault((vhost, name), type_)

        def make() -> None:
            host = self._broker.vhosts[vhost]
            current = host.exchanges.get(name)
            if current is None:
                host.add_exchange(
                    name, type_, durable=durable, auto_delete=auto_delete, internal=internal, table=table
                )
                return
            subject = {"kind": "exchange", "name": name, "vhost": vhost}
            arguments.check_same("type", current.type, type_, **subject)
            arguments.check_same("durable", current.durable, durable, **subject)
            arguments.check_same("auto_delete", current.auto_delete, auto_delete, **subject)
            arguments.check_same("internal", current.internal, internal, **subject)
            arguments.check_equivalent(current.table, table, **subject)

        self._plan(item, make, vhost=vhost)

    def _read_queue(self, item: Fields) -> None:
        vhost, name = self._vhost_of(item), item.text("name")
        durable, auto_delete, table = item.flag("durable"), item.flag("auto_delete"), item.table()
        if (vhost, name) not in self._queues and (not name or name.startswith("amq.")):
            raise item.wrong(f"queue name '{name}' is reserved")
        settings = item.check(lambda: arguments.declared_settings(table, queue=name, vhost=vhost))
        if settings.queue_type != "classic":
            item.check(
                lambda: arguments.check_lasting(
                    queue=name, vhost=vhost, durable=durable, exclusive=False, auto_delete=auto_delete
                )
            )
        item.check(lambda: arguments.check_segment_bytes(settings))
        self._queues.add((vhost, name))

        def make() -> None:
            host = self._broker.vhosts[vhost]
            current = host.queues.get(name)
            if current is None:
                if settings.queue_type == "stream":
                    host.groups.check_declaration(name)
                host.add_queue(
                    name, durable=durable, auto_delete=auto_delete, owner=None, table=table, declared=settings
                )
                return
            subject = {"kind": "queue", "name": name, "vhost": vhost}
            arguments.check_same("durable", current.durable, durable, **subject)
            arguments.check_same("auto_delete", current.auto_delete, auto_delete, **subject)
            arguments.check_equivalent(current.table, table, **subject)

        self._plan(item, make, vhost=vhost)

    def _read_binding(self, item: Fields) -> None:
        vhost, source, destination = self._vhost_of(item), item.text("source"), item.text("destination")
        key, table = item.text("routing_key"), item.table()
        kind = item.text("destination_type")
        if kind not in ("queue", "exchange"):
            raise item.wrong(f"destination_type is '{kind}'; it must be queue or exchange")
        ends = [self._types.get((vhost, source))]
        if kind == "exchange":
            ends.append(self._types.get((vhost, destination)))
        if "" in ends:
            self.left_out.append(
                f"the binding of '{source}' to '{destination}' in vhost '{vhost}': one of them is left out"
            )
            return
        if not source or ends[0] is None:
            raise item.wrong(f"no exchange '{source}' in vhost '{vhost}'")
        if None in ends or (kind == "queue" and (vhost, destination) not in self._queues):
            raise item.wrong(f"no {kind} '{destination}' in vhost '{vhost}'")
        router = ROUTERS[ends[0]]()
        item.check(lambda: router.check_arguments(table))
        item.check(lambda: router.bind("destination", key, table))

        def make() -> None:
            host = self._broker.vhosts[vhost]
            bound = host.queue(destination) if kind == "queue" else host.exchange(destination)
            host.bind(host.exchange(source), bound, key, table)

        self._plan(item, make, vhost=vhost)

    def _read_group(self, item: Fields) -> None:
        vhost, name, subject = self._vhost_of(item), item.text("name"), item.text("subject")
        settings = Fields(f"{item.place}.settings", item.get("settings", {})).fields
        if (vhost, subject) not in self._queues and (vhost, subject) not in self._types:
            raise item.wrong(f"no topic or stream '{subject}' in vhost '{vhost}'")
        item.check(lambda: Settings.default().changed(settings))

        def make() -> None:
            groups = self._broker.vhosts[vhost].groups
            if not any((group.subject, group.name) == (subject, name) for group in groups):
                groups.create(subject, name, settings, user=self._creator or User("", ""))
            elif (current := groups.get(subject, name)).changed_settings(settings) != current.settings:
                raise PreconditionFailed(f"{current} exists with other settings")

        self._plan(item, make, vhost=vhost)


def _hash_in(item: Fields) -> str:
    """Return a user's password hash in the form in which it is stored."""
    algorithm = item.text("hashing_algorithm", passwords.SHA256)
    hashed = item.text("password_hash", "")
    return item.check(lambda: passwords.of_algorithm_and_hash(algorithm, hashed))
