"""The brokers on which the table is played, with its users: Leveret on all ports, RabbitMQ on AMQP."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ProbableAccessDeniedError

from leveret.broker.access import administration
from leveret.broker.access.passwords import hash_password
from leveret.flight import actions
from leveret.testing.broker import Broker
from tests.fronts.flight.flight_client import Bulk
from tests.fronts.http.conftest import Api
from tests.processes import WAIT_S
from tests.rabbitmq.node import RabbitMQ
from tests.rights import http_table
from tests.rights.flight_table import PICTURE, Given
from tests.rights.names import Names, all_names
from tests.rights.roles import OK, OWNER, PASSWORD, ROLES, Role

_HOUR_S = 3600.0
_STREAM = {"x-queue-type": "stream"}

HASH = hash_password(PASSWORD.encode(), b"of all users of these tests")


class AmqpSide:
    """One broker over AMQP: `side.attempt("reader", act)` is `ok`, or why it was refused."""

    def __init__(self, port: int, vhost: str, suffix: str = "") -> None:
        """The users are called after their roles, with the suffix."""
        self._port = port
        self._vhost = vhost
        self.suffix = suffix
        self._connections: dict[str, pika.BlockingConnection] = {}
        self.names = all_names()
        self.root = self.connect("guest", "guest").channel()

    def connect(self, user: str, password: str = PASSWORD) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(user, password)
        place = pika.ConnectionParameters(
            "127.0.0.1", self._port, self._vhost, credentials, heartbeat=0, blocked_connection_timeout=60
        )
        return pika.BlockingConnection(place)

    def entering(self, role: str) -> str:
        """What a user of this role is answered who connects."""
        try:
            self.connect(role + self.suffix).close()
        except ProbableAccessDeniedError as error:
            found = re.search(r'NOT_ALLOWED - [^"]*', str(error))
            return self._told(found[0]) if found else str(error)
        return OK

    def attempt(self, role: str, act: Any, names: Names) -> str:
        channel = self._connection(role).channel()
        try:
            act(channel, names)
            if channel.is_open:
                self._finish(channel)
        except ChannelClosedByBroker as error:
            return self._told(error.reply_text)
        return OK

    def _finish(self, channel: BlockingChannel) -> None:
        """What has no answer of its own is done when this is answered."""
        channel.exchange_declare("amq.direct", passive=True)
        channel.close()

    def _connection(self, role: str) -> pika.BlockingConnection:
        if role not in self._connections:
            self._connections[role] = self.connect(role + self.suffix)
        return self._connections[role]

    def _told(self, text: str) -> str:
        """Without the word of the code, the suffix, and the name of the virtual host."""
        text = text.partition(" - ")[2].replace(f"vhost '{self._vhost}'", "vhost '/'")
        return text.replace(f"{self.suffix}'", "'") if self.suffix else text

    @contextlib.contextmanager
    def prepared(self, names: Names) -> Iterator[None]:
        """With what `amqp_table` says, and without it afterwards."""
        root = self.root
        root.queue_declare(names.queue)
        root.exchange_declare(names.exchange, "direct")
        root.exchange_declare(f"{names.exchange}2", "fanout")
        root.queue_bind(names.queue, names.exchange, "k")
        root.exchange_bind(f"{names.exchange}2", names.exchange, "k")
        root.basic_publish("", names.queue, b"x")
        owner = self._connection(OWNER).channel()
        owner.queue_declare(names.locked, exclusive=True)
        try:
            yield
        finally:
            owner.queue_delete(names.locked)
            owner.close()
            for queue in (names.queue, names.new):
                root.queue_delete(queue)
            for exchange in (names.exchange, f"{names.exchange}2", names.new):
                root.exchange_delete(exchange)

    def connection_of_owner(self) -> str:
        """Open a connection with one channel, and return its name."""
        connection = self.connect(OWNER + self.suffix)
        connection.channel()
        self._connections[f"closed {len(self._connections)}"] = connection
        socket = connection._impl._transport._sock  # pika tells the address in no other way
        (host, port), (own_host, own_port) = socket.getpeername()[:2], socket.getsockname()[:2]
        return f"{own_host}:{own_port} -> {host}:{port}"

    def close(self) -> None:
        for connection in [*self._connections.values(), self.root.connection]:
            with contextlib.suppress(AMQPError):
                connection.close()


class Leveret:
    """A broker with its HTTP API and its Flight endpoint."""

    def __init__(self, broker: Broker, api: Api) -> None:
        self.broker = broker
        self.api = api
        for name, role in ROLES.items():
            self._add_user(name, role)
        self.amqp = AmqpSide(broker.port, "/")
        self._bulk: dict[str, Bulk] = {}
        root = self.amqp.root
        root.exchange_declare("plain-x", durable=True)
        root.queue_declare("plain-s", durable=True, arguments=_STREAM)
        root.basic_publish("", "plain-s", b"x")
        broker.wait_until_depth("plain-s", 1)

    def _add_user(self, name: str, role: Role) -> None:
        inside = self.broker.server.broker

        def add() -> None:
            self.broker.server.turns.begin()
            tags = [role.tag] if role.tag else []
            administration.put_user(inside, name, password_hash=HASH, tags=tags)
            if role.enters:
                rights = {"configure": role.configure, "write": role.write, "read": role.read}
                administration.permit(inside, "/", name, **rights)

        self.broker.call(add)

    def bulk(self, role: str, password: str = PASSWORD) -> Bulk:
        if role not in self._bulk:
            assert self.broker.endpoint is not None
            self._bulk[role] = Bulk(self.broker.endpoint.port, role, password)
        return self._bulk[role]

    def make_group(self, names: Names) -> None:
        body = {"subject": "plain-s"}
        path = f"/api/groups/%2F/{names.group}"
        assert self.api.ask("PUT", path, f"{OWNER}:{PASSWORD}", body=body).status == 201

    def make_queue(self, names: Names) -> None:
        """With a message in it."""
        self.amqp.root.queue_declare(names.queue, durable=True)
        self.amqp.root.basic_publish("", names.queue, b"x")
        self.broker.wait_until_depth(names.queue, 1)

    def make_query(self, names: Names) -> Any:
        return self.bulk(OWNER).ask(actions.Open("/", names.queue, names.query, _HOUR_S))

    def given(self, names: Names, *, with_picture: bool) -> Given:
        """What `flight_table` says."""
        self.make_queue(names)
        owner = self.bulk(OWNER)
        opened = self.make_query(names)
        owner.ask(actions.Lease("/", names.queue, names.query, opened.epoch, 0))
        follow = actions.Follow("/", "plain-s", False, names.group, actions.At("first"))
        followed = owner.ask(follow)
        assert owner.ask(actions.Commit("/", names.sink, 0, [])) == actions.Committed(0, False)
        if with_picture:  # the same one each time: it is kept under its name
            taken = self.bulk("guest", "guest").ask(actions.TakePicture(PICTURE))
            assert isinstance(taken, actions.Taken), taken
        return Given(names, opened.log_id, opened.epoch, followed.epoch)


class RabbitMQHttp:
    """The management API of a RabbitMQ node, asked by the users of the table."""

    def __init__(self, node: RabbitMQ, amqp: AmqpSide) -> None:
        self._node = node
        self.amqp = amqp
        self._suffix = amqp.suffix
        self._connections: list[str] = []
        """Names of connections of the owner that were not closed yet."""

    def connection(self, *, closed: bool) -> str:
        """Return the name of a connection of the owner, another one after each that may be closed.

        RabbitMQ knows a connection after some seconds, so many are opened at once.
        """
        if not self._connections:
            self._connections = [self.amqp.connection_of_owner() for _ in range(2 * len(ROLES))]
            deadline_s = time.monotonic() + WAIT_S
            for name in self._connections:
                path = f"/api/channels/{quote(name, safe='')}%20%281%29"
                while self._ask("GET", path, "guest:guest", None) != 200 and time.monotonic() < deadline_s:
                    time.sleep(0.1)
        return self._connections.pop() if closed else self._connections[-1]

    def prepare(self, row: http_table.Row, names: Names) -> None:
        """Make what the row names, and no more: each policy slows down the next queue."""
        if row.route.startswith("/api/vhosts/{name}"):
            assert self._ask("PUT", f"/api/vhosts/{names.query}", "guest:guest", {}) < 300
        if any(kind in row.route for kind in ("queues", "exchanges", "bindings")):
            self.amqp.root.queue_declare(names.queue, durable=True)
            self.amqp.root.exchange_declare(names.exchange, "direct")
            self.amqp.root.queue_bind(names.queue, names.exchange, "k")
        if "{query}" not in row.fills:
            return
        user = f"/api/users/{names.query}"
        assert self._ask("PUT", user, "guest:guest", {"password": "x", "tags": ""}) < 300
        rights = {"configure": "", "write": "", "read": ""}
        vhost = quote(self._node.vhost, safe="")
        assert self._ask("PUT", f"/api/permissions/{vhost}/{names.query}", "guest:guest", rights) < 300
        for kind, rest, body in http_table.PREPARED:
            if f"/{kind}" in row.route:
                path = f"/api/{kind}{rest}".format(vhost=vhost, query=names.query)
                assert self._ask("PUT", path, "guest:guest", body) < 300

    def attempt(self, role: str, row: http_table.Row, names: Names) -> str:
        filled = names.in_paths | {"port": str(self._node.port)}
        filled["node"] = self._node.variables["RABBITMQ_NODENAME"]
        if "{connection}" in row.fills:
            filled["connection"] = self.connection(closed=row.method == "DELETE")
        path = row.path(filled, self._node.vhost)
        if row.fills == "other":
            path = path.replace("other", f"other{self._suffix}")
        status = self._ask(row.method, path, f"{role}{self._suffix}:{PASSWORD}", row.body)
        return OK if status < 300 else "refused" if status in (401, 403) else f"status {status}"

    def _ask(self, method: str, path: str, user: str, body: Any) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._node.http_port, timeout=WAIT_S)
        login = b64encode(user.encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse().status


def add_users_to_rabbitmq(node: RabbitMQ, suffix: str) -> None:
    """Those of the table, who may do something in the virtual host of this worker only."""

    def text(value: str) -> str:
        return f'<<"{value}">>'

    calls = []
    for name, role in ROLES.items():
        user = text(name + suffix)
        calls.append(f'rabbit_auth_backend_internal:add_user({user}, {text(PASSWORD)}, <<"tests">>)')
        if role.tag:
            calls.append(f'rabbit_auth_backend_internal:set_tags({user}, [{role.tag}], <<"tests">>)')
        if role.enters:
            patterns = (re.sub(r"\\", r"\\\\", each) for each in (role.configure, role.write, role.read))
            rights = ", ".join(map(text, patterns))
            where = text(node.vhost)
            calls.append(
                f'rabbit_auth_backend_internal:set_permissions({user}, {where}, {rights}, <<"tests">>)'
            )
    node.rabbitmqctl("eval", ", ".join(calls) + ".")
