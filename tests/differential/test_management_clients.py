"""Requests to RabbitMQ's management API for connections, channels, nodes and health, sent to both brokers.

Statuses, errors and reasons must be the same, and every name in RabbitMQ's JSON must be in Leveret's, but for
those in `MISSING`, which says why. The test fails when a missing name is no longer missing. On both brokers a
client publishes, consumes, gets and acks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import pika
import pytest

from tests.differential.management import Answer, Management
from tests.processes import wait_until

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

SAMPLES = "&".join(f"{kind}_age=60&{kind}_incr=5" for kind in ("msg_rates", "data_rates", "lengths"))

# Names of nodes and protocols become atoms of Erlang, which changes later answers that have them: so the
# unknown name is one that no other test has.
ASKS = [
    "GET /api/overview",
    f"GET /api/overview?{SAMPLES}",
    "GET /api/overview?columns=queue_totals.messages,object_totals",
    "GET /api/overview?msg_rates_age=60&msg_rates_incr=0",
    "GET /api/overview?lengths_age=-1&lengths_incr=5",
    "GET /api/overview?lengths_age=6000&lengths_incr=1",
    "GET /api/overview?lengths_age=x&lengths_incr=1",
    "GET /api/nodes",
    "GET /api/nodes?node_stats_age=60&node_stats_incr=5",
    "GET /api/nodes/{node}",
    "GET /api/nodes/{node}?memory=true",
    "GET /api/nodes/{node}/memory",
    "GET /api/nodes/{node}/memory/relative",
    "GET /api/nodes/unheard-of/memory",
    "GET /api/nodes/{node}/memory/unheard-of",
    "GET /api/cluster-name",
    "PUT /api/cluster-name {}",
    "PUT /api/cluster-name x",
    "GET /api/extensions",
    "GET /api/feature-flags",
    "GET /api/auth/attempts/{node}",
    "GET /api/auth/attempts/{node}/source",
    "GET /api/auth/attempts/unheard-of",
    "DELETE /api/auth/attempts/{node}/source",
    "DELETE /api/auth/attempts/{node}",
    "POST /api/rebalance/queues {}",
    "GET /api/whoami",
    "GET /api/vhosts/{vhost}/connections",
    f"GET /api/vhosts/{{vhost}}/connections?{SAMPLES}",
    "GET /api/vhosts/{vhost}/connections?page=1&page_size=1&columns=name",
    "GET /api/vhosts/{vhost}/connections?sort=unheard-of",
    "GET /api/vhosts/unheard-of/connections",
    "GET /api/connections/{connection}",
    f"GET /api/connections/{{connection}}?{SAMPLES}",
    "GET /api/connections/{connection}?columns=name,recv_oct_details.rate",
    "GET /api/connections/{connection}/channels",
    "GET /api/connections/unheard-of",
    "DELETE /api/connections/unheard-of",
    "GET /api/connections/username/guest",
    "GET /api/connections/username/unheard-of",
    "DELETE /api/connections/username/unheard-of",
    "GET /api/vhosts/{vhost}/channels",
    f"GET /api/vhosts/{{vhost}}/channels?{SAMPLES}",
    "GET /api/vhosts/{vhost}/channels?page=1&page_size=1",
    "GET /api/vhosts/{vhost}/channels?columns=name,message_stats.publish_details.rate&sort=number",
    "GET /api/vhosts/unheard-of/channels",
    "GET /api/channels/{connection}%20%281%29",
    f"GET /api/channels/{{connection}}%20%281%29?{SAMPLES}",
    "GET /api/channels/{connection}%20%282%29",
    "GET /api/channels/{connection}%20%283%29",
    "GET /api/channels/{connection}%20%289%29",
    "GET /api/channels/unheard-of",
    "GET /api/consumers/{vhost}",
    "GET /api/consumers/{vhost}?page=1&columns=consumer_tag",
    "GET /api/consumers/unheard-of",
    *(
        f"GET /api/health/checks/{check}"
        for check in (
            *("alarms", "local-alarms", "virtual-hosts", "unheard-of"),
            *("node-is-mirror-sync-critical", "node-is-quorum-critical"),
            *("certificate-expiration/1/days", "certificate-expiration/100/years"),
            *("certificate-expiration/x/days", "certificate-expiration/1/hours"),
            *("port-listener/{port}", "port-listener/1", "port-listener/x", "port-listener/-1"),
            *("protocol-listener/amqp", "protocol-listener/AMQP091", "protocol-listener/amqps"),
            *(
                "protocol-listener/management",
                "protocol-listener/unheard-of",
                "protocol-listener/http%2Fweb-mqtt",
            ),
        )
    ),
    "GET /api/aliveness-test/{vhost}",
    "GET /api/aliveness-test/unheard-of",
]

ERLANG = "a figure of Erlang's processes"
FILES = "a figure of RabbitMQ's file formats"
TIMES = "metrics have histograms of times"
MISSING = {
    "garbage_collection": ERLANG,
    "reductions": ERLANG,
    "reductions_details": ERLANG,
    "pending_raft_commands": "there is no Raft",
    "ra_open_file_metrics": "there is no Raft",
    "net_ticktime": "there is one node",
    "metrics_gc_queue_length": ERLANG,
    "gc_bytes_reclaimed": ERLANG,
    "gc_bytes_reclaimed_details": ERLANG,
    **{
        f"{name}{details}": why
        for name, why in (
            *((f"io_{kind}_avg_time", TIMES) for kind in ("read", "write", "sync", "seek")),
            *((f"io_{kind}_count", FILES) for kind in ("seek", "reopen")),
            *((f"mnesia_{kind}_tx_count", FILES) for kind in ("ram", "disk")),
            *(
                (f"{kind}_{what}_count", FILES)
                for kind in ("msg_store", "queue_index")
                for what in ("read", "write")
            ),
        )
        for details in ("", "_details")
    },
    "javascript": "there is no page that plug-ins extend",
    **dict.fromkeys(
        ("backlog", "nodelay", "linger", "exit_on_close", "cowboy_opts", "ip", "port", "protocol"),
        "options of Erlang's sockets",
    ),
}
"""Names in RabbitMQ's JSON, with all that is in them, which Leveret does not have."""


@dataclass(frozen=True)
class Place:
    """A broker with a client, and what stands for names in paths."""

    management: Management
    names: dict[str, str]

    def ask(self, line: str) -> Answer:
        method, path, *body = line.split(" ", 2)
        for name, value in self.names.items():
            path = path.replace(f"{{{name}}}", value)
        given = body[0] if body else None
        return self.management.ask(method, path, given)


@contextmanager
def busy(management: Management) -> Iterator[Place]:
    """A broker with a client that publishes, gets, consumes and has a transaction, as its statistics show."""
    place = pika.ConnectionParameters("127.0.0.1", management.port, management.vhost, heartbeat=0)
    place.client_properties = {"connection_name": "busy"}
    connection = pika.BlockingConnection(place)
    first, second, third = (connection.channel() for _ in range(3))
    first.queue_declare("m-client", durable=True)
    first.queue_purge("m-client")
    first.confirm_delivery()
    for _ in range(3):
        first.basic_publish("", "m-client", b"x", pika.BasicProperties(delivery_mode=2))
    first.basic_get("m-client")
    second.basic_qos(prefetch_count=5)
    second.basic_consume("m-client", lambda *_: None, consumer_tag="consumer")
    third.tx_select()
    third.basic_publish("", "m-client", b"x")
    socket = connection._impl._transport._sock  # pika tells the address in no other way
    (host, port), (own_host, own_port) = socket.getpeername(), socket.getsockname()
    names = {
        "connection": quote(f"{own_host}:{own_port} -> {host}:{port}", safe=""),
        "port": str(management.port),
        "node": management.ask("GET", "/api/overview").content["node"],
    }
    found = Place(management, names)
    wait_until(lambda: has_statistics(found), "the statistics were collected")
    yield found
    first.queue_delete("m-client")
    first.queue_delete("aliveness-test")
    connection.close()


def has_statistics(place: Place) -> bool:
    channel = place.ask(f"GET /api/channels/{{connection}}%20%281%29?{SAMPLES}").names
    second = place.ask("GET /api/channels/{connection}%20%282%29").names
    connection = place.ask("GET /api/connections/{connection}?data_rates_age=60&data_rates_incr=5").names
    overview = place.ask(f"GET /api/overview?{SAMPLES}").names
    wanted = "message_stats.publish_details.samples.sample"
    return (
        wanted in channel
        and wanted in overview
        and "message_stats.disk_writes" in overview
        and "message_stats.deliver" in second
        and "idle_since" in channel & second
        and "recv_oct_details.samples.sample" in connection
    )


@pytest.fixture(scope="module")
def leveret(leveret_management: Management) -> Iterator[Place]:
    with busy(leveret_management) as place:
        yield place


@pytest.fixture(scope="module")
def real(rabbitmq_management: Management) -> Iterator[Place]:
    with busy(rabbitmq_management) as place:
        yield place


@pytest.mark.parametrize("line", ASKS)
def test_a_request_is_answered_alike(line: str, leveret: Place, real: Place) -> None:
    ours, theirs = leveret.ask(line), real.ask(line)
    assert (ours.status, ours.refusal) == (theirs.status, theirs.refusal)
    assert lacking(ours, theirs) - MISSING.keys() == set()


def test_names_that_are_called_missing_are_missing(leveret: Place, real: Place) -> None:
    lines = [line for line in ASKS if line.startswith("GET")]
    found = [lacking(leveret.ask(line), real.ask(line)) for line in lines]
    assert MISSING.keys() - set().union(*found) == set()


def lacking(ours: Answer, theirs: Answer) -> set[str]:
    """Return the names that only RabbitMQ has, without those in objects that only RabbitMQ has."""
    own = {*ours.names, ""}
    parts = (name.rpartition(".") for name in theirs.names - own)
    return {name for parent, _, name in parts if parent in own}
