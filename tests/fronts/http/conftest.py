"""A broker with its HTTP API on a free port, and a client for it from the standard library."""

import json
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError

from leveret.broker.access.accounts import User
from leveret.broker.access.passwords import hash_password
from leveret.broker.canonical import encode
from leveret.broker.definitions import PermissionRow, UserRow, VhostRow
from leveret.broker.queues.arguments import declared_settings
from leveret.broker.queues.queue import Queue
from leveret.broker.restart import restore_row
from leveret.fronts.http.admin_actions import AdminAction
from leveret.fronts.http.app import create_app
from leveret.server.http import HttpListener
from leveret.server.node import Node
from leveret.storage.records import Message
from leveret.testing.broker import WAIT_S, Broker
from tests.fronts.http.documented import check_documented
from tests.fronts.http.membership import Member

GUEST = "guest:guest"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)


class Api:
    """`api.get("/api/overview").json`; what the broker itself has is under `api.broker`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.changes = 0
        """How often a turn was asked for."""
        self.actions: list[dict[str, object]] = []
        """Reports of the requests that may have changed something."""
        self.node = Node(broker.server)
        self.app = create_app(
            broker.server.broker, changed=self._begin, record=self._record, node=self.node.facts
        )
        self.listener = HttpListener(self.app, "127.0.0.1", 0)
        self.node.http = [self.listener]

    def _begin(self) -> None:
        self.changes += 1
        self.broker.server.turns.begin()

    async def _record(self, action: AdminAction) -> None:
        self.actions.append(action.report())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.broker.run(coroutine)

    def ask(
        self, method: str, path: str, user: str | None = GUEST, *, body: object = None, **headers: str
    ) -> Answer:
        """The body as JSON, unless it is bytes already. The answer must be a documented one."""
        if user is not None:
            headers["Authorization"] = "Basic " + b64encode(user.encode()).decode()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.listener.port, timeout=2 * WAIT_S)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            content = response.read()
            media_type = found.get("content-type", "")
            check_documented(self.app.routes, method, path, response.status, media_type, content)
            return Answer(response.status, found, content)
        finally:
            connection.close()

    def get(self, path: str, user: str | None = GUEST) -> Answer:
        return self.ask("GET", path, user)

    @property
    def guest(self) -> User:
        return self.broker.server.broker.accounts.users["guest"]

    # things to look at

    def add_vhost(self, name: str) -> None:
        self.broker.call(lambda: restore_row(self.broker.server.broker, VhostRow(name)))

    def add_user(
        self,
        name: str,
        tags: str = "",
        vhost: str | None = None,
        *,
        read: str = ".*",
        configure: str = "",
        write: str = "",
    ) -> str:
        """The credentials of a new user; the password is `pass:word`."""
        accounts = self.broker.server.broker.accounts
        hashed = hash_password(b"pass:word", b"salt")
        self.broker.call(lambda: accounts.put(UserRow(name, hashed, tags)))
        if vhost is not None:
            self.broker.call(lambda: accounts.permit(PermissionRow(vhost, name, configure, write, read)))
        return f"{name}:pass:word"

    def add_queue(
        self, name: str, count: int = 0, *, vhost: str = "/", arguments: dict[str, Any] | None = None
    ) -> Queue:
        """A queue with so many messages, for what pika can't declare."""

        def add() -> Queue:
            broker = self.broker.server.broker
            queue = broker.vhosts[vhost].add_queue(
                name,
                durable=False,
                auto_delete=False,
                owner=None,
                table=arguments or {},
                declared=declared_settings(arguments or {}, queue=name, vhost=vhost),
            )
            if count:
                key = name.encode("utf-8", "surrogateescape")
                queue.append([Message(b"", key, encode({}, 1), b"x")] * count)
            return queue

        return self.broker.call(add)


@pytest.fixture
def api(leveret_broker: Broker) -> Iterator[Api]:
    api = Api(leveret_broker)
    api.run(api.listener.start())
    yield api
    api.run(api.listener.stop())


@pytest.fixture
def channel(leveret_broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(leveret_broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    with suppress(AMQPConnectionError):  # the broker may have been stopped
        connection.close()


@pytest.fixture
def orders(api: Api, channel: BlockingChannel) -> str:
    """A topic of two partitions, the first one with ten messages."""
    api.ask("PUT", "/api/topics/%2F/orders", body={"partitions": 2})
    for number in range(10):
        channel.basic_publish("", "orders-0", b"%d" % number)
    return "orders"


@pytest.fixture
def join(api: Api) -> Iterator[Callable[..., Member]]:
    """`join("orders", "billing", prefetch=5)`; whoever joins leaves with the test."""
    members = []

    def join(subject: str = "orders", group: str = "billing", **arguments: Any) -> Member:
        members.append(Member(api.broker.url, subject, group, **arguments))
        return members[-1]

    yield join
    for member in members:
        with suppress(AMQPError):  # the broker may be gone
            member.close()
