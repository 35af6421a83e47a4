"""HTTP client libraries for RabbitMQ's management API: each call returns the same from both brokers.

The libraries are AMQPStorm's `ManagementApi` (Python) and rabbit-hole (Go, `tests/interop/hole`). They know
nothing of Leveret: what they read from an answer must be there, in the type they expect.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from amqpstorm.management import ApiError, ManagementApi

from tests.differential.management import Management
from tests.interop.builds import Program, build_go, built
from tests.processes import WAIT_S

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

HOLE = Program("hole", ("go",), build_go, lambda folder: [str(folder / "tour")])
NAME = "client-library"
"""The user and the virtual host that a library makes."""
Calls = list[tuple[str, Any]]
DIFFERENT = {
    "get again": "Leveret counts the deliveries of every queue, in the header x-delivery-count",
    "put wrong policy": "RabbitMQ escapes HTML in the reason; Leveret leaves that to the page",
    "permit a wrong pattern": "RabbitMQ's reason is a list, which rabbit-hole can't read",
}
"""Calls that return something else on purpose, and why."""
_HASH = re.compile(r'(?<=~)[\w-]+(?=")')
"""The end of a binding's `properties_key`: a hash that each broker makes in its own way."""


def url(management: Management) -> str:
    return f"http://127.0.0.1:{management.http_port}"


@contextmanager
def without_leftovers(management: Management) -> Iterator[None]:
    """Delete what a library that stopped half-way has left."""
    try:
        yield
    finally:
        for path in (f"vhosts/{NAME}", f"users/{NAME}"):
            management.ask("DELETE", f"/api/{path}")
        for queue in ("storm%20q", "hole%20q", "hole%20s", "aliveness-test"):
            management.ask("DELETE", f"/api/queues/{{vhost}}/{queue}")
        for exchange in ("storm-x", "hole%2Fx"):
            management.ask("DELETE", f"/api/exchanges/{{vhost}}/{exchange}")


# AMQPStorm


def storm_calls(management: Management) -> Calls:
    """Everything that AMQPStorm's client can do, and what it returns."""
    api = ManagementApi(url(management), "guest", "guest", timeout=WAIT_S)
    # RabbitMQ closes a connection after some errors, and the client does not try again.
    api.http_client.session.headers["Connection"] = "close"
    vhost, told = management.vhost, []

    def call(name: str, function: Callable[[], Any], *fields: str) -> None:
        try:
            found = function()
        except ApiError as error:
            told.append((name, f"refused with {error.error_code}"))
            return
        if fields:
            rows = found if isinstance(found, list) else [found]
            found = [{field: row[field] for field in fields} for row in rows]
        told.append((name, json.loads(json.dumps(found).replace(json.dumps(vhost), '"/"'))))

    queue, exchange, user = api.queue, api.exchange, api.user
    call("declare", lambda: queue.declare("storm q", vhost, durable=True, arguments={"x-max-length": 5}))
    call(
        "declare again", lambda: queue.declare("storm q", vhost, durable=True, arguments={"x-max-length": 5})
    )
    call("declare other", lambda: queue.declare("storm q", vhost))
    call("check", lambda: queue.declare("storm q", vhost, passive=True), "name", "durable", "arguments")
    call("check nothing", lambda: queue.declare("nope", vhost, passive=True))
    call("exchange", lambda: exchange.declare("storm-x", "topic", vhost, durable=True))
    call("wrong exchange", lambda: exchange.declare("storm-x", "nope", vhost))
    call("bind", lambda: queue.bind("storm q", "storm-x", "a.*", vhost))
    call("bindings", lambda: queue.bindings("storm q", vhost))
    call("exchange bindings", lambda: exchange.bindings("storm-x", vhost))
    call("bind exchange", lambda: exchange.bind("amq.topic", "storm-x", "k", vhost))
    call("unbind exchange", lambda: exchange.unbind("amq.topic", "storm-x", "k", vhost))
    call("unbind", lambda: queue.unbind("storm q", "storm-x", "a.*", vhost))
    call("unbind again", lambda: queue.unbind("storm q", "storm-x", "a.*", vhost))
    call("queues", lambda: queue.list(vhost), "name", "vhost", "durable", "auto_delete", "type")
    call("named", lambda: queue.list(vhost, name="^storm", use_regex=True, page_size=1), "name")
    call("exchanges", lambda: exchange.list(vhost), "name", "type", "durable", "internal")
    call("show", lambda: exchange.get("storm-x", vhost), "name", "type", "arguments")
    properties = {"content_type": "text/plain", "headers": {"a": 1}}
    call("publish", lambda: api.basic.publish("hello", "storm q", "amq.default", vhost, properties))
    call("publish nowhere", lambda: api.basic.publish("hello", "nope", "amq.default", vhost))
    call("publish to nothing", lambda: api.basic.publish("hello", "nope", "nope", vhost))
    call("get", lambda: api.basic.get("storm q", vhost, requeue=True, to_dict=True))
    call("get again", lambda: api.basic.get("storm q", vhost, count=5, to_dict=True))
    call("get from nothing", lambda: api.basic.get("nope", vhost))
    call("purge", lambda: queue.purge("storm q", vhost))
    call("user", lambda: user.create(NAME, "secret", "monitoring"))
    call("show user", lambda: user.get(NAME), "name", "tags")
    call("permit", lambda: user.set_permission(NAME, vhost, ".*", "^a", ""))
    call("permission", lambda: user.get_permission(NAME, vhost))
    call("permissions", lambda: user.get_permissions(NAME))
    call("forbid", lambda: user.delete_permission(NAME, vhost))
    call("no permission", lambda: user.get_permission(NAME, vhost))
    call("vhost", lambda: api.virtual_host.create(NAME))
    call("show vhost", lambda: api.virtual_host.get(NAME), "name", "description", "tags", "tracing")
    call("permissions in vhost", lambda: api.virtual_host.get_permissions(NAME))
    call("delete vhost", lambda: api.virtual_host.delete(NAME))
    call("missing vhost", lambda: api.virtual_host.get(NAME))
    call("delete user", lambda: user.delete(NAME))
    call("missing user", lambda: user.get(NAME))
    call("aliveness", lambda: api.aliveness_test(vhost))
    call("health", lambda: api.healthchecks.get())
    call("whoami", lambda: api.whoami(), "name", "tags")
    call("nodes", lambda: api.nodes(), "type", "running")
    call("overview", lambda: api.overview(), "rabbitmq_version", "rates_mode")
    call("missing connection", lambda: api.connection.get("nope"))
    call("close nothing", lambda: api.connection.close("nope"))
    call("missing channel", lambda: api.channel.get("nope"))
    call("delete queue", lambda: queue.delete("storm q", vhost))
    call("delete queue again", lambda: queue.delete("storm q", vhost))
    call("delete exchange", lambda: exchange.delete("storm-x", vhost))
    return told


def test_amqpstorm_is_told_the_same_by_both_brokers(leveret_management, rabbitmq_management):
    told = []
    for management in (leveret_management, rabbitmq_management):
        with without_leftovers(management):
            told.append(storm_calls(management))
    compare(*told)


# rabbit-hole


def hole_calls(management: Management, command: list[str]) -> Calls:
    ran = subprocess.run(
        [*command, url(management), management.vhost, NAME],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * WAIT_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = (
        _HASH.sub("hash", ran.stdout)
        .replace(json.dumps(management.vhost), '"/"')
        .replace(f"'{management.vhost}'", "'/'")
    )
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["call"], line.get("error", line.get("value"))) for line in lines]


@pytest.mark.full
@pytest.mark.timeout(900)  # the first time it downloads and compiles
def test_rabbit_hole_is_told_the_same_by_both_brokers(leveret_management, rabbitmq_management):
    command = HOLE.command(built(HOLE))
    told = []
    for management in (leveret_management, rabbitmq_management):
        with without_leftovers(management):
            told.append(hole_calls(management, command))
    compare(*told)


def compare(leveret: Calls, rabbitmq: Calls) -> None:
    assert [name for name, _ in leveret] == [name for name, _ in rabbitmq]
    other = [
        f"{name}\n  Leveret:  {ours}\n  RabbitMQ: {theirs}"
        for (name, ours), (_, theirs) in zip(leveret, rabbitmq, strict=True)
        if ours != theirs and name not in DIFFERENT
    ]
    assert not other, "\n".join(other)
